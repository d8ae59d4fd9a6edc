package brain

import (
	"testing"
	"time"
)

func TestAForwarderThatIsWellIsAnnouncedWhetherOrNotPlansCanBePushed(t *testing.T) {
	w := servingOne(t)
	w.do(ForwarderDisconnected{})
	for range 100 {
		w.now = w.now.Add(100 * time.Millisecond)
		w.do(w.health())
	}
	w.expectRoutes(vip)
	w.connect(w.running)
	w.expectRoutes(vip)
}

func TestAnAnswerFromBeforeThePlanWasAcceptedDoesNotWithdraw(t *testing.T) {
	w := servingOne(t)
	late := w.health()
	late.Generation, late.Asked = late.Generation-1, w.acceptedAt
	w.do(late)
	w.expectRoutes(vip)
	late.Asked = w.now
	w.do(late)
	w.expectRoutes()
	w.expectReason("it forwards by plan 1, older than 2, which it had accepted")
}

func TestAForwarderThatStopsIsWithdrawnBeforeItIsGone(t *testing.T) {
	w := servingOne(t)
	stopping := w.health()
	stopping.Stopping = true
	w.do(stopping)
	w.expectRoutes()
	w.expectReason("it is stopping")
}

func TestNextHopsAreWaitedForAgainAfterAForwarderWasLost(t *testing.T) {
	w := servingOne(t)
	w.do(ForwarderLost{Reason: "does not answer"})
	w.expectRoutes()
	w.unresolved = []Unresolved{{Backend: "web-1", Address: "10.1.0.11", Why: "no answer"}}
	w.do(w.health())
	w.expectRoutes()
	w.expectReason("waiting for the next hops of 1 backends")
	w.unresolved = nil
	w.do(w.health())
	w.expectRoutes(vip)
}

// The speaker judges by itself, and must find the routes desired when the
// forwarder is back and no controller is there.
func TestWhatIsDesiredOutlivesTheForwarder(t *testing.T) {
	w := servingOne(t)
	w.do(ForwarderLost{Reason: "does not answer"})
	w.expectRoutes()
	w.expectDesired(vip)
	w.connect(nil) // back, without a plan
	w.expectDesired(vip)
	if w.last.RoutesPlan == 0 {
		t.Error("the routes need no plan")
	}
}

func TestAHandOverIsKnownByTheAnswerToo(t *testing.T) {
	w := servingOne(t)
	handing := w.health()
	handing.HandingOver = true
	w.do(handing)
	w.do(ForwarderLost{Reason: "does not answer"})
	w.expectRoutes(vip)
	successor := w.health()
	successor.PID++
	w.do(successor)
	w.expectRoutes(vip)
	// It is over: what happens now counts at once.
	w.do(ForwarderLost{Reason: "does not answer"})
	w.expectRoutes()
}
