package brain

// Failures of probes through the tunnels count once the forwarder, which sends
// these probes, has proved that it lived all the while: else a forwarder that hangs
// would take all backends down before it is found to hang itself.
//
//	failure ─► waits ─► asked afterwards, answered at once: counts
//	              └───► unhealthy, or answered late: no verdict

import "time"

// An answer that took longer comes from a forwarder that stood still. It is asked
// ten times a second, and answers within milliseconds.
const answerMax = 500 * time.Millisecond

// unconfirmed is a failure, and when it came.
type unconfirmed struct {
	ProbeResult
	at time.Time
}

func (s *State) awaitConfirmation(e ProbeResult) {
	s.health.unconfirmed = append(s.health.unconfirmed, unconfirmed{e, s.now})
}

// confirmFailures by an answer of the forwarder's to a question of that time.
func (s *State) confirmFailures(asked time.Time) {
	if s.now.Sub(asked) > answerMax {
		s.voidFailures("the forwarder stood still meanwhile")
		return
	}
	former := s.health.unconfirmed
	s.health.unconfirmed = nil
	for _, failure := range former {
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
