package brain

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/compile"
)

var secondChance = strings.Replace(oneService, "pools: [web]}", "pools: [web], second_chance: true, encap: geneve}", 1)

// expectTables of the service's group in the wanted plan: the present one, and those before.
func (w *world) expectTables(want ...compile.Table) {
	w.t.Helper()
	if got := compile.Tables(w.last.Plan.GetGroups()[0]); !slices.EqualFunc(got, want, maps.Equal) {
		w.t.Errorf("tables %v, want %v", got, want)
	}
}

var (
	both   = compile.Table{"web-1": 1, "web-2": 1}
	first  = compile.Table{"web-1": 1}
	second = compile.Table{"web-2": 1}
)

func TestAPlanHasTheTablesBeforeItEachOnce(t *testing.T) {
	w := start(t, secondChance)
	// While one was not probed nothing was announced, so its table had no connections.
	w.settle(true, "10.1.0.11")
	w.settle(true, "10.1.0.12")
	w.expectTables(both)
	for range 3 {
		w.settle(false, "10.1.0.12")
	}
	w.expectTables(first, both)
	for range 2 {
		w.settle(true, "10.1.0.12")
	}
	w.expectTables(both, first)
	for range 3 {
		w.settle(false, "10.1.0.11")
	}
	w.expectTables(second, both, first)
	if required := w.last.Plan.GetRequires(); !slices.Contains(required, "second-chance") {
		t.Errorf("the plan requires %v", required)
	}
}

func TestARestartedControllerKnowsTheTablesOfTheRunningPlan(t *testing.T) {
	w := start(t, secondChance)
	w.settle(true, "10.1.0.11", "10.1.0.12")
	for range 3 {
		w.settle(false, "10.1.0.12")
	}
	again := startCold(t, secondChance)
	again.connect(w.last.Plan)
	again.pass(2 * coalesce)
	again.expectTables(first, both)
}

// A machine that comes back with another config than its forwarder's plan is of
// decides on its plan before its probes have: connections are made by it all the same.
func TestAPlanMadeBeforeTheFirstProbesCountsWhenItStays(t *testing.T) {
	w := start(t, secondChance)
	w.settle(true, "10.1.0.11", "10.1.0.12")
	heavy := strings.Replace(secondChance, "address: 10.1.0.11", "address: 10.1.0.11, weight: 2", 1)
	again := startCold(t, heavy)
	again.connect(w.last.Plan)
	again.pass(2 * coalesce)
	uneven := compile.Table{"web-1": 2, "web-2": 1}
	again.expectTables(uneven, both)
	again.settle(true, "10.1.0.11", "10.1.0.12")
	for range 3 {
		again.settle(false, "10.1.0.12")
	}
	again.expectTables(compile.Table{"web-1": 2}, uneven, both)
}

func TestWithoutASecondChanceNoTableIsRemembered(t *testing.T) {
	w := servingOne(t)
	for range 3 {
		w.settle(false, "10.1.0.12")
	}
	w.expectTables(first)
}
