package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
)

// Multipath is the result of a run with connections of Multipath TCP. The names of its
// fields in JSON are a contract.
type Multipath struct {
	// Mode of the service: stateless, or stateful for comparison.
	Mode   string           `json:"mode"`
	Events []MultipathEvent `json:"events"`
	// Kernel counters by their names without prefix: sums over all backends.
	Kernel map[string]uint64 `json:"kernel"`

	Whole `json:"-"`
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
	Remarks `json:"-"`
	Rounds  int64 `json:"-"`
}

// Good if everything went as it should.
func (r *Multipath) Good() bool { return good(r.remarks(), r.Problems) }

func (r *Multipath) remarks() (events []named) {
	for i := range r.Events {
		events = append(events, named{r.Events[i].Name, &r.Events[i].Remarks})
	}
	return events
}

// Write the report as JSON.
func (r *Multipath) Write(path string) error { return writeJSON(path, r) }

// Print the result on one screen: first what matters.
func (r *Multipath) Print(output io.Writer) {
	out := newLines(output)
	expected := asExpected
	if r.Mode != "stateless" {
		expected = "nothing is expected of joins in this mode"
	}
	transfers, broken := 0, 0
	for _, e := range r.Events {
		transfers, broken = transfers+e.Transfers, broken+e.Broken
	}
	out.line("")
	out.verdict(r.Good(), "%d of %s transfers broken (%s): %s", broken, thousands(transfers), r.Mode, r.verdict(r.remarks(), expected))
	out.line("")
	out.line("%-30s %9s %6s %8s %8s %12s", "what happened", "transfers", "broken", "joins", "of", "bytes by")
	out.line("%-30s %9s %6s %8s %8s %12s", "", "", "", "", "begun", "joins")
	for _, e := range r.Events {
		out.line("%-30s %9d %6d %8d %8d %12s", e.Words, e.Transfers, e.Broken, e.Joins, e.JoinsWanted, thousands(int(e.SecondSubflowBytes)))
		out.detail(fmt.Sprintf("%s rounds, %d with wrong bytes", thousands(int(e.Rounds)), e.DigestErrors))
		out.detail(e.Detail)
	}
	out.line("")
	out.line("the backends' kernels counted:")
	for _, name := range slices.Sorted(maps.Keys(r.Kernel)) {
		out.line("  %-24s %d", name, r.Kernel[name])
	}
	r.print(out, r.remarks())
}
