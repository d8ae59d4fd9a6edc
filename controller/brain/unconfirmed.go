package brain

// Failures of probes through the tunnels count once the forwarder, which sends
// these probes, has proved that it lived all the while: else a forwarder that hangs
// would take all backends down before it is found to hang itself.
//
//	failure ─► waits ─► asked afterwards, answered at once: counts
//	   │          └───► unhealthy, or silent meanwhile: no verdict
//	   └─► sent while it stood still: no verdict

import "time"

// What is silent for longer stood still: the forwarder, which is asked ten
// times a second and answers within milliseconds; or this process, whose own
// clock made the probes fail.
const answerMax = 500 * time.Millisecond

const stoodStill = "the forwarder stood still meanwhile"

// unconfirmed is a failure, and when it came.
type unconfirmed struct {
	ProbeResult
	at time.Time
}

func (s *State) awaitConfirmation(e ProbeResult) {
	if s.now.Add(-e.Took).Before(s.forwarder.stoodStillUntil) {
		ProbeUnsent{Target: e.Target, Reason: stoodStill}.take(s)
		return
	}
	s.health.unconfirmed = append(s.health.unconfirmed, unconfirmed{e, s.now})
}

// confirmFailures by an answer of the forwarder's to a question of that time; the
// one before was asked at `former`. What was lost between may be seen by that
// alone: of several answers only the latest comes here.
func (s *State) confirmFailures(asked, former time.Time) {
	if s.now.Sub(former) > answerMax {
		s.forwarder.stoodStillUntil = s.now
		s.voidFailures(stoodStill)
		return
	}
	waiting := s.health.unconfirmed
	s.health.unconfirmed = nil
	for _, failure := range waiting {
		if failure.at.After(asked) {
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
		ProbeUnsent{Target: failure.Target, Reason: reason}.take(s)
	}
}
