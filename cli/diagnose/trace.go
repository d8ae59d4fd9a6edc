package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/tracer"
)

// traceFlags are what people give.
type traceFlags struct {
	vip, src   string
	port       uint16
	sport      uint16
	protocol   string
	receiver   string
	secretFile string
	config     []string
	format     string
	request    tracer.Request
}

// TraceCommand is `guideway trace`.
func TraceCommand() *cobra.Command {
	var f traceFlags
	command := &cobra.Command{
		Use:   "trace --vip ADDRESS",
		Short: "Send marked packets, and show what each load balancer does with them (root)",
		Long: "Sends packets to a service address that carry a mark, signed with the cluster's\n" +
			"secret. Each load balancer on the way forwards them as usual, remembers nothing\n" +
			"of them, and reports what it did. Backends drop them: their checksum is wrong.\n\n" +
			"Run it where clients are, or anywhere from where packets to the address go by\n" +
			"way of the router. Without --sport each packet has another source port, so that\n" +
			"the router spreads them. Exits with 1 if no load balancer reported.",
		Example: "  guideway trace --vip 203.0.113.10 --port 443 --count 8\n" +
			"  guideway trace --vip 203.0.113.10 --src 198.51.100.7 --sport 40000   # that client's flow\n" +
			"  guideway trace --vip 2001:db8:a::10 --protocol udp --port 53 --fragment -o json",
		Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return runTrace(command.Context(), f, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringVar(&f.vip, "vip", "", "service address to send to")
	flags.Uint16Var(&f.port, "port", 80, "service port")
	flags.StringVar(&f.src, "src", "", "source address, also one that is not this machine's (default: what the kernel would use)")
	flags.Uint16Var(&f.sport, "sport", 0, "source port (default: another for each packet)")
	flags.StringVar(&f.protocol, "protocol", "tcp", "tcp or udp")
	flags.IntVar(&f.request.Count, "count", 1, fmt.Sprintf("packets to send, at most %d", tracer.CountMax))
	flags.StringVar(&f.receiver, "receiver", "", "ADDRESS[:PORT] to which load balancers report; it must lead here (default: own address, any port)")
	flags.StringVar(&f.secretFile, "secret-file", "", "the cluster's secret (default: cluster.secret_file of --config)")
	flags.StringArrayVar(&f.config, "config", []string{machine.ConfigDefault}, "config that names the secret; may be repeated")
	flags.DurationVar(&f.request.Timeout, "timeout", 2*time.Second, "how long to wait for reports")
	flags.BoolVar(&f.request.Fragment, "fragment", false, "send each as a first fragment, with a second behind it")
	flags.BoolVar(&f.request.ValidChecksum, "valid-checksum", false, "let backends take the packets: TCP resets, UDP is delivered")
	commandline.AddOutput(command, &f.format, commandline.TableFormats)
	_ = command.MarkFlagRequired("vip") // an error only if the flag did not exist
	return command
}

func runTrace(ctx context.Context, f traceFlags, stdout, stderr io.Writer) error {
	request, err := f.parse()
	if err != nil {
		return err
	}
	link, err := tracer.Open(request.Flow.Destination.Addr(), request.Receiver)
	if err != nil {
		return err
	}
	defer link.Close()
	request.Receiver = netip.AddrPortFrom(request.Receiver.Addr(), link.Port())

	result, err := tracer.Run(ctx, link, request)
	if err != nil && !errors.Is(err, context.Canceled) { // after Ctrl-C: what there is
		return fmt.Errorf("trace: %w", err)
	}
	if err := traceListing(result).Print(stdout, f.format); err != nil {
		return err
	}
	return judgeTrace(result, request, stderr)
}

// parse reads everything that can be wrong before a socket is opened.
func (f traceFlags) parse() (tracer.Request, error) {
	request := f.request
	protocol, err := tracer.ParseProtocol(f.protocol)
	if err != nil {
		return request, commandline.Usagef("%w", err)
	}
	vip, err := parseAddress("vip", f.vip)
	if err != nil {
		return request, err
	}
	if f.port == 0 {
		return request, commandline.Usagef("--port 0: give 1 to 65535")
	}
	if request.Key, err = f.key(); err != nil {
		return request, err
	}
	source, receiver, err := f.ends(vip)
	if err != nil {
		return request, err
	}
	request.SpreadPorts = f.sport == 0
	request.Flow = tracer.Flow{Protocol: protocol, Source: netip.AddrPortFrom(source, f.sourcePort()), Destination: netip.AddrPortFrom(vip, f.port)}
	request.Receiver = receiver
	if err := request.Check(); err != nil {
		return request, commandline.Usagef("%w", err)
	}
	return request, nil
}

// ends of the packets' way and of the reports': by default both are where the
// kernel would send from.
func (f traceFlags) ends(vip netip.Addr) (source netip.Addr, receiver netip.AddrPort, err error) {
	if f.src != "" {
		if source, err = parseAddress("src", f.src); err != nil {
			return source, receiver, err
		}
	}
	if f.receiver != "" {
		if receiver, err = parseReceiver(f.receiver); err != nil {
			return source, receiver, err
		}
	}
	if f.src != "" && f.receiver != "" {
		return source, receiver, nil
	}
	own, err := tracer.SourceTowards(vip)
	if err != nil {
		return source, receiver, err
	}
	if f.src == "" {
		source = own
	}
	if f.receiver == "" {
		receiver = netip.AddrPortFrom(own, 0)
	}
	return source, receiver, nil
}

// sourcePort is one that clients have too, with room for the next ones.
func (f traceFlags) sourcePort() uint16 {
	if f.sport != 0 {
		return f.sport
	}
	return uint16(32768 + rand.IntN(16384))
}

// key is made of the secret that the flags lead to.
func (f traceFlags) key() (tracer.Key, error) {
	file, err := f.findSecretFile()
	if err != nil {
		return tracer.Key{}, err
	}
	secret, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrPermission) {
		return tracer.Key{}, fmt.Errorf("read secret: %w: be root (sudo guideway trace ...), as sending marks takes it, too", err)
	}
	if err != nil {
		return tracer.Key{}, fmt.Errorf("read secret: %w: give --secret-file FILE, the file that cluster.secret_file names on the load balancers", err)
	}
	key, err := tracer.NewKey(secret)
	if err != nil {
		return key, fmt.Errorf("secret file %s: %w", file, err)
	}
	return key, nil
}

func (f traceFlags) findSecretFile() (string, error) {
	if f.secretFile != "" {
		return f.secretFile, nil
	}
	c, err := config.LoadAny(f.config...)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("marks are signed with the cluster's secret, and there is no config to find it by (%w): give --secret-file FILE, a copy of the file that cluster.secret_file names on the load balancers", err)
	}
	if err != nil {
		return "", fmt.Errorf("marks are signed with the cluster's secret, and the config that names it is bad; give --secret-file FILE, or mend it:\n%w", err)
	}
	if c.Cluster.SecretFile == "" {
		return "", errors.New("the config has no cluster.secret_file, and without a secret load balancers ignore marks: anybody could sign them. Make one with `head -c 32 /dev/urandom | base64 > /etc/guideway/cluster.key` and name it in the config of every load balancer (new connections then find other backends)")
	}
	return c.Cluster.SecretFile, nil
}

