package show

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func showBackendsCommand() *cobra.Command {
	v := verb{show: showBackends}
	command := &cobra.Command{
		Use:   "backends [NAME...]",
		Short: "Show the backends of each service with state and reason; or one with its health checks",
		Long: "Shows the backends of each service with state and reason: all, or those that several\n" +
			"names, of backends or services, or a pattern choose. A single backend is shown with\n" +
			"its health checks.",
		Example: "  guideway show backends\n" +
			"  guideway show backends web-1 -o json\n" +
			"  guideway show backends 'web-*' --only-trouble",
		ValidArgsFunction: machine.CompleteNames(&v.machine, machine.BackendNames),
		RunE: func(command *cobra.Command, names []string) error {
			if len(names) == 1 && !strings.ContainsAny(names[0], `*?[\`) && v.choice.IsAll() && !v.watch.on {
				return showBackend(command.Context(), v.machine, names[0], command.OutOrStdout(), command.ErrOrStderr(), v.format)
			}
			v.choice.Patterns = names
			return v.run(command)
		},
	}
	v.addFlags(command)
	v.addChoice(command)
	return command
}

// shownDetail is one backend as each set of pools uses it, and its checks.
type shownDetail struct {
	Backends []shownBackend `json:"backends"`
	Checks   []shownCheck   `json:"checks"`
}

type shownCheck struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	Address  string   `json:"address"`
	Via      string   `json:"via"`
	Pools    []string `json:"pools"`
	Interval string   `json:"interval"`
	Timeout  string   `json:"timeout"`
	Rise     uint32   `json:"rise"`
	Fall     uint32   `json:"fall"`
	Verdict  string   `json:"verdict"`
	Since    string   `json:"since,omitempty"`
	// Probes in a row that contradict the verdict.
	Contradicting uint32 `json:"contradicting"`
	// Absent: there was none yet.
	Last *shownProbe `json:"last,omitempty"`

	ago string
}

type shownProbe struct {
	Passed         bool    `json:"passed"`
	Result         string  `json:"result"`
	LatencySeconds float64 `json:"latency_seconds"`
	At             string  `json:"at"`
	AgeSeconds     float64 `json:"age_seconds"`
	Warning        string  `json:"warning,omitempty"`
	// Of the server's certificate.
	Expires string `json:"certificate_expires,omitempty"`
}

func showBackend(ctx context.Context, m machine.Machine, name string, stdout, stderr io.Writer, format string) error {
	var response *controllerv1.GetBackendResponse
	if err := m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		response, err = client.GetBackend(ctx, &controllerv1.GetBackendRequest{Name: name})
		return err
	}); err != nil {
		return err
	}
	shown := shownDetail{Backends: []shownBackend{}, Checks: []shownCheck{}}
	for _, b := range response.Backends {
		shown.Backends = append(shown.Backends, backendOfState(b))
	}
	if err := m.AskPackets(ctx, func(ctx context.Context, client machine.Packets) error {
		counters, err := client.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
		countBackends(shown.Backends, counters.GetBackends())
		return err
	}); err != nil {
		fmt.Fprintf(stderr, "warning: %v\nwarning: packets are not shown\n", err)
	}
	now := time.Now()
	for _, c := range response.Checks {
		shown.Checks = append(shown.Checks, checkOf(c, now))
	}
	if format != "table" && format != "wide" {
		return commandline.PrintValue(stdout, format, shown)
	}
	if err := listBackends(shown.Backends).Print(stdout, format); err != nil {
		return err
	}
	fmt.Fprintln(stdout)
	return listChecks(shown.Checks).Print(stdout, format)
}

func checkOf(c *controllerv1.BackendCheck, now time.Time) shownCheck {
	shown := shownCheck{
		Name: c.Name, Kind: c.Kind, Address: c.Address, Via: c.Via, Pools: c.Pools, Interval: c.Interval.AsDuration().String(),
		Timeout: c.Timeout.AsDuration().String(), Rise: c.Rise, Fall: c.Fall, Verdict: c.Verdict, Since: output.At(c.Since),
		Contradicting: c.Contradicting, ago: output.Ago(c.Since),
	}
	if last := c.Last; last != nil {
		shown.Last = &shownProbe{
			Passed: last.Passed, Result: last.Result, LatencySeconds: last.Latency.AsDuration().Seconds(), At: output.At(last.At),
			AgeSeconds: now.Sub(last.At.AsTime()).Seconds(), Warning: last.Warning, Expires: output.At(last.CertificateExpires),
		}
	}
	return shown
}

func listChecks(checks []shownCheck) output.Listing {
	found := output.Listing{
		Value:    checks,
		Header:   []string{"CHECK", "KIND", "VERDICT", "SINCE", "LAST PROBE", "LATENCY", "AGE", "RESULT", "ADDRESS", "VIA", "INTERVAL", "TIMEOUT", "POOLS"},
		WideFrom: 8,
		None:     "no health checks: it is taken to be healthy",
	}
	for i, c := range checks {
		outcome, latency, age, result := "none yet", "-", "-", "-"
		if c.Last != nil {
			outcome, result = c.outcome(), c.Last.Result
			latency = seconds(c.Last.LatencySeconds, 10*time.Microsecond)
			age = seconds(c.Last.AgeSeconds, 10*time.Millisecond)
			if c.Last.Warning != "" {
				result += "; " + c.Last.Warning
			}
		}
		found.Rows = append(found.Rows, []string{
			nameAmong(checks, i), c.Kind, c.Verdict, c.ago, outcome, latency, age, result,
			c.Address, c.Via, c.Interval, c.Timeout, strings.Join(c.Pools, ","),
		})
	}
	return found
}

// nameAmong checks: one of several addresses, or of several kinds of pools, has its
// address or its pools beside the name.
func nameAmong(checks []shownCheck, i int) string {
	name, text := checks[i].Name, checks[i].Name
	others := func(differ func(shownCheck) bool) bool {
		return slices.ContainsFunc(checks, func(c shownCheck) bool { return c.Name == name && differ(c) })
	}
	if others(func(c shownCheck) bool { return c.Address != checks[i].Address }) {
		text += " at " + checks[i].Address
	}
	if others(func(c shownCheck) bool {
		return c.Address == checks[i].Address && !slices.Equal(c.Pools, checks[i].Pools)
	}) {
		text += " for " + strings.Join(checks[i].Pools, ",")
	}
	return text
}

// outcome of the latest probe, and how near a change of the verdict is.
func (c shownCheck) outcome() string {
	text, needed := "failed", c.Fall
	if c.Last.Passed {
		text, needed = "passed", c.Rise
	}
	if c.Contradicting > 0 {
		text += fmt.Sprintf(" (%d of %d)", c.Contradicting, needed)
	}
	return text
}

func seconds(s float64, unit time.Duration) string {
	return time.Duration(s * float64(time.Second)).Round(unit).String()
}
