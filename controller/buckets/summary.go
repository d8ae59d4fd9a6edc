package buckets

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Summary of a map, for people.
type Summary struct {
	// Of the backends that the map names, in order of name.
	Backends []Use
	// Open moves, in order of the old backends and of time; prepared ones first.
	Moves []Move
	// Buckets that have one.
	Moving int
}

// Use is what a backend has of a service's buckets.
type Use struct {
	Backend string
	// In charge; about to get; named, since their connections may live there.
	Owned, Next, Earlier int
}

// Move of buckets from one backend to another, by one map.
type Move struct {
	From, To string
	// The new backend is in charge; else it is prepared.
	Moved   bool
	Buckets int
	// When it moved.
	Since time.Time
	// By the old backend's agent, if there is a count of it.
	Connections uint64
	CountedAt   time.Time
}

// move is what makes several buckets' moves one for people.
type move struct {
	from, to   string
	moved      bool
	generation uint64
}

// Summarize the map. Buckets that went from a to b and on to c count as moves from b
// and from a to c: there their connections may live.
func (m *Map) Summarize(counts map[string]Count) Summary {
	uses, moves := map[string]*Use{}, map[move]*Move{}
	for _, name := range m.Backends() {
		uses[name] = &Use{Backend: name}
	}
	var summary Summary
	for bucket := range m.Buckets {
		b := &m.Buckets[bucket]
		if b.Owner == "" {
			continue
		}
		uses[b.Owner].Owned++
		if b.chain() > 0 {
			summary.Moving++
		}
		if b.Next != "" {
			uses[b.Next].Next++
			m.count(moves, move{from: b.Owner, to: b.Next}, uint32(bucket), counts)
		}
		for _, e := range b.Earlier {
			uses[e.Backend].Earlier++
			m.count(moves, move{from: e.Backend, to: b.Owner, moved: true, generation: e.Generation}, uint32(bucket), counts)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		summary.Backends = append(summary.Backends, *uses[name])
	}
	for _, one := range moves {
		summary.Moves = append(summary.Moves, *one)
	}
	slices.SortFunc(summary.Moves, func(a, b Move) int {
		return cmp.Or(cmp.Compare(a.From, b.From), a.Since.Compare(b.Since), cmp.Compare(a.To, b.To))
	})
	return summary
}

func (m *Map) count(moves map[move]*Move, key move, bucket uint32, counts map[string]Count) {
	one := moves[key]
	if one == nil {
		one = &Move{From: key.from, To: key.to, Moved: key.moved, Since: m.Steps[key.generation].At}
		moves[key] = one
	}
	one.Buckets++
	if count, isKnown := counts[key.from]; isKnown && key.moved {
		one.Connections += uint64(count.ByBucket[bucket])
		one.CountedAt = count.At
	}
}