func parseAddress(flag, text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return address, commandline.Usagef("--%s %q: give an IPv4 or IPv6 address, like 203.0.113.10", flag, text)
	}
	return address.Unmap(), nil
}

// parseReceiver takes an address alone, too: any port.
func parseReceiver(text string) (netip.AddrPort, error) {
	if address, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(address.Unmap(), 0), nil
	}
	receiver, err := netip.ParseAddrPort(text)
	if err != nil {
		return receiver, commandline.Usagef("--receiver %q: give ADDRESS or ADDRESS:PORT, like 192.0.2.1, 192.0.2.1:6080 or [2001:db8::1]:6080", text)
	}
	return netip.AddrPortFrom(receiver.Addr().Unmap(), receiver.Port()), nil
}

func traceListing(result tracer.Result) output.Listing {
	found := output.Listing{
		Value: result,
		Header: []string{"PACKET", "FROM", "MACHINE", "WORKER", "SERVICE", "MATCHED", "TABLE", "BACKEND", "VERDICT", "REASON", "BUDGET",
			"AFTER", "NONCE"},
		WideFrom: 11,
		None:     "no load balancer reported",
	}
	for i, packet := range result.Packets {
		for _, hop := range packet.Hops {
			found.Rows = append(found.Rows, []string{
				fmt.Sprint(i + 1), packet.Source.String(), hop.Machine, fmt.Sprint(hop.Worker),
				output.Dash(hop.Service), output.Dash(hop.Matched), tableCell(hop.Report), output.Dash(hop.Backend), hop.Verdict, output.Dash(hop.Reason), fmt.Sprint(hop.Budget),
				(time.Duration(hop.AfterMicroseconds) * time.Microsecond).String(), packet.Nonce,
			})
		}
	}
	return found
}

// tableCell: the connection table decided, or the Maglev table's slot did.
func tableCell(report tracer.Report) string {
	if report.Slot == nil {
		return report.Table
	}
	return fmt.Sprintf("%s, slot %d", report.Table, *report.Slot)
}

// judgeTrace says what is missing; an error if that is everything.
func judgeTrace(result tracer.Result, request tracer.Request, stderr io.Writer) error {
	sent, answered := len(result.Packets), result.Answered()
	if result.Strange > 0 {
		fmt.Fprintf(stderr, "warning: %s at the port of the reports that were none\n", output.Counted(result.Strange, "datagram"))
	}
	if answered == 0 {
		fmt.Fprintf(stderr, silence, output.Counted(sent, "packet"), request.Flow.Destination, request.Timeout, request.Receiver, request.Key.ID())
		return commandline.ErrReported
	}
	if answered < sent {
		fmt.Fprintf(stderr, "warning: no report on %d of %d packets: lost on the way, by way of a load balancer with another secret or clock, or beyond 100 reports a second and worker\n", sent-answered, sent)
	}
	if lost := result.LostOnTheWay(); lost > 0 {
		fmt.Fprintf(stderr, "warning: %s went on to a load balancer that did not report: does it run, has it the same secret_file, is the sender among its peers?\n", output.Counted(lost, "packet"))
	}
	return nil
}

const silence = `No report came back on %s to %s within %v (expected at %s). Usual causes:
  - the load balancers have no cluster.secret_file: then they ignore all marks
  - another secret: this one's key id is %s, theirs is "keyId" in what
    ` + "`guideway config compile`" + ` prints there
  - a clock that is more than 30 s off, here or there (timedatectl)
  - the packets do not reach a load balancer: is the address announced (guideway show bgp),
    does this machine route it there, does a filter drop source addresses that are not its own?
  - more than 100 reports a second of one worker: another trace runs too
  - no way back: a report is a UDP datagram from port 6079 of the load balancer's own address
    to the receiver; a firewall, a missing route, or NAT in between (see --receiver)
`
