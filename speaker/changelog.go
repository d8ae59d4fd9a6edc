package speaker

import "time"

// logPause between two lines about the same thing, however often that changes.
const logPause = time.Second

// changeLog says which changes of a state are worth a line: the first one at once, and
// of those within a second the last. Of one state for several reasons it is the first.
type changeLog struct {
	said, now string // a line was about the first
	saidAt    time.Time
	flaps     int // changes since the latest line
}

// step to a state: whether that is to be logged, and how many changes before were not.
func (l *changeLog) step(state string, at time.Time) (flaps int, due bool) {
	if state != l.now {
		l.now = state
		l.flaps++
	}
	if l.flaps == 0 || !l.saidAt.IsZero() && at.Sub(l.saidAt) < logPause {
		return 0, false
	}
	flaps, due = l.flaps-1, l.now != l.said || l.flaps > 1
	l.said, l.saidAt, l.flaps = l.now, at, 0
	return flaps, due
}

// again is when to step though nothing happens; zero: never.
func (l *changeLog) again() time.Time {
	if l.flaps == 0 {
		return time.Time{}
	}
	return l.saidAt.Add(logPause)
}
