package brain

import (
	"github.com/guideway/guideway/speaker/judge"
	"testing"
	"time"
)

// handOver brings a forwarder to the point where its death is planned.
func handOver(t *testing.T) *world {
	t.Helper()
	w := start(t, oneService)
	w.settle(true, "10.1.0.11", "10.1.0.12")
	if len(w.announced()) != 1 {
		t.Fatalf("routes %v before", w.announced())
	}
	w.do(ForwarderHandingOver{Now: true})
	return w
}

// tick lets time pass in which nothing is heard.
func (w *world) tick(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(min(50*time.Millisecond, end.Sub(w.now)))
		w.do(Tick{})
	}
}

func (w *world) wantRoutes(count int, when string) {
	w.t.Helper()
	if len(w.announced()) != count {
		w.t.Errorf("%s: %d routes, not %d: %+v", when, len(w.announced()), count, w.log)
	}
}

func TestAPlannedHandOverKeepsTheRoutes(t *testing.T) {
	w := handOver(t)
	accepted := w.state.View(true).Forwarder.Accepted
	w.do(ForwarderLost{Reason: "does not answer: EOF"})
	w.wantRoutes(1, "lost")
	w.tick(judge.HandOverMax - 50*time.Millisecond)
	w.wantRoutes(1, "just before its end")
	w.connect(w.running)
	w.pass(5 * time.Second)
	w.wantRoutes(1, "after its end")
	for _, transition := range w.log {
		if transition.Kind == "route" && transition.To == "withdrawn" {
			t.Errorf("%+v", transition)
		}
	}
	if v := w.state.View(true).Forwarder; !v.Healthy || v.Accepted != accepted {
		t.Errorf("forwarder %+v", v)
	}
}

func TestAHandOverThatTakesTooLongWithdrawsTheRoutes(t *testing.T) {
	w := handOver(t)
	w.do(ForwarderLost{Reason: "does not answer: EOF"})
	if !w.last.Again.Equal(w.now.Add(judge.HandOverMax)) {
		t.Errorf("asks to be woken at %v", w.last.Again)
	}
	w.tick(judge.HandOverMax)
	w.wantRoutes(0, "at its end")
	if reason := w.state.View(true).Forwarder.Reason; reason != "does not answer: EOF" {
		t.Errorf("reason %q", reason)
	}
}

func TestAfterAHandOverThatWasCalledOffADeathCountsAtOnce(t *testing.T) {
	w := handOver(t)
	w.do(ForwarderHandingOver{})
	w.do(ForwarderLost{Reason: "does not answer: EOF"})
	w.wantRoutes(0, "lost")
}

func TestASecondHandOverHasItsOwnTime(t *testing.T) {
	w := handOver(t)
	w.pass(time.Second)
	w.do(ForwarderHandingOver{Now: true}) // said again: it is the same one
	w.pass(500 * time.Millisecond)
	w.do(ForwarderHandingOver{})
	w.pass(time.Second)
	w.do(ForwarderHandingOver{Now: true})
	w.do(ForwarderLost{Reason: "does not answer: EOF"})
	w.tick(judge.HandOverMax - 50*time.Millisecond)
	w.wantRoutes(1, "within its time")
	w.tick(50 * time.Millisecond)
	w.wantRoutes(0, "at its end")
}

func TestWorkersAtRestAreNoAilmentDuringAHandOver(t *testing.T) {
	w := handOver(t)
	resting := w.health()
	resting.Threads = []Thread{{Name: "worker-0", HeartbeatAge: 2 * judge.HeartbeatAgeMax}}
	w.do(resting)
	w.wantRoutes(1, "resting")
	w.tick(judge.HandOverMax)
	w.wantRoutes(0, "still resting at its end")
}

func TestASuccessorWithAnotherPlanIsNotTheSame(t *testing.T) {
	w := handOver(t)
	w.do(ForwarderLost{Reason: "does not answer: EOF"})
	w.accepts = false
	w.do(ForwarderConnected{})
	w.wantRoutes(0, "it has no plan")
}
