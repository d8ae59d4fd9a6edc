package buckets

// Assigns buckets: shares are exact to within one bucket, and no bucket moves without need.

import (
	"cmp"
	"slices"
)

// Member may have buckets.
type Member struct {
	Backend string
	// Its relative share; at least 1.
	Weight uint32
	// Its agent and the others do not all know one another: it gets no buckets of living
	// backends, and those of dead ones only where there is no other member.
	Unknown bool
}

const free = -1

// place is where a bucket is, by the members' indices.
type place struct {
	// Its backend's when its open step is done, or free.
	owner int
	// Earlier backends that are members, the latest first: to go back to one of
	// them makes no chain longer.
	earlier []int
	// How many backends its packets name.
	chain int
	// It may not go anywhere else now.
	fixed bool
	// Its backend is dead, or it never had one: it goes, whatever its chain.
	urgent bool
}

// assignment under way.
type assignment struct {
	members []Member
	places  []place
	// By member, how many it has, and how many it still gets.
	has, missing []int
	// Buckets whose backend is no member any more, or has too many, and which
	// cannot go.
	waiting int
	// Some member may get any.
	anyKnown bool
}

// assign gives every bucket to a member, each its share to within one bucket.
// Buckets stay where they are unless their backend is no member any more, or has
// more than its share. There is at least one member; they are in order of name.
// It changes the places' owners.
func assign(places []place, members []Member) (waiting int) {
	a := &assignment{members: members, places: places, has: make([]int, len(members)), missing: make([]int, len(members))}
	a.anyKnown = slices.ContainsFunc(members, func(m Member) bool { return !m.Unknown })
	for i := range places {
		if p := &places[i]; !a.anyKnown && !p.urgent && !p.fixed {
			p.fixed = true
			if p.owner == free {
				a.waiting++
			}
		}
		if owner := places[i].owner; owner != free {
			a.has[owner]++
		}
	}
	for i, target := range a.targets() {
		a.missing[i] = target - a.has[i]
	}
	a.returnToEarlier()
	a.take()
	a.give()
	return a.waiting
}

// targets are the members' shares: each the floor of its ideal share or one
// more. Who gets one more is who has it already, so that nothing moves for
// that; then who misses the larger part; then the first by name. Members that are not
// to get any have at most what they have, and the others share the rest.
func (a *assignment) targets() []int {
	targets, sharing, left := a.limited()
	total, count := uint64(0), uint64(left)
	for _, i := range sharing {
		total += uint64(a.members[i].Weight)
	}
	remainders := make([]uint64, len(a.members))
	for _, i := range sharing {
		share := count * uint64(a.members[i].Weight)
		targets[i], remainders[i] = int(share/total), share%total
		left -= targets[i]
	}
	hasMore := func(i int) int {
		if remainders[i] > 0 && a.has[i] > targets[i] {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(sharing, func(i, j int) int {
		return cmp.Or(cmp.Compare(hasMore(i), hasMore(j)), cmp.Compare(remainders[j], remainders[i]))
	})
	for _, i := range sharing[:left] {
		targets[i]++
	}
	return targets
}

// limited are the targets of members that have less than their share and are not to get
// any; and the others, who share the buckets that are left.
func (a *assignment) limited() (targets, sharing []int, left int) {
	targets, left = make([]int, len(a.members)), len(a.places)
	for i := range a.members {
		sharing = append(sharing, i)
	}
	isLimited := func(i int, total uint64) bool {
		return a.anyKnown && a.members[i].Unknown && uint64(left)*uint64(a.members[i].Weight) > uint64(a.has[i])*total
	}
	for {
		total := uint64(0)
		for _, i := range sharing {
			total += uint64(a.members[i].Weight)
		}
		at := slices.IndexFunc(sharing, func(i int) bool { return isLimited(i, total) })
		if at < 0 {
			return targets, sharing, left
		}
		i := sharing[at]
		targets[i] = a.has[i]
		a.waiting += int(uint64(left)*uint64(a.members[i].Weight)/total) - a.has[i]
		left -= a.has[i]
		sharing = slices.Delete(sharing, at, at+1)
	}
}

// returnToEarlier gives buckets that have to go to a backend that had them and
// has too few: first those that are free, then those of backends with too many.
func (a *assignment) returnToEarlier() {
	for _, isFree := range []bool{true, false} {
		for i := range a.places {
			p := &a.places[i]
			if p.fixed || (p.owner == free) != isFree || !isFree && a.missing[p.owner] >= 0 {
				continue
			}
			at := slices.IndexFunc(p.earlier, func(member int) bool { return a.missing[member] > 0 })
			if at < 0 {
				continue
			}
			if !isFree {
				a.missing[p.owner]++
			}
			p.owner = p.earlier[at]
			a.missing[p.owner]--
		}
	}
}

// take from those that have more than their targets: buckets that name the fewest
// backends, and of these the last.
func (a *assignment) take() {
	for chain := range ChainMax {
		for i := len(a.places) - 1; i >= 0; i-- {
			p := &a.places[i]
			if p.owner != free && !p.fixed && p.chain == chain && a.missing[p.owner] < 0 {
				a.missing[p.owner]++
				p.owner = free
			}
		}
	}
	for _, missing := range a.missing {
		a.waiting += max(0, -missing)
	}
}

// give free buckets to those that have less than their targets, in turn.
func (a *assignment) give() {
	next := 0
	for i := range a.places {
		p := &a.places[i]
		if p.owner != free {
			continue
		}
		if p.fixed {
			continue
		}
		if p.chain >= ChainMax && !p.urgent {
			a.waiting++
			continue
		}
		for a.missing[next] <= 0 {
			next = (next + 1) % len(a.members)
		}
		p.owner = next
		a.missing[next]--
		next = (next + 1) % len(a.members)
	}
}
