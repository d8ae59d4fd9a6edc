package diagnose

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/show"
	"github.com/guideway/guideway/controller/config"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

// ExplainCommand is `guideway explain`.
func ExplainCommand() *cobra.Command {
	var m machine.Machine
	var plan, secret, format, connectionID, tcpHeader string
	command := &cobra.Command{
		Use:   "explain PROTOCOL SOURCE DESTINATION",
		Short: "Explain where the packets of a flow go, and why",
		Long: "Asks the running forwarder what it would do with the next packet of a flow, and prints\n" +
			"each decision. With --plan it uses a plan file instead: no connection is tracked, and\n" +
			"the next hop is a placeholder. --connection-id gives the packet a QUIC connection id;\n" +
			"--tcp-header gives it a TCP header, for services with Multipath TCP.",
		Example: "  guideway explain tcp 192.0.2.7:40000 203.0.113.10:80\n" +
			"  guideway explain udp [2001:db8::7]:40000 [2001:db8:a::10]:443 --plan plan.json\n" +
			"  guideway explain udp 192.0.2.7:40000 203.0.113.10:443 --connection-id 0efa670b50f856fc55",
		Args: commandline.Arguments("PROTOCOL", "SOURCE", "DESTINATION"),
		RunE: func(command *cobra.Command, args []string) error {
			key, err := show.FlowKey(args[0], args[1], args[2])
			if err != nil {
				return err
			}
			request := &forwarderv1.ExplainRequest{Flow: key}
			if command.Flags().Changed("connection-id") {
				if request.ConnectionId, err = parseConnectionID(connectionID, args[0]); err != nil {
					return err
				}
			}
			if command.Flags().Changed("tcp-header") {
				if request.TcpHeader, err = parseTCPHeader(tcpHeader, args[0]); err != nil {
					return err
				}
			}
			var told *forwarderv1.ExplainResponse
			if plan != "" {
				told, err = explainByPlan(command.Context(), plan, secret, request)
			} else {
				told, err = explainRunning(command.Context(), m, request)
			}
			if err != nil {
				return err
			}
			return printExplanation(command.OutOrStdout(), format, explanation{told: told, offline: plan != "", asksForID: request.ConnectionId != nil, asksForHeader: request.TcpHeader != nil})
		},
	}
	commandline.AddOutput(command, &format, commandline.TextFormats)
	command.Flags().StringVar(&m.RunDir, "run-dir", machine.RunDirDefault, "directory of the sockets")
	command.Flags().StringVar(&plan, "plan", "", "explain by this plan `FILE`, as guideway config compile writes it")
	command.Flags().StringVar(&secret, "secret-file", "", "with --plan: the cluster's secret")
	command.Flags().StringVar(&connectionID, "connection-id", "", "a QUIC connection id of the packet, in `HEX`")
	command.Flags().StringVar(&tcpHeader, "tcp-header", "", "the packet's TCP header, in `HEX`")
	return command
}

// parseTCPHeader of a flow's packet, in hexadecimal digits. Its ports are the flow's.
func parseTCPHeader(text, protocol string) ([]byte, error) {
	const bytesMin, bytesMax = 20, 60 // RFC 9293
	header, err := hex.DecodeString(text)
	if err != nil || len(header) < bytesMin || len(header) > bytesMax {
		return nil, fmt.Errorf("--tcp-header %q: give %d to %d bytes in hexadecimal digits, as captures show them", text, bytesMin, bytesMax)
	}
	if protocol != "tcp" {
		return nil, fmt.Errorf("--tcp-header with %s: give `tcp`", protocol)
	}
	return header, nil
}

// parseConnectionID of a flow's packet, in hexadecimal digits.
func parseConnectionID(text, protocol string) ([]byte, error) {
	const bytesMax = 20 // RFC 9000
	id, err := hex.DecodeString(text)
	if err != nil || len(id) == 0 || len(id) > bytesMax {
		return nil, fmt.Errorf("--connection-id %q: give 1 to %d bytes in hexadecimal digits, as captures show them", text, bytesMax)
	}
	if protocol != "udp" {
		return nil, fmt.Errorf("--connection-id with %s: QUIC is UDP, give `udp`", protocol)
	}
	return id, nil
}

func explainRunning(ctx context.Context, m machine.Machine, request *forwarderv1.ExplainRequest) (*forwarderv1.ExplainResponse, error) {
	var told *forwarderv1.ExplainResponse
	err := m.AskForwarder(ctx, func(ctx context.Context, client forwarderv1.ForwarderClient) (err error) {
		told, err = client.Explain(ctx, request)
		return err
	})
	return told, err
}

