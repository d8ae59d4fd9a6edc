package report

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"
	"time"
)

// Multipath is the result of a run with connections of Multipath TCP. The names of its
// fields in JSON are a contract.
type Multipath struct {
	// Mode of the service: stateless, or stateful for comparison.
	Mode   string           `json:"mode"`
	Events []MultipathEvent `json:"events"`
	// Kernel counters by their names without prefix: sums over all backends.
	Kernel map[string]uint64 `json:"kernel"`

	// For people.
	Problems []string      `json:"-"`
	Duration time.Duration `json:"-"`
}

// MultipathEvent is the result of one event.
type MultipathEvent struct {
	Name      string `json:"name"`
	Transfers int    `json:"transfers"`
	Broken    int    `json:"broken"`
	// DigestErrors are rounds whose bytes came back changed.
	DigestErrors int `json:"digest_errors"`
	// JoinsWanted were begun by the client, Joins came about at backends.
	JoinsWanted uint64 `json:"joins_wanted"`
	Joins       uint64 `json:"joins"`
	// SecondSubflowBytes went by subflows that connections were joined by.
	SecondSubflowBytes uint64 `json:"second_subflow_bytes"`

	// For people.
	Detail   string   `json:"-"`
	Rounds   int64    `json:"-"`
	Problems []string `json:"-"`
}

// Problem is what makes the event fail.
func (e *MultipathEvent) Problem(format string, args ...any) {
	e.Problems = append(e.Problems, fmt.Sprintf(format, args...))
}

// Good if everything went as it should.
func (r *Multipath) Good() bool {
	return len(r.Problems) == 0 && !slices.ContainsFunc(r.Events, func(e MultipathEvent) bool { return len(e.Problems) > 0 })
}

// Write the report as JSON.
func (r *Multipath) Write(path string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(content, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// Print the result on one screen.
func (r *Multipath) Print(output io.Writer) {
	fmt.Fprintf(output, "\nmode: %s\n", r.Mode)
	table := tabwriter.NewWriter(output, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "event\ttransfers\tbroken\trounds\twrong digests\tjoins begun\tcame about\tbytes by joins\t\t\n")
	for _, e := range r.Events {
		verdict := "ok"
		if len(e.Problems) > 0 {
			verdict = "FAILED"
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%d\t%d\t%d\t%s\t%s\t\n", e.Name, e.Transfers, e.Broken, thousands(int(e.Rounds)), e.DigestErrors,
			e.JoinsWanted, e.Joins, thousands(int(e.SecondSubflowBytes)), verdict)
	}
	_ = table.Flush()
	for _, e := range r.Events {
		if e.Detail != "" {
			fmt.Fprintf(output, "  %s: %s\n", e.Name, e.Detail)
		}
	}
	fmt.Fprint(output, "the backends' kernels counted:\n")
	for _, name := range slices.Sorted(maps.Keys(r.Kernel)) {
		fmt.Fprintf(output, "  %-24s %d\n", name, r.Kernel[name])
	}
	for _, e := range r.Events {
		for _, problem := range e.Problems {
			fmt.Fprintf(output, "FAILED %s: %s\n", e.Name, problem)
		}
	}
	for _, problem := range r.Problems {
		fmt.Fprintf(output, "FAILED %s\n", problem)
	}
	verdict := "everything as expected"
	switch {
	case !r.Good():
		verdict = "NOT as expected"
	case r.Mode != "stateless":
		verdict = "nothing is expected of joins in this mode"
	}
	fmt.Fprintf(output, "%s, in %.0f s\n", verdict, r.Duration.Seconds())
}
