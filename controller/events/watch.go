package events

import (
	"context"
	"math"
	"slices"
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

// Back gives take each event once, the latest record first and with its repeats so far, until
// take returns false. before: only records with lower numbers; 0: all.
func (l *Log) Back(before uint64, take func(*Record) bool) {
	repeats := l.repeats()
	records, at := l.batchBefore(math.MaxUint64)
	seen := map[uint64]bool{}
	for len(records) > 0 {
		for i := range slices.Backward(records) {
			r := &records[i]
			if seen[r.ID] {
				continue
			}
			seen[r.ID] = true
			if open, repeated := repeats[r.ID]; repeated {
				r.Count, r.Last = open.Count, open.Last
			}
			if (before == 0 || r.Number < before) && !take(r) {
				return
			}
		}
		records, at = l.batchBefore(at)
	}
}

// batchBefore a position: the records there, in order, and where they begin. Whoever tells
// events waits for one batch at most.
func (l *Log) batchBefore(at uint64) (records []Record, begin uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := min(at, l.next)
	begin = max(l.oldest(), end-min(end, batchMax))
	for at := begin; at < end; at++ {
		records = append(records, l.ring[at%KeptMax])
	}
	return records, begin
}

// repeats that have no record yet, by the event's ID.
func (l *Log) repeats() map[uint64]Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	repeats := map[uint64]Record{}
	for _, one := range l.opened {
		if one.Count > 1 {
			repeats[one.ID] = one.Record
		}
	}
	return repeats
}

// gave a record this number.
func (l *Log) gave(number uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return number <= l.number
}
