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
	"github.com/guideway/guideway/proto/plainjson"
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

func showBackend(ctx context.Context, m machine.Machine, name string, stdout, stderr io.Writer, format string) error {
	var response *controllerv1.GetBackendResponse
	if err := m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		response, err = client.GetBackend(ctx, &controllerv1.GetBackendRequest{Name: name, WithCounters: true})
		return err
	}); err != nil {
		return err
	}
	warnNotCounted(response.NotCounted, stderr)
	if format != "table" && format != "wide" {
		return commandline.PrintValue(stdout, format, plainjson.Value{Message: response})
	}
	if err := listBackends(response.Backends).Print(stdout, format); err != nil {
		return err
	}
	if text := answersText(response.Backends); text != "" {
		fmt.Fprintf(stdout, "\nits agent measured in the latest minute: %s\n", text)
	}
	fmt.Fprintln(stdout)
	return listChecks(response.Checks).Print(stdout, format)
}

// answersText of a backend, which is the same as each set of pools uses it; empty: they are not
// measured.
func answersText(backends []*controllerv1.Backend) string {
	if len(backends) == 0 || backends[0].Answers == nil {
		return ""
	}
	a := backends[0].Answers
	times := "no answers"
	if a.Measured > 0 {
		times = fmt.Sprintf("%d answers, half within %s, 99 %% within %s", a.Measured, within(a.GetP50Seconds()), within(a.GetP99Seconds()))
	}
	return fmt.Sprintf("%s; %s requests open at once, %d connections, %d not accepted yet, %d RSTs", times, open(a), a.Connections, a.AcceptQueue, a.Resets)
}

func listChecks(checks []*controllerv1.BackendCheck) output.Listing {
	found := output.Listing{
		Header:   []string{"CHECK", "KIND", "VERDICT", "SINCE", "LAST PROBE", "LATENCY", "AGE", "RESULT", "ADDRESS", "VIA", "INTERVAL", "TIMEOUT", "POOLS"},
		WideFrom: 8,
		None:     "no health checks: it is taken to be healthy",
	}
	for i, c := range checks {
		outcome, latency, age, result := "none yet", "-", "-", "-"
		if last := c.Last; last != nil {
			outcome, result = outcomeOf(c), last.Result
			latency = briefly(last.LatencySeconds)
			age = time.Since(last.At.AsTime()).Round(10 * time.Millisecond).String()
			if last.Warning != "" {
				result += "; " + last.Warning
			}
		}
		found.Rows = append(found.Rows, []string{
			nameAmong(checks, i), c.Kind, c.Verdict, output.Ago(c.Since), outcome, latency, age, result,
			c.Address, c.Via, c.Interval.AsDuration().String(), c.Timeout.AsDuration().String(), strings.Join(c.Pools, ","),
		})
	}
	return found
}

// nameAmong checks: one of several addresses, or of several kinds of pools, has its
// address or its pools beside the name.
func nameAmong(checks []*controllerv1.BackendCheck, i int) string {
	name, text := checks[i].Name, checks[i].Name
	others := func(differ func(*controllerv1.BackendCheck) bool) bool {
		return slices.ContainsFunc(checks, func(c *controllerv1.BackendCheck) bool { return c.Name == name && differ(c) })
	}
	if others(func(c *controllerv1.BackendCheck) bool { return c.Address != checks[i].Address }) {
		text += " at " + checks[i].Address
	}
	if others(func(c *controllerv1.BackendCheck) bool {
		return c.Address == checks[i].Address && !slices.Equal(c.Pools, checks[i].Pools)
	}) {
		text += " for " + strings.Join(checks[i].Pools, ",")
	}
	return text
}

// outcomeOf the latest probe, and how near a change of the verdict is.
func outcomeOf(c *controllerv1.BackendCheck) string {
	text, needed := "failed", c.Fall
	if c.Last.Passed {
		text, needed = "passed", c.Rise
	}
	if c.Contradicting > 0 {
		text += fmt.Sprintf(" (%d of %d)", c.Contradicting, needed)
	}
	return text
}
