package brain

import (
	"reflect"
	"testing"
)

// expectNothingMissed decides once more in a snapshot, whatever it was made by last: what was
// not decided by now would have come to the same. What is missed stays missed for a while, so
// one Step in seven of each test ends with this, and none with many backends: it is slow.
func (w *world) expectNothingMissed() {
	w.t.Helper()
	s := w.state
	w.steps++
	if w.steps%7 != 0 || s.current == nil || len(s.current.config.Backends) > 20 || !s.outdatedSince.IsZero() || s.routes.draining {
		return
	}
	again := s.Snapshot().state
	again.decideRoutes()
	if got, want := s.viewRoutes(), again.viewRoutes(); !reflect.DeepEqual(got, want) || !reflect.DeepEqual(s.routes.wanted, again.routes.wanted) {
		w.t.Fatalf("routes were not decided: %+v, not %+v", got, want)
	}
	again.agreement.basis = nil
	if got, want := s.agreement.wanted, again.decideAgreement(); !reflect.DeepEqual(got, want) {
		w.t.Fatalf("the agreement was not decided: %+v, not %+v", got, want)
	}
	again.health.basis = nil
	again.flush()
	if s.forwarder.wanted != again.forwarder.wanted {
		w.t.Fatalf("the plan was not decided: %v, not %v", s.forwarder.wanted, again.forwarder.wanted)
	}
}

func TestAStepWithoutNewsDecidesNothing(t *testing.T) {
	w := servingWeb(t)
	w.pass(coalesce)
	former := w.state.planDecisions
	for _, event := range []Event{Tick{}, w.health(), NeighborState{}, ProbeResult{Target: w.last.Targets[0].Key(), OK: true, Reason: "another"}} {
		event.apply(w.state)
		if w.state.planDue() || w.state.routesDue() || w.state.planDecisions != former {
			t.Errorf("%T has the plan or routes decided anew", event)
		}
	}
}
