package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
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

// Print the result on one screen.
func (r *Multipath) Print(output io.Writer) {
	fmt.Fprintf(output, "\nmode: %s\n", r.Mode)
	table := tabwriter.NewWriter(output, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "event\ttransfers\tbroken\trounds\twrong digests\tjoins begun\tcame about\tbytes by joins\t\t\n")
	for _, e := range r.Events {
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\t%d\t%d\t%d\t%s\t%s\t\n", e.Name, e.Transfers, e.Broken, thousands(int(e.Rounds)), e.DigestErrors,
			e.JoinsWanted, e.Joins, thousands(int(e.SecondSubflowBytes)), e.verdict())
	}
	_ = table.Flush()
	printDetails(output, r.remarks())
	fmt.Fprint(output, "the backends' kernels counted:\n")
	for _, name := range slices.Sorted(maps.Keys(r.Kernel)) {
		fmt.Fprintf(output, "  %-24s %d\n", name, r.Kernel[name])
	}
	verdict := asExpected
	if r.Mode != "stateless" {
		verdict = "nothing is expected of joins in this mode"
	}
	r.print(output, r.remarks(), verdict)
}
