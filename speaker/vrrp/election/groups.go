package election

// Groups of VIPs and their preferred owners, computed in the same way on each machine from the
// shared config: the number of groups and the machines' names.

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
)

const (
	// MachinesMax that priorities are given to: the last one's is 130, which waits for the
	// owner for 3.49 intervals.
	MachinesMax = 16
	// The first machine's priority, and how much lower that of each next one is. Where two
	// wait for the same owner, the second waits for as many 256ths of an interval longer.
	priorityFirst = 250
	priorityStep  = 8
)

// GroupOf a VIP among so many groups, from 0: by the VIP alone, so that no other VIP moves
// it. One group more takes from each its share and moves nothing else (jump consistent
// hash, Lamping and Veach 2014).
func GroupOf(vip netip.Addr, groups int) int {
	key := hash("vip", string(vip.AsSlice()))
	group, next := 0, 0
	for next < groups {
		group = next
		key = key*2862933555777941757 + 1
		next = int(float64(group+1) * (float64(1<<31) / float64(key>>33+1)))
	}
	return group
}

// Priorities of one machine in so many groups: rotated, so that a machine owns as many
// groups as any other, or one less, and so does the one that takes over, as far as can be.
// nil: it is not among the machines, or there are more than MachinesMax.
//
// A group prefers machines in the order of a hash of both (rendezvous hashing), as long as
// they have room, so that a further machine changes few groups' owners. The order in which
// machines are given does not matter.
func Priorities(machines []string, machine string, groups int) []uint8 {
	machines = slices.Clone(machines)
	slices.Sort(machines)
	machines = slices.Compact(machines)
	if len(machines) > MachinesMax || !slices.Contains(machines, machine) {
		return nil
	}
	priorities := make([]uint8, groups)
	for group, order := range orders(machines, groups) {
		priorities[group] = uint8(priorityFirst - priorityStep*slices.Index(order, machine))
	}
	return priorities
}

// orders of the machines, the owner first, for each group.
func orders(machines []string, groups int) [][]string {
	orders, preferred := make([][]string, groups), make([][]string, groups)
	for group := range groups {
		preferred[group] = preference(machines, group)
	}
	for range machines {
		r := newRank(len(machines), groups)
		for group := range groups {
			left := slices.DeleteFunc(slices.Clone(preferred[group]), func(m string) bool { return slices.Contains(orders[group], m) })
			orders[group] = append(orders[group], r.choose(left))
		}
	}
	return orders
}

// rank of machines in all groups: who is first, or second, and so on.
type rank struct {
	has map[string]int
	// Each machine is to have so many groups, and so many machines one more.
	each, more int
}

func newRank(machines, groups int) *rank {
	return &rank{has: map[string]int{}, each: groups / machines, more: groups % machines}
}

// choose the first that has room, or one that has least.
func (r *rank) choose(machines []string) string {
	chosen := slices.IndexFunc(machines, func(m string) bool {
		return r.has[m] < r.each || r.has[m] == r.each && r.more > 0
	})
	if chosen < 0 {
		chosen = slices.Index(machines, slices.MinFunc(machines, func(a, b string) int { return cmp.Compare(r.has[a], r.has[b]) }))
	}
	machine := machines[chosen]
	if r.has[machine] == r.each {
		r.more--
	}
	r.has[machine]++
	return machine
}

func preference(machines []string, group int) []string {
	keys := make(map[string]uint64, len(machines))
	for _, machine := range machines {
		keys[machine] = hash("machine", string(binary.BigEndian.AppendUint32(nil, uint32(group))), machine)
	}
	return slices.SortedFunc(slices.Values(machines), func(a, b string) int {
		return cmp.Or(cmp.Compare(keys[b], keys[a]), strings.Compare(a, b))
	})
}

// hash of the parts: the first 64 bits of SHA-256.
func hash(parts ...string) uint64 {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return binary.BigEndian.Uint64(sum[:])
}
