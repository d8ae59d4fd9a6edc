package brain

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/compile"
)

const slow = `
machine: {addresses: [10.0.0.1]}
services: [{name: web, vips: [{address: 203.0.113.10}], pools: [web]}]
pools:
- name: web
  health_checks: [tcp-80]
  slow_start: 40s
  backends: [{name: a, address: 10.1.0.1}, {name: b, address: 10.1.0.2, weight: 3}, {name: c, address: 10.1.0.3, weight: 0}]
health_checks: [{name: tcp-80, via: direct, tcp: {port: 80}, rise: 1, fall: 1}]
`

var three = []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"}

func (w *world) expectWeights(want ...uint32) {
	w.t.Helper()
	var got []uint32
	for _, m := range w.running.Groups[0].Members {
		got = append(got, m.Weight)
	}
	if !slices.Equal(got, want) {
		w.t.Errorf("weights %v, want %v", got, want)
	}
}

func TestABackendThatComesBackGetsItsWeightInFiveSteps(t *testing.T) {
	w := serving(t, slow, three...)
	w.expectWeights(1, 3, 0)
	w.settle(false, "10.1.0.1")
	generation := w.running.Generation
	w.settle(true, "10.1.0.1")
	w.expectWeights(1, 15, 0)
	if b := w.backend("a"); b.WeightPercent != 20 || b.Weight != 1 || !strings.HasSuffix(b.Reason, "status 200; slow start with 20 % of its weight") {
		t.Errorf("shown %+v", b)
	}
	for _, fifths := range []uint32{1, 2, 3, 4} {
		w.expectWeights(fifths, 15, 0)
		w.pass(10 * time.Second)
	}
	w.expectWeights(1, 3, 0)
	if b := w.backend("a"); b.WeightPercent != 100 || b.Reason != "tcp-80: status 200" {
		t.Errorf("shown %+v", b)
	}
	if plans := w.running.Generation - generation; plans != compile.AllFifths {
		t.Errorf("%d plans", plans)
	}
}

func TestAMachineThatStartsStartsNoBackendSlowly(t *testing.T) {
	w := start(t, slow)
	w.settle(true, "10.1.0.1")
	w.pass(time.Second)
	w.settle(true, "10.1.0.2", "10.1.0.3")
	w.expectWeights(1, 3, 0)
}

func TestABackendThatIsNewOrNoLongerDrainsStartsSlowly(t *testing.T) {
	w := serving(t, strings.Replace(slow, "{name: a, address: 10.1.0.1}, ", "", 1), three[1:]...)
	w.do(ConfigLoaded{Config: parse(t, slow)})
	w.settle(true, "10.1.0.1")
	w.expectWeights(1, 15, 0)
	w.pass(time.Minute)
	w.do(DrainBackend{Backend: "b", Drain: true})
	w.expectWeights(1, 3, 0)
	w.do(DrainBackend{Backend: "b"})
	w.expectWeights(5, 3, 0)
}

func TestASlowStartGoesOnOverAReloadAndBeginsAnewWhenTheBackendFails(t *testing.T) {
	w := serving(t, slow, three...)
	w.settle(false, "10.1.0.1")
	w.settle(true, "10.1.0.1")
	w.pass(20 * time.Second)
	w.expectWeights(3, 15, 0)
	w.do(ConfigLoaded{Config: parse(t, strings.Replace(slow, "weight: 3", "weight: 4", 1))})
	w.expectWeights(3, 20, 0)
	w.settle(false, "10.1.0.1")
	w.expectWeights(1, 4, 0)
	w.settle(true, "10.1.0.1")
	w.expectWeights(1, 20, 0)
}

func TestWeightsThatAreTooLargeForFiveTimesAreDividedInstead(t *testing.T) {
	w := serving(t, strings.NewReplacer("weight: 3", "weight: 1000", "10.1.0.1}", "10.1.0.1, weight: 8}").Replace(slow), three...)
	w.settle(false, "10.1.0.1")
	w.settle(true, "10.1.0.1")
	w.expectWeights(1, 1000, 0)
	w.pass(20 * time.Second)
	w.expectWeights(4, 1000, 0)
}

func TestASlowStartOfOnePoolChangesOneGroupOfThePlanAtEachStep(t *testing.T) {
	w := &world{t: t, state: New(time.Unix(0, 0)), now: time.Unix(0, 0), accepts: true}
	w.do(ConfigLoaded{Config: parse(t, strings.ReplaceAll(sharedConfig(50, 5, 4), "health_checks: [t], ", "health_checks: [t], slow_start: 40s, "))})
	w.connect(nil)
	for _, target := range w.last.Targets {
		w.do(ProbeResult{Target: target.Key(), OK: true})
	}
	w.pass(100 * time.Millisecond)
	fail(w, "10.1.0.0") // in p0
	w.settle(true, "10.1.0.0")
	w.settle(true, "10.1.0.0")
	for range compile.AllFifths - 1 {
		before := w.running
		w.pass(10 * time.Second)
		if w.running.Generation != before.Generation+1 {
			t.Errorf("generation %d after %d", w.running.Generation, before.Generation)
		}
		for i, group := range w.running.Groups {
			if isSame := group == before.Groups[i]; isSame != (group.Name != "p0") {
				t.Errorf("group %s is the former plan's: %v", group.Name, isSame)
			}
		}
	}
}
