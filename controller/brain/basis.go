package brain

// When decisions are made again: each records its inputs and is repeated when one of them
// has changed, or when its own time has come.

import (
	"slices"
)

// basis of a decision: comparable values as they are; and of what is too large for that, how
// often it changed.
type basis []any

// differs from what it was, and becomes this.
func (b *basis) differs(from ...any) bool {
	former := *b
	*b = from
	return !slices.Equal(former, from)
}

// dueNames are pools or services that are to be looked at again, and how often one was added.
type dueNames struct {
	names map[string]bool
	added uint64
}

func (d *dueNames) add(names ...string) {
	for _, name := range names {
		d.names[name] = true
		d.added++
	}
}

// planBasis has apart what waits within `coalesce` for more of its kind; the rest (commands,
// other configs, another forwarder) makes a plan in the same Step.
type planBasis struct{ urgent, waits basis }

func (s *State) planBasis() planBasis {
	return planBasis{
		basis{s.current, s.health.commands, s.forwarder.connections, s.members.areAwaited(&s.plan)},
		basis{s.health.due.added, s.buckets.due.added, s.peers.changes, s.health.gateway},
	}
}
