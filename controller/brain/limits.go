package brain

// Limits of the forwarder. A limit that refuses something counts as reached until it has
// refused nothing for a while. However often that happens, it is reported twice: when it
// begins and when it ends.

import (
	"fmt"
	"time"
)

// Without a refusal for so long, a limit is reached no more.
const limitOver = time.Minute

// Limit of the forwarder, and what it refused.
type Limit struct {
	Name string
	// What it refuses, as `packets of ...`.
	Refused string
	// Since the forwarder started; or if it is a state, now.
	Count   uint64
	IsState bool
}

// limitState is what is known of one limit.
type limitState struct {
	count uint64
	// Since when it is reached, zero: it is not; how much it refused since, and when last.
	since, last time.Time
	refused     uint64
}

func (s *State) noteLimits(limits []Limit) {
	for _, counted := range limits {
		former, isKnown := s.limits[counted.Name]
		if !isKnown && !counted.IsState { // when that was is not known
			former.count = counted.Count
		}
		s.limits[counted.Name] = former.after(&s.step, counted)
	}
}

// after a count. One that is lower is of a forwarder that started anew.
func (l limitState) after(at *step, counted Limit) limitState {
	grown := counted.Count
	if !counted.IsState && counted.Count >= l.count {
		grown -= l.count
	}
	l.count = counted.Count
	switch {
	case grown > 0 && l.since.IsZero():
		l.since, l.last, l.refused = at.now, at.now, grown
		at.note("limit", counted.Name, "not reached", "reached", fmt.Sprintf("%d %s", grown, counted.Refused))
	case grown > 0 && counted.IsState:
		l.last, l.refused = at.now, max(grown, l.refused)
	case grown > 0:
		l.last, l.refused = at.now, l.refused+grown
	case !l.since.IsZero() && at.now.Sub(l.last) >= limitOver:
		at.note("limit", counted.Name, "reached", "not reached", fmt.Sprintf("%d %s, in %v", l.refused, counted.Refused, l.last.Sub(l.since).Round(time.Second)))
		return limitState{count: counted.Count}
	}
	return l
}
