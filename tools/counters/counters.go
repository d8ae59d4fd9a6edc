// Package counters reads the definitions of metrics and drop reasons out of the
// sources, and keeps the tables in docs/counters.md equal to them.
//
// It guarantees that no definition is left out: a string in the sources of
// forwarder, controller, prober or agent that is a metric's name and no definition, as
// far as this package understands the source, is a problem. So is a metric
// whose labels it cannot find.
//
// It knows nothing of files: a Tree reads them.
package counters

import (
	"fmt"
	"slices"
	"strings"
)

// Document that has the tables.
const Document = "docs/counters.md"

// Tree is where sources are read from.
type Tree struct {
	// Paths of all files, sorted.
	Paths []string
	// Read a file; empty if it is not there.
	Read func(path string) string
}

// Metric as a program defines it.
type Metric struct {
	Name   string
	Kind   string
	Labels []string
	Help   string

	path string
	line int
}

// Reason to drop a packet.
type Reason struct {
	Name    string
	Meaning string
	Cause   string
}

// Problem at a place: what could not be understood.
type Problem struct {
	Path string
	Line int
	What string
}

// Programs that have metrics, by the name of their table.
var programs = []struct {
	name   string
	folder string
	read   func(path, text string) ([]Metric, []Problem)
}{
	{"metrics of the forwarder", "forwarder/src/", rustMetrics},
	{"metrics of the controller", "controller/", goMetrics},
	{"metrics of the speaker", "speaker/", goMetrics},
	{"metrics of the prober", "blackbox/", goMetrics},
	{"metrics of the agent", "agent/src/", rustMetrics},
}

const reasonsTable = "drop reasons"

// Definitions are what the sources define.
type Definitions struct {
	// Metrics by table, in the order of their sources.
	Metrics map[string][]Metric
	// Reasons in the order of their list.
	Reasons []Reason
}

// Names of all metrics.
func (d Definitions) Names() []string {
	var names []string
	for _, list := range d.Metrics {
		for _, metric := range list {
			names = append(names, metric.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Read the definitions.
func Read(t Tree) (Definitions, []Problem) {
	d := Definitions{Metrics: map[string][]Metric{}}
	var problems []Problem
	for _, program := range programs {
		var all []Metric
		for _, path := range t.Paths {
			if !strings.HasPrefix(path, program.folder) || !isProduct(path) {
				continue
			}
			found, wrong := program.read(path, t.Read(path))
			all, problems = append(all, found...), append(problems, wrong...)
		}
		seen := map[string]bool{}
		for _, metric := range all {
			if seen[metric.Name] {
				problems = append(problems, Problem{metric.path, metric.line, metric.Name + " is defined twice"})
			}
			seen[metric.Name] = true
		}
		if len(all) == 0 {
			problems = append(problems, Problem{What: "no " + program.name + " found in " + program.folder + ": did something move?"})
		}
		d.Metrics[program.name] = all
	}
	for _, path := range t.Paths {
		if strings.HasPrefix(path, "datapath/src/") && strings.HasSuffix(path, ".rs") {
			d.Reasons = append(d.Reasons, reasons(t.Read(path))...)
		}
	}
	return d, problems
}

func isProduct(path string) bool {
	return strings.HasSuffix(path, ".rs") && !strings.HasSuffix(path, "/tests.rs") || strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go")
}

// Tables of the document, by name.
func (d Definitions) tables() map[string][]string {
	tables := map[string][]string{}
	for name, metrics := range d.Metrics {
		rows := []string{"| metric | kind | meaning |", "|---|---|---|"}
		for _, metric := range metrics {
			labels := ""
			if len(metric.Labels) > 0 {
				labels = "{" + strings.Join(metric.Labels, ",") + "}"
			}
			rows = append(rows, fmt.Sprintf("| `%s%s` | %s | %s |", metric.Name, labels, metric.Kind, metric.Help))
		}
		tables[name] = rows
	}
	rows := []string{"| reason | meaning | usual cause |", "|---|---|---|"}
	for _, reason := range d.Reasons {
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", reason.Name, reason.Meaning, reason.Cause))
	}
	tables[reasonsTable] = rows
	return tables
}