// explainByPlan has the forwarder's program do it: only that hashes.
func explainByPlan(ctx context.Context, plan, secret string, request *forwarderv1.ExplainRequest) (*forwarderv1.ExplainResponse, error) {
	program, err := forwarderProgram()
	if err != nil {
		return nil, err
	}
	args := []string{"explain", "--plan", plan}
	if secret != "" {
		args = append(args, "--secret-file", secret)
	}
	if id := request.GetConnectionId(); len(id) > 0 {
		args = append(args, "--connection-id", hex.EncodeToString(id))
	}
	if header := request.GetTcpHeader(); len(header) > 0 {
		args = append(args, "--tcp-header", hex.EncodeToString(header))
	}
	key := request.GetFlow()
	args = append(args, fmt.Sprint(key.Protocol), key.Source, fmt.Sprint(key.SourcePort), key.Destination, fmt.Sprint(key.DestinationPort))
	command := exec.CommandContext(ctx, program, args...)
	var stderr strings.Builder
	command.Stderr = &stderr
	out, err := command.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, errors.New(strings.TrimPrefix(strings.TrimSpace(stderr.String()), "guideway-forwarder: "))
	}
	if err != nil {
		return nil, fmt.Errorf("explain by %s: %w", plan, err)
	}
	told := &forwarderv1.ExplainResponse{}
	if err := protojson.Unmarshal(out, told); err != nil {
		return nil, fmt.Errorf("explain by %s: %s is of another version: %w", plan, program, err)
	}
	return told, nil
}

// forwarderProgram is the one beside this program, else the one in PATH.
func forwarderProgram() (string, error) {
	const name = "guideway-forwarder"
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), name)
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	program, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program nor in PATH: explaining by a plan file needs it", name)
	}
	return program, nil
}

type explanation struct {
	told *forwarderv1.ExplainResponse
	// By a plan file.
	offline bool
	// With a QUIC connection id.
	asksForID bool
	// With a TCP header.
	asksForHeader bool
}

func printExplanation(w io.Writer, format string, e explanation) error {
	if format != "table" {
		if e.offline {
			e.told.NextHop = nil // none of this machine's
		}
		return commandline.PrintValue(w, format, plainjson.Value{Message: e.told})
	}
	var err error
	for _, line := range e.lines() {
		if err == nil {
			_, err = fmt.Fprintf(w, "%-11s %s\n", line.what, line.text)
		}
	}
	return err
}

type explainedLine struct{ what, text string }

// lines are the decisions in the order in which they are made.
func (e explanation) lines() []explainedLine {
	t := e.told
	var lines []explainedLine
	say := func(what, format string, values ...any) {
		lines = append(lines, explainedLine{what, fmt.Sprintf(format, values...)})
	}
	say("verdict", "%s", e.verdict())
	if t.End != nil {
		say("", "%s", t.End.Meaning)
		say("", "usual cause: %s", t.End.UsualCause)
	}
	if t.Service == "" {
		return lines
	}
	say("service", "%s, by its entry %s", t.Service, t.Matched)
	say("hash", "%s", t.Hash)
	if t.Affinity == "client" {
		say("", "affinity is client: the source address alone selects, by %s", t.Selector)
	}
	switch {
	case t.Mode == "join_port":
		say("port", "a backend's own, for joins of Multipath TCP")
	case t.Slot == nil:
		say("slot", "none: no backend takes new connections")
	case t.Mode == "stateless":
		say("bucket", "%d of %d, by %s, which %s has", t.GetSlot(), t.TableSize, t.Selector, t.BackendByHash)
	default:
		say("slot", "%d of %d, which is %s", t.GetSlot(), t.TableSize, t.BackendByHash)
	}
	switch t.Mode {
	case "stateless":
		say("tracked", "never: the service is stateless, each packet goes by its bucket")
	case "join_port":
		say("tracked", "never: each packet goes by its port")
	default:
		say("tracked", "%s", e.tracked())
	}
	if cached := t.GetCached(); cached != nil {
		say("cached", "in queue %d of %s (idle %s): the kernel sends its data packets by itself", cached.Queue, cached.Interface, time.Duration(cached.IdleMs)*time.Millisecond)
	} else if t.GetCachedByBucket() {
		say("cached", "its bucket: the kernel sends all of the bucket's packets by itself")
	} else if why := t.GetNotCached(); why != "" {
		say("cached", "no: %s", why)
	}
	if e.asksForID {
		say("QUIC id", "%s", e.connectionID())
	}
	if e.asksForHeader {
		say("mptcp", "%s", e.multipath())
	}
	if t.Backend != "" {
		say("backend", "%s at %s", t.Backend, t.BackendAddress)
	}
	if len(t.RouteOption) > 0 {
		say("then", "%s, and agents pass on what is not theirs", e.routeOption())
	}
	if t.Spill != "" {
		say("spill", "to %s, in another cluster", t.Spill)
	}
	if hop := t.NextHop; hop != nil && e.offline {
		say("next hop", "not known to a plan file; %s stands for it", hop.Mac)
	} else if hop != nil {
		say("next hop", "%s on %s, MTU %d", hop.Mac, hop.Device, hop.Mtu)
	}
	if t.Outer != "" {
		e.sayOuter(say)
	}
	return lines
}

