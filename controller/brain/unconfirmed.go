package brain

// Failed probes through tunnels count only after the forwarder, which sends these probes,
// has proved that it was alive the whole time. Otherwise a hung forwarder, or a hung probe
// thread in it, would take all backends down.
//
//	failure ─► waits ─► asked afterwards, answered at once: counts
//	   │          └───► unhealthy, or silent meanwhile: no verdict
//	   └─► sent while it stood still: no verdict

import (
	"time"

	"github.com/guideway/guideway/speaker/judge"
)

// What is silent for longer stood still: the forwarder, which is asked ten
// times a second and answers within milliseconds; or this process, whose own
// clock made the probes fail.
const answerMax = 500 * time.Millisecond

// What the forwarder's thread for these probes takes for a round is milliseconds.
const probesAgeMax = 250 * time.Millisecond

const stoodStill = "the forwarder stood still meanwhile"

// unconfirmed is a failure, and when it came.
type unconfirmed struct {
	ProbeResult
	at time.Time
}

func (h *healthState) awaitConfirmation(at *step, e ProbeResult) {
	if at.now.Add(-e.Took).Before(h.stoodStillUntil) {
		h.takeUnsent(at, ProbeUnsent{Target: e.Target, Reason: stoodStill})
		return
	}
	h.unconfirmed = append(h.unconfirmed, unconfirmed{e, at.now})
}

// confirmFailures by an answer of the forwarder's; what it answered before was asked
// at `former`. What was lost between may be seen by that alone: of several answers
// only the latest comes here.
func (h *healthState) confirmFailures(at *step, answer judge.Answer, former time.Time) {
	if at.now.Sub(former) > answerMax || answer.ProbesAge > probesAgeMax {
		h.stoodStillUntil = at.now
		h.voidFailures(at, stoodStill)
		return
	}
	waiting := h.unconfirmed
	h.unconfirmed = nil
	for _, failure := range waiting {
		if failure.at.After(answer.Asked) {
			h.unconfirmed = append(h.unconfirmed, failure)
			continue
		}
		h.take(at, failure.ProbeResult)
	}
}

// voidFailures: the forwarder may not have sent these probes.
func (h *healthState) voidFailures(at *step, reason string) {
	former := h.unconfirmed
	h.unconfirmed = nil
	for _, failure := range former {
		h.takeUnsent(at, ProbeUnsent{Target: failure.Target, Reason: reason})
	}
}
