package brain

import (
	"reflect"
	"strings"
	"testing"
)

// expectNothingMissed decides once more in a snapshot, whatever it was made by last: what was
// not decided by now would have come to the same. Each Step of a test ends with this, but for
// six in seven of a forwarder that says the same again, and with many backends: it is slow.
func (w *world) expectNothingMissed(event Event) {
	w.t.Helper()
	s := w.state
	switch event.(type) {
	case ForwarderHealth, ForwarderStatus:
		w.repeated++
		if w.repeated%7 != 0 {
			return
		}
	}
	if s.current == nil || len(s.current.config.Backends) > 20 {
		return
	}
	again, isOutdated := s.Snapshot().state, !s.plan.outdatedSince.IsZero()
	again.buckets.agreement.basis = nil
	if got, want := s.buckets.agreement.wanted, again.decideAgreement(); got != nil && want != nil {
		if isOutdated {
			want.Verdicts = got.Verdicts // of the plan, but for probes that it waits for
		}
		if !reflect.DeepEqual(got, want) {
			w.t.Fatalf("the agreement was not decided: %+v, not %+v", got, want)
		}
	}
	if s.routes.draining {
		return // again in each Step
	}
	again.routes.decide(again.routesFrom())
	got, want := s.routes.view(&s.step), again.routes.view(&again.step)
	for i := range got {
		if isOutdated && i < len(want) && strings.HasPrefix(got[i].Reason, "waiting for the first probe") {
			want[i].Reason = got[i].Reason // so many of so many
		}
	}
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(s.routes.wanted, again.routes.wanted) {
		w.t.Fatalf("routes were not decided: %+v, not %+v", got, want)
	}
	again.health.basis = nil
	if again.flush(); !isOutdated && s.plan.wanted != again.plan.wanted {
		w.t.Fatalf("the plan was not decided: %v, not %v", s.plan.wanted, again.plan.wanted)
	}
}

func TestAStepWithoutNewsDecidesNothing(t *testing.T) {
	w := servingWeb(t)
	w.pass(coalesce)
	former := w.state.plan.decisions
	for _, event := range []Event{Tick{}, w.health(), NeighborState{}, ProbeResult{Target: w.last.Targets[0].Key(), OK: true, Reason: "another"}} {
		event.apply(w.state)
		if w.state.plan.isDue(&w.state.step, w.state.planBasis()) || w.state.routes.areDue(w.state.routesFrom()) || w.state.plan.decisions != former {
			t.Errorf("%T has the plan or routes decided anew", event)
		}
	}
}

func TestARouteSaysThatTheFirstPlanIsRefused(t *testing.T) {
	w := startCold(t, oneService)
	w.accepts = false
	w.connect(nil)
	for _, target := range w.last.Targets {
		w.do(ProbeResult{Target: target.Key(), OK: true})
	}
	w.pass(2 * coalesce)
	w.do(PlanRefused{Generation: w.last.Plan.GetGeneration(), Reason: "no such device"})
	if routes := w.state.View(false).Routes; len(routes) != 1 || routes[0].Reason != "the forwarder refuses the plan: no such device" {
		t.Errorf("routes %+v", routes)
	}
}
