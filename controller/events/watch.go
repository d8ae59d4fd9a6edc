package events

import (
	"context"
	"time"
)

// Filter says which events a reader gets.
type Filter struct {
	// The zero time: no limit. By the clock of the machine as it was then. Since is no limit to
	// what comes: the reader's clock may be another one.
	Since, Until time.Time
	// nil: all.
	Objects func(Object) bool
	// Only records with higher numbers, for a reader that goes on. Of a number that was not
	// given yet (the state directory is another one) all.
	After uint64
	// Also those that come.
	Follow bool
}

func (f *Filter) matches(r *Record) bool {
	return (f.Since.IsZero() || !r.Last.Before(f.Since)) && (f.Until.IsZero() || !r.Time.After(f.Until)) && (f.Objects == nil || f.Objects(r.Object))
}

// Watch sends the events that a filter lets through, the oldest first, until the context or
// a send ends it. lost is how many were overwritten before they could be sent: then there
// is no record.
func (l *Log) Watch(ctx context.Context, f Filter, send func(r *Record, lost uint64) error) error {
	history, at := l.history()
	if !l.gave(f.After) {
		f.After = 0
	}
	for i := range history {
		if r := &history[i]; r.Number > f.After && f.matches(r) {
			if err := send(r, 0); err != nil {
				return err
			}
		}
	}
	history = nil // it is large
	f.Since = time.Time{}
	for f.Follow {
		found, next, lost, changed := l.after(at)
		if lost > 0 {
			if err := send(nil, lost); err != nil {
				return err
			}
		}
		for i := range found {
			if f.matches(&found[i]) {
				if err := send(&found[i], 0); err != nil {
					return err
				}
			}
		}
		at = next
		if changed != nil {
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// gave a record this number.
func (l *Log) gave(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return number <= l.number
}
