// Package buckets assigns the buckets of a stateless service's flows to backends (MPLB,
// sections 3 and 3.1). A flow's bucket never changes. Its backend changes as rarely as
// possible, and in steps, so that no connection breaks:
//
//	prepared  the old backend is in charge, the new one is named to be tried
//	moved     the new one is in charge, the old one is named
//	closed    no connection is left at the old one, or it has waited for too long
//
// Each step waits until every load balancer has the one before, so the maps of any two are
// at most one step apart. The agents of both backends then know where to look for the
// connection of a packet that either load balancer sends to them.
//
// Pure: the same map, members, counts and time give the same next map, on every machine.
package buckets

import (
	"math/bits"
	"net/netip"
	"slices"
	"time"

	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

const (
	// Min and Max are the fewest and the most buckets of a service; their
	// number is a power of two.
	Min = 256
	Max = 8192
	// PerBackend is how many a service has at least for each backend: an equal
	// share is then met to within an eighth.
	PerBackend = 8
	// ChainMax is how many other backends a bucket's packets may name: the room
	// in the route option.
	ChainMax = 3
)

// Valid reports whether a service may have that many.
func Valid(count uint32) bool { return count >= Min && count <= Max && bits.OnesCount32(count) == 1 }

// Map is one service's; never edited.
type Map struct {
	// Counts the maps, from 1.
	Generation uint64
	// Empty: no backend ever had any.
	Buckets []Bucket
	// No backend is left, and packets are not to go to those that had the buckets.
	Unserved bool
	// Of the backends that Buckets names, as they were when this map was made.
	Addresses map[string]netip.Addr
	// By generation, when buckets left the backends that are still named as earlier.
	Steps map[uint64]Step
	// Buckets that should move, and cannot yet: their packets already name as many
	// backends as they may.
	Waiting int
	// Not 0: one load balancer of several made this map by itself, of the agreed one
	// of that generation, because backends died while the others could not be asked.
	MadeOf uint64
}

// Agreed is the generation of the latest map that all load balancers agreed on, of
// those that this one was made of.
func (m *Map) Agreed() uint64 {
	if m.MadeOf > 0 {
		return m.MadeOf
	}
	return m.Generation
}

// Bucket and where its connections may live.
type Bucket struct {
	// In charge: new connections are its. Empty: none is.
	Owner string
	// Prepared: the backend that gets the bucket in the next step; else empty.
	Next string
	// Those that had it before and may have connections of it, the latest first.
	Earlier []Earlier
}

// Earlier backend of a bucket.
type Earlier struct {
	Backend string
	// Of the map by which another backend got the bucket; in Map.Steps.
	Generation uint64
}

// Step is when buckets moved.
type Step struct {
	At time.Time
	// When every load balancer had the map: since then no new connection of these
	// buckets has come to the earlier backends. Zero: not yet.
	AcknowledgedAt time.Time
}

// Others are the backends that the bucket's packets name, in the order in which
// they are tried.
func (b *Bucket) Others() []string {
	var others []string
	if b.Next != "" {
		others = append(others, b.Next)
	}
	for _, earlier := range b.Earlier {
		if earlier.Backend != b.Next {
			others = append(others, earlier.Backend)
		}
	}
	return others
}

// chain is how many those are.
func (b *Bucket) chain() int {
	count := len(b.Earlier)
	if b.Next != "" && !slices.ContainsFunc(b.Earlier, func(e Earlier) bool { return e.Backend == b.Next }) {
		count++
	}
	return count
}

// destination is the backend that has the bucket when its open step is done.
func (b *Bucket) destination() string {
	if b.Next != "" {
		return b.Next
	}
	return b.Owner
}

func (b *Bucket) equal(other *Bucket) bool {
	return b.Owner == other.Owner && b.Next == other.Next && slices.Equal(b.Earlier, other.Earlier)
}

// Plan is the map as forwarders get it.
func (m *Map) Plan() *planv1.BucketMap {
	plan := &planv1.BucketMap{Generation: m.Generation}
	if m.Unserved {
		return plan
	}
	index := map[string]uint32{}
	for at, name := range m.Backends() {
		index[name] = uint32(at)
		plan.Backends = append(plan.Backends, name)
	}
	for bucket := range m.Buckets {
		b := &m.Buckets[bucket]
		plan.ByBucket = append(plan.ByBucket, index[b.Owner])
		if others := b.Others(); len(others) > 0 {
			move := &planv1.OpenMove{Bucket: uint32(bucket)}
			for _, name := range others {
				move.Others = append(move.Others, index[name])
			}
			plan.Moves = append(plan.Moves, move)
		}
	}
	return plan
}

// Backends that the buckets name, in order. m may be nil.
func (m *Map) Backends() []string {
	if m == nil {
		return nil
	}
	var names []string
	seen := map[string]bool{"": true}
	add := func(name string) {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	for i := range m.Buckets {
		add(m.Buckets[i].Owner)
		add(m.Buckets[i].Next)
		for _, earlier := range m.Buckets[i].Earlier {
			add(earlier.Backend)
		}
	}
	slices.Sort(names)
	return names
}

// NamesOthers says whether packets would be sent to backends that are none of these.
func (m *Map) NamesOthers(known map[string]Backend) bool {
	return !m.Unserved && slices.ContainsFunc(m.Backends(), func(name string) bool {
		_, isKnown := known[name]
		return !isKnown
	})
}

// FromPlan is the map that a forwarder runs, where nothing else is known of it:
// all that it names may have connections, and have had them until now. A generation
// that is out of range is forgotten.
func FromPlan(plan *planv1.BucketMap, addresses map[string]netip.Addr, now time.Time) *Map {
	m := &Map{Generation: plan.GetGeneration(), Addresses: addresses, Unserved: len(plan.GetByBucket()) == 0}
	if m.Generation > GenerationMax {
		m.Generation = 1
	}
	names := plan.GetBackends()
	for _, owner := range plan.GetByBucket() {
		m.Buckets = append(m.Buckets, Bucket{Owner: names[owner]})
	}
	for _, move := range plan.GetMoves() {
		for _, other := range move.GetOthers() {
			b := &m.Buckets[move.GetBucket()]
			b.Earlier = append(b.Earlier, Earlier{names[other], m.Generation})
		}
	}
	if len(plan.GetMoves()) > 0 {
		m.Steps = map[uint64]Step{m.Generation: {At: now}}
	}
	return m
}

// Owned counts the buckets that each backend is in charge of.
func (m *Map) Owned() map[string]int {
	counts := map[string]int{}
	for i := range m.Buckets {
		counts[m.Buckets[i].Owner]++
	}
	return counts
}
