package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/blackbox"
	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/logging"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/notify"
	"github.com/guideway/guideway/controller/web"
)

// probeFlags are what people give.
type probeFlags struct {
	version   string
	config    []string
	once      bool
	format    string
	listen    string
	logFormat string
	verbose   bool
	parser    blackbox.Parser
	settings  blackbox.Settings
}

// ProbeCommand is `guideway probe`.
func ProbeCommand(version string) *cobra.Command {
	f := probeFlags{version: version, parser: blackbox.Parser{Lookup: blackbox.LookupHost}}
	command := &cobra.Command{
		Use:   "probe TARGET...",
		Short: "Connect to services as clients do, from many source ports",
		Long: "Connects to service addresses from wherever it runs: it needs neither root nor a\n" +
			"controller. Each round tries every target from 64 other source ports, so that the\n" +
			"router's ECMP sends attempts over all load balancers; the share that fails hints\n" +
			"at how many of them, or of the backends, are broken.\n\n" +
			"Goes on until it is ended, logs what changes, and serves metrics with --listen.\n" +
			"With --once it does one round, prints it, and ends with 1 if an attempt failed.\n\n" +
			"A target is one of\n" +
			"  tcp://ADDRESS:PORT                 a connection is accepted\n" +
			"  http://HOST[:PORT][/PATH]          a request is answered, status 2xx or 3xx\n" +
			"  https://HOST[:PORT][/PATH]         the same, and the certificate is good\n" +
			"  tls://HOST:PORT                    a TLS handshake, and the certificate is good\n" +
			"  dns://ADDRESS[:PORT]/NAME[?type=A] a name is looked up, and has a record\n" +
			"  udp://ADDRESS:PORT?payload=TEXT    a datagram is answered; also payload_hex,\n" +
			"                                     answer (what the answer has) and answer_hex\n" +
			"where a HOST's name stands for all its addresses, found once, at the start.",
		Example: "  guideway probe --once http://203.0.113.10/ tcp://[2001:db8:a::10]:443\n" +
			"  guideway probe --once --config /etc/guideway/guideway.yaml -o json\n" +
			"  guideway probe --listen 127.0.0.1:9472 https://www.example.com/",
		Args: cobra.ArbitraryArgs,
		RunE: func(command *cobra.Command, args []string) error {
			if command.Flags().Changed("output") && !f.once {
				return commandline.Usagef("--output is for --once: without it changes go to the log, and numbers to --listen")
			}
			return runProbe(command.Context(), f, args, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	flags := command.Flags()
	flags.StringArrayVar(&f.config, "config", nil, "try the VIPs of this config's services: file or directory; may be repeated")
	flags.BoolVar(&f.once, "once", false, "one round; ends with 0 if every attempt was answered, else with 1")
	flags.StringVar(&f.listen, "listen", "", "`ADDRESS` to serve /metrics on, as in 127.0.0.1:9472")
	flags.IntVar(&f.settings.SourcePorts, "source-ports", 64, "attempts in each round, each from another source port")
	flags.DurationVar(&f.settings.Interval, "interval", 10*time.Second, "from one round to the next")
	flags.DurationVar(&f.settings.Timeout, "timeout", 2*time.Second, "of one attempt")
	flags.StringVar(&f.parser.CAFile, "ca-file", "", "`FILE` with the authorities of https and tls targets (default: the system's)")
	flags.BoolVar(&f.parser.Unverified, "insecure", false, "any certificate passes")
	commandline.AddOutput(command, &f.format, commandline.TextFormats)
	commandline.AddChoice(command, &f.logFormat, "log-format", "", "how to log", "text", "json")
	flags.BoolVar(&f.verbose, "verbose", false, "log debug messages too")
	return command
}

func runProbe(ctx context.Context, f probeFlags, args []string, stdout, stderr io.Writer) error {
	targets, left, err := probeTargets(ctx, f, args)
	if err != nil {
		return err
	}
	f.settings.Ports = blackbox.LocalPorts()
	if f.once { // no round follows, that would have to wait
		f.settings.Interval = max(f.settings.Interval, 2*f.settings.Timeout)
	}
	if err := f.settings.Check(len(targets)); err != nil {
		return commandline.Usagef("%w", err)
	}
	metrics := blackbox.NewMetrics(f.version, targets)
	log := logging.New(f.logFormat, f.verbose)
	if !f.once {
		for _, what := range left {
			log.Warn("not tried", "what", what)
		}
		return followTargets(ctx, log, f.listen, metrics, blackbox.New(log, f.settings, targets, metrics))
	}
	for _, what := range left {
		fmt.Fprintf(stderr, "warning: not tried: %s\n", what)
	}
	rounds, err := blackbox.New(log, f.settings, targets, metrics).Once(ctx)
	if err != nil {
		return fmt.Errorf("the round did not end: %w", err)
	}
	return printRounds(stdout, f.format, rounds)
}

// probeTargets of the arguments and the config; what of the config is left out,
// and why.
func probeTargets(ctx context.Context, f probeFlags, args []string) (targets []blackbox.Target, left []string, err error) {
	for _, text := range args {
		found, err := f.parser.Parse(ctx, text)
		if errors.Is(err, blackbox.ErrSyntax) {
			return nil, nil, commandline.Usagef("%w", err)
		}
		if err != nil {
			return nil, nil, err
		}
		targets = append(targets, found...)
	}
	if len(f.config) > 0 {
		found, missing, err := blackbox.Load(f.config...)
		if err != nil {
			return nil, nil, err
		}
		targets, left = append(targets, found...), missing
	}
	if len(targets) == 0 && len(f.config) > 0 {
		return nil, nil, fmt.Errorf("the config has no VIP that can be tried: %q", left)
	}
	if len(targets) == 0 {
		return nil, nil, commandline.Usagef("there is no target: give some, like %s, or --config FILE: see `guideway probe --help`", blackbox.Examples)
	}
	seen := map[string]bool{}
	for _, target := range targets {
		if seen[target.Title()] {
			return nil, nil, commandline.Usagef("%s is given twice: name each target once", target.Title())
		}
		seen[target.Title()] = true
	}
	return targets, left, nil
}

// followTargets until the context ends.
func followTargets(ctx context.Context, log *slog.Logger, listen string, metrics *blackbox.Metrics, prober *blackbox.Prober) error {
	if listen != "" {
		listener, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("--listen %s: %w: give an address of this machine and a port that is free, like 127.0.0.1:9472", listen, err)
		}
		var tasks sync.WaitGroup
		defer tasks.Wait()
		begin := func(task func(context.Context)) { tasks.Go(func() { task(ctx) }) }
		server := web.NewServer(web.MetricsHandler(begin, metrics.Page))
		defer server.Close()
		tasks.Go(func() {
			if err := server.Serve(web.Limit(listener)); !errors.Is(err, http.ErrServerClosed) {
				log.Error("HTTP server ended", "address", listen, "error", err)
			}
		})
		log.Info("serving /metrics and /healthz", "address", listener.Addr())
	}
	manager := notify.New()
	manager.Ready()
	defer manager.Stopping()
	prober.Run(ctx)
	return nil
}

type shownRound struct {
	Target      string             `json:"target"`
	Service     string             `json:"service,omitempty"`
	VIP         string             `json:"vip"`
	Protocol    string             `json:"protocol"`
	Port        uint16             `json:"port"`
	SourcePorts int                `json:"source_ports"`
	Answered    int                `json:"answered"`
	Failed      int                `json:"failed"`
	LatencyMS   *shownLatency      `json:"latency_ms,omitempty"`
	Failures    []blackbox.Failure `json:"failures"`
	Hint        string             `json:"hint,omitempty"`
	Warning     string             `json:"warning,omitempty"`
}

type shownLatency struct {
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
	Max    float64 `json:"max"`
}

// printRounds, and fail if an attempt did.
func printRounds(stdout io.Writer, format string, rounds []blackbox.Round) error {
	shown := []shownRound{}
	found := output.Listing{Header: []string{"TARGET", "ANSWERED", "MEDIAN", "P90", "MAX"}}
	failed := false
	for _, round := range rounds {
		shown = append(shown, showRound(round))
		failed = failed || round.Failed() > 0
		found.Rows = append(found.Rows, []string{
			round.Target.Title(), fmt.Sprintf("%d of %d", len(round.Latencies), round.Tried),
			latencyText(round, 0.5), latencyText(round, 0.9), latencyText(round, 1),
		})
	}
	found.Value = struct {
		Targets []shownRound `json:"targets"`
	}{shown}
	if err := found.Print(stdout, format); err != nil {
		return err
	}
	if format == "table" {
		printReasons(stdout, rounds)
	}
	if failed {
		return commandline.ErrReported
	}
	return nil
}

// printReasons below the table.
func printReasons(stdout io.Writer, rounds []blackbox.Round) {
	for _, round := range rounds {
		if round.Failed() > 0 {
			fmt.Fprintf(stdout, "\n%s: %s\n  %s\n", round.Target.Title(), round.Reason(), round.Hint())
		}
		if round.Warning != "" {
			fmt.Fprintf(stdout, "\n%s: warning: %s\n", round.Target.Title(), round.Warning)
		}
	}
}

func latencyText(round blackbox.Round, quantile float64) string {
	if len(round.Latencies) == 0 {
		return "-"
	}
	return strconv.FormatFloat(milliseconds(round.Quantile(quantile)), 'f', 1, 64) + " ms"
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func showRound(round blackbox.Round) shownRound {
	t := round.Target
	shown := shownRound{
		Target: t.Name, Service: t.Service, VIP: t.Address.String(), Protocol: t.Protocol, Port: t.Port,
		SourcePorts: round.Tried, Answered: len(round.Latencies), Failed: round.Failed(),
		Failures: append([]blackbox.Failure{}, round.Failures...), Hint: round.Hint(), Warning: round.Warning,
	}
	if len(round.Latencies) > 0 {
		shown.LatencyMS = &shownLatency{
			Median: milliseconds(round.Quantile(0.5)), P90: milliseconds(round.Quantile(0.9)), Max: milliseconds(round.Quantile(1)),
		}
	}
	return shown
}
