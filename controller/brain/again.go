package brain

// Schedules what becomes due by time alone: pools whose backends change state or share
// without a new probe result.

import "time"

// earliest of some times.
type earliest struct{ at time.Time }

// add a time; the zero one is none.
func (e *earliest) add(t time.Time) {
	if !t.IsZero() && (e.at.IsZero() || t.Before(e.at)) {
		e.at = t
	}
}

func (e earliest) isDue(now time.Time) bool { return !e.at.IsZero() && !now.Before(e.at) }

func (h *healthState) setJudgeAgain(pool string, again earliest) {
	if again.at.IsZero() {
		delete(h.judgeAgain, pool)
		return
	}
	h.judgeAgain[pool] = again.at
	h.againFirst.add(again.at)
}

// checkAgain goes over the pools only when the first of them is due.
func (h *healthState) checkAgain(at *step) {
	if !h.againFirst.isDue(at.now) {
		return
	}
	h.againFirst = earliest{}
	for pool, again := range h.judgeAgain {
		if at.now.Before(again) {
			h.againFirst.add(again)
		} else {
			h.due.add(pool)
			delete(h.judgeAgain, pool)
		}
	}
}
