package brain

// The earlier tables of services with a second chance. After a restart the controller reads
// them from the plan that its forwarder runs, and from disk.

import (
	"slices"

	"github.com/guideway/guideway/controller/compile"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// groupTables of a group in the wanted plan.
type groupTables struct {
	// The present one, unless it is empty, and those before.
	tables []compile.Table
	// Those before alone.
	earlier []compile.Table
	// Connections may have been made by the present one. Before every backend
	// was probed no route is announced, and tables of some of the backends would
	// displace those that had connections.
	isServed bool
}

// tablesState is by group.
type tablesState map[string]groupTables

func (t tablesState) former(group string) []compile.Table {
	known := t[group]
	if known.isServed {
		return known.tables
	}
	return known.earlier
}

// after the plan, by group.
func (t tablesState) after(plan *planv1.Plan, isServed bool) tablesState {
	chances := map[string]bool{}
	for _, service := range plan.GetServices() {
		if service.GetSecondChance() != nil {
			chances[service.GetGroup()] = true
		}
	}
	after := tablesState{}
	for _, group := range plan.GetGroups() {
		if !chances[group.GetName()] {
			continue
		}
		next := groupTables{tables: compile.Tables(group), earlier: compile.EarlierTables(group), isServed: isServed}
		former := t[group.GetName()]
		if former.isServed && slices.EqualFunc(former.tables, next.tables, compile.SameTable) {
			next.isServed = true
		}
		after[group.GetName()] = next
	}
	return after
}

// noteServed: once every backend was probed, and nothing that is known by now is
// missing in the plan, connections are made by its tables.
func (p *planState) noteServed() {
	for name, known := range p.tables {
		if p.outdatedSince.IsZero() && !known.isServed {
			known.isServed = true
			p.tables[name] = known
		}
	}
}
