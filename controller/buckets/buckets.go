// Package buckets assigns a stateless service's buckets to its backends (MPLB,
// section 3). A flow's bucket never changes; which backend has it does, as
// seldom as can be: a bucket that moves takes its connections' packets with it.
//
// Pure: the same map and members give the same next map, on every machine.
package buckets

import (
	"cmp"
	"math/bits"
	"slices"

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
)

// Valid reports whether a service may have that many.
func Valid(count uint32) bool { return count >= Min && count <= Max && bits.OnesCount32(count) == 1 }

// Member may have buckets.
type Member struct {
	Backend string
	// Its relative share; at least 1.
	Weight uint32
}

// Former is what a service had: the map before, and the last one that gave a
// bucket to anybody. They differ while no backend is left, so that backends get
// back what they had. The zero value: there was none.
type Former struct {
	Map, Given *planv1.BucketMap
}

// Then is what there was when next has followed.
func (f Former) Then(next *planv1.BucketMap) Former {
	if len(next.GetByBucket()) == 0 {
		return Former{next, f.Given}
	}
	return Former{next, next}
}

// Assign gives every bucket to a member, each its share to within one bucket.
// Buckets stay where they were unless their backend is no member any more, or
// has more than its share. Members are in order of name, each once; without any
// the map is empty. A former map of another size counts as none. If nothing
// moves it returns the map before itself.
func Assign(former Former, count uint32, members []Member) *planv1.BucketMap {
	a := newAssignment(former.Given, count, members)
	if len(members) > 0 {
		a.take(a.targets(count))
		a.give()
	}
	return a.finish(former.Map)
}

// assignment under way.
type assignment struct {
	members []Member
	// By bucket, the index of its member, or free.
	owners []int
	// By member, how many it has.
	has []int
	// By member, how many it still gets.
	missing []int
}

const free = -1

func newAssignment(former *planv1.BucketMap, count uint32, members []Member) *assignment {
	a := &assignment{members: members, has: make([]int, len(members)), missing: make([]int, len(members))}
	if len(members) == 0 {
		return a
	}
	index := map[string]int{}
	for i, member := range members {
		index[member.Backend] = i
	}
	a.owners = slices.Repeat([]int{free}, int(count))
	if len(former.GetByBucket()) != int(count) {
		return a
	}
	for bucket, backend := range former.GetByBucket() {
		if owner, isMember := index[former.GetBackends()[backend]]; isMember {
			a.owners[bucket] = owner
			a.has[owner]++
		}
	}
	return a
}

// targets are the members' shares: each the floor of its ideal share or one
// more. Who gets one more is who has it already, so that nothing moves for
// that; then who misses the larger part; then the first by name.
func (a *assignment) targets(count uint32) []int {
	total := uint64(0)
	for _, member := range a.members {
		total += uint64(member.Weight)
	}
	targets := make([]int, len(a.members))
	remainders := make([]uint64, len(a.members))
	left := int(count)
	for i, member := range a.members {
		share := uint64(count) * uint64(member.Weight)
		targets[i], remainders[i] = int(share/total), share%total
		left -= targets[i]
	}
	order := make([]int, len(a.members))
	for i := range order {
		order[i] = i
	}
	hasMore := func(i int) int {
		if remainders[i] > 0 && a.has[i] > targets[i] {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(hasMore(i), hasMore(j)), cmp.Compare(remainders[j], remainders[i]))
	})
	for _, i := range order[:left] {
		targets[i]++
	}
	return targets
}

// take from those that have more than their targets: the last of their
// buckets.
func (a *assignment) take(targets []int) {
	for i := range targets {
		a.missing[i] = targets[i] - a.has[i]
	}
	for bucket := len(a.owners) - 1; bucket >= 0; bucket-- {
		if owner := a.owners[bucket]; owner != free && a.missing[owner] < 0 {
			a.missing[owner]++
			a.owners[bucket] = free
		}
	}
}

// give free buckets to those that have less than their targets, in turn.
func (a *assignment) give() {
	next := 0
	for bucket, owner := range a.owners {
		if owner != free {
			continue
		}
		for a.missing[next] <= 0 {
			next = (next + 1) % len(a.members)
		}
		a.owners[bucket] = next
		a.missing[next]--
		next = (next + 1) % len(a.members)
	}
}

func (a *assignment) finish(former *planv1.BucketMap) *planv1.BucketMap {
	next := &planv1.BucketMap{Generation: former.GetGeneration() + 1}
	for _, member := range a.members {
		next.Backends = append(next.Backends, member.Backend)
	}
	for _, owner := range a.owners {
		next.ByBucket = append(next.ByBucket, uint32(owner))
	}
	if former != nil && equal(former, next) {
		return former
	}
	return next
}

// equal maps give each bucket to the same backend.
func equal(a, b *planv1.BucketMap) bool {
	return slices.Equal(a.GetBackends(), b.GetBackends()) && slices.Equal(a.GetByBucket(), b.GetByBucket())
}

// Moved counts the buckets that another backend has afterwards.
func Moved(before, after *planv1.BucketMap) int {
	moved := 0
	for bucket, backend := range after.GetByBucket() {
		if bucket >= len(before.GetByBucket()) || before.GetBackends()[before.GetByBucket()[bucket]] != after.GetBackends()[backend] {
			moved++
		}
	}
	return moved
}
