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
// first result decides alone, unless a verdict was inherited; afterwards rise
// (or fall) results in a row are needed to change it.
type damped struct {
	// Results in a row that it takes to change a verdict.
	rise, fall int

	verdict verdict
	// Results came, at least one.
	probed bool
	// The verdict that the first result met was another controller's.
	inherited bool
	// Results in a row that contradict the verdict.
	streak int
	// Results in a row that agree with it.
	agreeing int
	reason   string // of the latest result that agrees with the verdict
	since    time.Time
	former   verdict
	last     Probe // for people only
	// Why the latest probe could not be sent; empty: it was.
	unsent string
}

// step takes one result and reports whether anything changed that others go by:
// the verdict, or that there is a result.
func (d *damped) step(ok bool, reason string, now time.Time) bool {
	result, needed := down, d.fall
	if ok {
		result, needed = up, d.rise
	}
	first := !d.probed
	d.unsent = ""
	d.probed = true
	if result == d.verdict {
		d.streak = 0
		d.agreeing++
		d.reason = reason
		return first
	}
	d.streak++
	if d.verdict != unknown && d.streak < needed {
		return first
	}
	d.former = d.verdict
	d.agreeing = d.streak
	d.verdict, d.streak, d.reason, d.since = result, 0, reason, now
	return true
}

// inherit makes a former verdict this one's: what was probed meanwhile counts
// against it.
func (d *damped) inherit(wasUp bool, reason string) {
	verdict, needed := down, d.rise
	if wasUp {
		verdict, needed = up, d.fall
	}
	d.inherited = true
	if d.verdict == verdict || d.verdict != unknown && d.agreeing >= needed {
		return
	}
	d.verdict, d.streak, d.agreeing, d.reason = verdict, d.agreeing, 0, reason
}