func (e explanation) sayOuter(say func(label, format string, values ...any)) {
	if e.told.Encap == string(config.EncapL2) {
		say("outer", "none (l2): the packet itself goes there, one hop older")
		return
	}
	say("outer", "%s, of a packet without data:", e.told.Encap)
	for _, row := range hexRows(e.told.Outer) {
		say("", "%s", row)
	}
}

func (e explanation) verdict() string {
	t := e.told
	switch t.Verdict {
	case "sent":
		return "sent to " + t.Backend
	case "redirected":
		return "redirected: no backend is left, so it is spilled"
	case "passed":
		return "passed to the kernel: the destination is no VIP's address"
	case "dropped":
		return "dropped: " + t.GetEnd().GetReason()
	}
	return t.Verdict
}

func (e explanation) tracked() string {
	tracked := e.told.Tracked
	switch {
	case tracked == nil && e.offline:
		return "a plan file has no connections: the hash decides"
	case tracked == nil:
		return "no connection of this flow is tracked: the hash decides"
	case !tracked.Decides:
		return fmt.Sprintf("worker %d has it at %s (%s), which may no longer keep it: the hash decides", tracked.Worker, tracked.Backend, tracked.Class)
	}
	idle := (time.Duration(tracked.IdleMs) * time.Millisecond).String()
	if tracked.Backend != e.told.BackendByHash {
		return fmt.Sprintf("worker %d has it at %s (%s, idle %s), which overrides the hash", tracked.Worker, tracked.Backend, tracked.Class, idle)
	}
	return fmt.Sprintf("worker %d has it at %s (%s, idle %s), as the hash says, too", tracked.Worker, tracked.Backend, tracked.Class, idle)
}

// routeOption: the backends that agents try next, and why.
func (e explanation) routeOption() string {
	why := "the bucket moves"
	if e.told.SecondChance {
		why = "a second chance, because earlier tables had them in this slot"
	}
	return strings.Join(e.told.RouteOption, ", ") + ": " + why
}

// connectionID: what it says, and whether it decides.
func (e explanation) connectionID() string {
	id := e.told.GetConnectionId()
	if id == nil {
		return "counts for nothing: the service has no quic_lb"
	}
	made := "plain"
	if id.GetEncrypted() {
		made = "encrypted"
	}
	says := fmt.Sprintf("config %d (%s), server id %s", id.GetConfig(), made, id.GetServerId())
	switch id.GetByFlow() {
	case "":
		return says + ", which is " + id.GetBackend() + ": decides"
	case "unavailable":
		return says + ", which is " + id.GetBackend() + ", and that is down or disabled: the flow decides (unavailable)"
	case "unknown_server":
		return says + ", which no backend of the service has: the flow decides (unknown_server)"
	case "unknown_config":
		return "the service has no such config: the flow decides (unknown_config)"
	case "unroutable":
		return "config id 7 names no server: the flow decides (unroutable)"
	case "too_short":
		return "shorter than its config says: the flow decides (too_short)"
	}
	return "the flow decides (" + id.GetByFlow() + ")"
}

// multipath: what selects, and its bucket.
func (e explanation) multipath() string {
	says := e.told.GetMultipath()
	if says == nil {
		return "counts for nothing: the service has no `mptcp: {}`"
	}
	bucket := fmt.Sprintf("bucket %d decides", says.GetBucket())
	switch by := says.GetBy(); by {
	case "key_v0", "key_v1":
		return fmt.Sprintf("a connection of version %s, which gets key %s, whose token is %s: %s", strings.TrimPrefix(by, "key_v"), says.GetKey(), says.GetToken(), bucket)
	case "token":
		return fmt.Sprintf("a join of the connection with token %s: %s", says.GetToken(), bucket)
	case "timestamp":
		return fmt.Sprintf("echoes timestamp %s, whose lowest bits are those of a token: %s", says.GetToken(), bucket)
	default:
		return "the flow decides (" + by + ")"
	}
}

// hexRows are 16 bytes each.
func hexRows(hex string) []string {
	var rows []string
	for row := range chunks(hex, 32) {
		var words []string
		for word := range chunks(row, 4) {
			words = append(words, word)
		}
		rows = append(rows, strings.Join(words, " "))
	}
	return rows
}

func chunks(text string, size int) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for len(text) > 0 {
			n := min(size, len(text))
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}
