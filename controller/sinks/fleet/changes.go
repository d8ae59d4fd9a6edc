package fleet

// Drains that apply to all machines, without etcd: each change is sent to all peers, and
// for each object the latest change applies, so all machines end up with the same drains,
// in whatever order they hear of them.

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/outside"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

const (
	// ChangesMax are kept: 256 with names of 300 bytes are 100 KB, a third of what a status
	// can hold. Beyond it drains are refused, and of those that came from peers the oldest
	// are forgotten, ended ones first.
	ChangesMax = 256
	// How long the end of a drain is remembered: a machine that was away for longer brings
	// the drain back.
	endedKept = 30 * 24 * time.Hour
	// How far a peer's clock may be ahead. A change of another year could not be followed by
	// a later one.
	aheadMax = 24 * time.Hour
)

// Change is that something is drained on all machines, or no longer.
type Change struct {
	Drained
	// false: the drain ended.
	Drain bool `json:"drain"`
	// On which machine, and when.
	Machine string    `json:"machine"`
	Time    time.Time `json:"time"`
}

// isLater than another change of the same thing. No machine makes two of one time; if one
// says so, all still choose the same.
func (c Change) isLater(other Change) bool {
	return cmp.Or(c.Time.Compare(other.Time), cmp.Compare(c.Machine, other.Machine), drainsFirst(other, c)) > 0
}

// drainsFirst orders drains before ends of drains.
func drainsFirst(a, b Change) int {
	switch {
	case a.Drain == b.Drain:
		return 0
	case a.Drain:
		return -1
	}
	return 1
}

// Changes in order of what they are about, each thing once.
type Changes []Change

// Next change of something, by a command on a machine: later than every one that is known
// here, also of a machine whose clock is ahead.
func (c Changes) Next(what Drained, drain bool, machine string, now time.Time) Change {
	next := Change{Drained: what, Drain: drain, Machine: machine, Time: now.UTC().Round(0)}
	if i, known := c.find(what); known && !next.isLater(c[i]) {
		next.Time = c[i].Time.Add(1)
	}
	return next
}

// HasRoomFor one more drain.
func (c Changes) HasRoomFor(what Drained) bool {
	drains := 0
	for _, change := range c {
		if change.Drain && change.Drained != what {
			drains++
		}
	}
	return drains < ChangesMax
}

// Merge with others: what is kept of both.
func (c Changes) Merge(others Changes, now time.Time) Changes {
	merged := slices.Clone(c)
	for _, change := range others {
		i, known := merged.find(change.Drained)
		switch {
		case !known:
			merged = slices.Insert(merged, i, change)
		case change.isLater(merged[i]):
			merged[i] = change
		}
	}
	merged = slices.DeleteFunc(merged, func(c Change) bool { return !c.Drain && now.Sub(c.Time) > endedKept })
	if len(merged) > ChangesMax {
		slices.SortFunc(merged, func(a, b Change) int {
			return cmp.Or(drainsFirst(a, b), b.Time.Compare(a.Time), a.Drained.Compare(b.Drained))
		})
		merged = merged[:ChangesMax]
		slices.SortFunc(merged, func(a, b Change) int { return a.Drained.Compare(b.Drained) })
	}
	return merged
}

func (c Changes) find(what Drained) (at int, known bool) {
	return slices.BinarySearchFunc(c, what, func(change Change, what Drained) int { return change.Drained.Compare(what) })
}

// Equal to others.
func (c Changes) Equal(others Changes) bool {
	return slices.EqualFunc(c, others, func(a, b Change) bool {
		return a.Drained == b.Drained && a.Drain == b.Drain && a.Machine == b.Machine && a.Time.Equal(b.Time)
	})
}

// Apply to what is drained: those that are, in order; what no change is about stays.
func (c Changes) Apply(drained []Drained) []Drained {
	next := slices.DeleteFunc(slices.Clone(drained), func(what Drained) bool { _, known := c.find(what); return known })
	for _, change := range c {
		if change.Drain {
			next = append(next, change.Drained)
		}
	}
	slices.SortFunc(next, Drained.Compare)
	return next
}

// Message of them.
func (c Changes) Message() []*fleetv1.DrainChange {
	messages := make([]*fleetv1.DrainChange, len(c))
	for i, change := range c {
		messages[i] = &fleetv1.DrainChange{
			Kind: string(change.Kind), Name: change.Name, Drained: change.Drain, Machine: change.Machine, Time: timestamppb.New(change.Time),
		}
	}
	return messages
}

// ChangesOf a peer's message, but for those that cannot be followed: of another kind, as of a
// later version, without a name or time, or of a clock too far ahead, of which the first
// machine is named.
func ChangesOf(messages []*fleetv1.DrainChange, now time.Time) (changes Changes, ahead string) {
	for _, m := range messages[:min(len(messages), ChangesMax)] {
		change := Change{Drained: Drained{Kind: Kind(m.GetKind()), Name: outside.Text(m.GetName())}, Drain: m.GetDrained(), Machine: outside.Text(m.GetMachine()), Time: m.GetTime().AsTime()}
		switch {
		case change.Kind != KindBackend && change.Kind != KindService, change.Name == "", m.GetTime().CheckValid() != nil:
		case change.Time.Sub(now) > aheadMax:
			ahead = cmp.Or(ahead, change.Machine)
		default:
			changes = append(changes, change)
		}
	}
	return changes, ahead
}
