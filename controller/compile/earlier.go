package compile

import (
	"maps"
	"slices"

	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// A connection that no load balancer has an entry for may have been begun by an
// earlier table than the present one: the machine that had the entry is dead, or
// the router sends the connection to another one now. So plans have, for groups
// of services with a second chance, the tables that were before.

// earlierTablesMax of a group (EARLIER_TABLES_MAX of plan/src/limits.rs).
const earlierTablesMax = 8

// Table is what the forwarder makes a Maglev table of: the weights of the
// backends that take new connections, by name.
type Table map[string]uint32

// Tables of a group that has a second chance: the one in the plan, unless it is
// empty, and those before it, the latest first.
func Tables(group *planv1.Group) []Table {
	present := presentTable(group)
	tables := EarlierTables(group)
	if len(present) == 0 {
		return tables
	}
	return slices.Concat([]Table{present}, tables)
}

// EarlierTables are those before the one in the plan.
func EarlierTables(group *planv1.Group) []Table {
	var tables []Table
	table := presentTable(group)
	for _, earlier := range group.GetEarlier() {
		table = maps.Clone(table)
		for _, differs := range earlier.GetDifferences() {
			if differs.GetWeight() == 0 {
				delete(table, differs.GetBackend())
			} else {
				table[differs.GetBackend()] = differs.GetWeight()
			}
		}
		tables = append(tables, table)
	}
	return tables
}

func presentTable(group *planv1.Group) Table {
	table := Table{}
	for _, m := range group.GetMembers() {
		if m.GetState() == planv1.BackendState_BACKEND_STATE_ACTIVE && m.GetWeight() > 0 {
			table[m.GetBackend()] = m.GetWeight()
		}
	}
	return table
}

// secondChanceGroups are those of services that have it.
func secondChanceGroups(services []config.Service) map[string]bool {
	groups := map[string]bool{}
	for i := range services {
		if services[i].SecondChance {
			groups[services[i].Group] = true
		}
	}
	return groups
}

// setEarlier gives a group the tables that were before: former ones, the latest
// first, without any that is the same as a later one. The oldest are left out
// where there are too many.
func setEarlier(group *planv1.Group, former []Table) {
	present := presentTable(group)
	later, seen := present, []Table{present}
	group.Earlier = nil
	for _, table := range former {
		isSeen := slices.ContainsFunc(seen, func(other Table) bool { return SameTable(table, other) })
		if isSeen || len(table) == 0 {
			continue
		}
		if len(group.Earlier) == earlierTablesMax {
			return
		}
		group.Earlier = append(group.Earlier, &planv1.EarlierTable{Differences: differences(later, table)})
		later, seen = table, append(seen, table)
	}
}

// differences of an earlier table from the one that followed, in order of name.
func differences(later, earlier Table) []*planv1.EarlierMember {
	names := map[string]bool{}
	for name := range maps.Keys(later) {
		names[name] = earlier[name] != later[name]
	}
	for name := range maps.Keys(earlier) {
		names[name] = earlier[name] != later[name]
	}
	var list []*planv1.EarlierMember
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if names[name] {
			list = append(list, &planv1.EarlierMember{Backend: name, Weight: earlier[name]})
		}
	}
	return list
}

// SameTable: whether the forwarder makes the same of both. Only the proportion of
// weights counts, and a slow start multiplies all of them.
func SameTable(a, b Table) bool {
	if len(a) != len(b) {
		return false
	}
	var inA, inB uint64
	for name, weight := range a {
		other, has := b[name]
		if !has {
			return false
		}
		if inA == 0 {
			inA, inB = uint64(weight), uint64(other)
		}
		if uint64(weight)*inB != uint64(other)*inA {
			return false
		}
	}
	return true
}
