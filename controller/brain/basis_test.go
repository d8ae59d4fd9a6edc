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
	again.agreement.basis.planDecisions++
	if got, want := s.agreement.wanted, again.decideAgreement(); !reflect.DeepEqual(got, want) {
		w.t.Fatalf("the agreement was not decided: %+v, not %+v", got, want)
	}
	again.health.basis = judgeBasis{}
	again.flush()
	if s.forwarder.wanted != again.forwarder.wanted {
		w.t.Fatalf("the plan was not decided: %v, not %v", s.forwarder.wanted, again.forwarder.wanted)
	}
}

func TestAStepWithoutNewsDecidesNothing(t *testing.T) {
	w := servingWeb(t)
	w.pass(coalesce)
	former, routes := w.state.planDecisions, w.state.routes.basis
	w.do(Tick{})
	w.do(w.health())
	w.do(ProbeResult{Target: w.last.Targets[0].Key(), OK: true, Reason: "another"})
	if w.state.planDue() || w.state.routesDue() || w.state.planDecisions != former || w.state.routes.basis != routes {
		t.Error("a plan or routes were decided anew")
	}
	w.do(NeighborState{})
	if w.state.routesDue() {
		t.Error("routes are decided anew for a session")
	}
}
