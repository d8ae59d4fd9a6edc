package brain

// Failures of probes through the tunnels count once the forwarder, which sends
// these probes, has proved that it lived all the while: else a forwarder that hangs,
// or whose one thread for them does, would take all backends down.
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

func (s *State) awaitConfirmation(e ProbeResult) {
	if s.now.Add(-e.Took).Before(s.forwarder.stoodStillUntil) {
		ProbeUnsent{Target: e.Target, Reason: stoodStill}.apply(s)
		return
	}
	s.health.unconfirmed = append(s.health.unconfirmed, unconfirmed{e, s.now})
}

// confirmFailures by an answer of the forwarder's; what it answered before was asked
// at `former`. What was lost between may be seen by that alone: of several answers
// only the latest comes here.
func (s *State) confirmFailures(answer judge.Answer, former time.Time) {
	if s.now.Sub(former) > answerMax || answer.ProbesAge > probesAgeMax {
		s.forwarder.stoodStillUntil = s.now
		s.voidFailures(stoodStill)
		return
	}
	waiting := s.health.unconfirmed
	s.health.unconfirmed = nil
	for _, failure := range waiting {
		if failure.at.After(answer.Asked) {
			s.health.unconfirmed = append(s.health.unconfirmed, failure)
			continue
		}
		failure.take(s)
	}
}

// voidFailures: the forwarder may not have sent these probes.
func (s *State) voidFailures(reason string) {
	former := s.health.unconfirmed
	s.health.unconfirmed = nil
	for _, failure := range former {
		ProbeUnsent{Target: failure.Target, Reason: reason}.apply(s)
	}
}
