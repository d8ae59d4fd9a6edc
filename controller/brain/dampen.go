package brain

import "time"

// verdict on one target.
type verdict int

const (
	unknown verdict = iota // not yet probed
	up
	down
)

// damped is a stream of probe results turned into a stream of verdicts: the
// first result decides alone, afterwards rise (or fall) results in a row are
// needed to change it.
type damped struct {
	// Results in a row that it takes to change a verdict.
	rise, fall int

	verdict verdict
	streak  int    // results in a row that contradict the verdict
	reason  string // of the latest result that agrees with the verdict
	since   time.Time
	former  verdict
}

// step takes one result and tells whether the verdict changed.
func (d *damped) step(ok bool, reason string, now time.Time) bool {
	result, needed := down, d.fall
	if ok {
		result, needed = up, d.rise
	}
	if result == d.verdict {
		d.streak = 0
		d.reason = reason
		return false
	}
	d.streak++
	if d.verdict != unknown && d.streak < needed {
		return false
	}
	d.former = d.verdict
	d.verdict, d.streak, d.reason, d.since = result, 0, reason, now
	return true
}
