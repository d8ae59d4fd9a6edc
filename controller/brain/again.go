package brain

// What falls due by time alone: pools whose backends change their states, or
// their shares, though no probe says anything new.

import "time"

// earliest of some times.
type earliest struct{ at time.Time }

// add a time; the zero one is none.
func (e *earliest) add(t time.Time) {
	if !t.IsZero() && (e.at.IsZero() || t.Before(e.at)) {
		e.at = t
	}
}

func (s *State) setJudgeAgain(pool string, again earliest) {
	if again.at.IsZero() {
		delete(s.health.judgeAgain, pool)
		return
	}
	s.health.judgeAgain[pool] = again.at
	first := earliest{s.health.againFirst}
	first.add(again.at)
	s.health.againFirst = first.at
}

// checkJudgeAgain goes over the pools only when the first of them is due.
func (s *State) checkJudgeAgain() {
	if s.health.againFirst.IsZero() || s.now.Before(s.health.againFirst) {
		return
	}
	var due []string
	var next earliest
	for pool, at := range s.health.judgeAgain {
		if s.now.Before(at) {
			next.add(at)
		} else {
			due = append(due, pool)
			delete(s.health.judgeAgain, pool)
		}
	}
	s.health.againFirst = next.at
	s.health.due.add(due...)
}
