package election

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

func vipNumber(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)})
}

func machineNames(count int) (names []string) {
	for i := range count {
		names = append(names, fmt.Sprintf("lb-%d", i+1))
	}
	return names
}

// What machines of all versions have to compute alike.
func TestGroupsAndPrioritiesAreThoseOfEveryVersion(t *testing.T) {
	var groups []int
	for i := range 8 {
		groups = append(groups, GroupOf(vipNumber(i), 4))
	}
	groups = append(groups, GroupOf(netip.MustParseAddr("2001:db8::1"), 4), GroupOf(netip.MustParseAddr("2001:db8::2"), 4))
	if want := []int{2, 1, 3, 0, 2, 2, 0, 3, 2, 0}; !slices.Equal(groups, want) {
		t.Errorf("groups %v, want %v", groups, want)
	}
	for machine, want := range map[string][]uint8{
		"lb-1": {234, 242, 234, 250, 250, 242},
		"lb-2": {242, 250, 242, 234, 234, 250},
		"lb-3": {250, 234, 250, 242, 242, 234},
	} {
		if got := Priorities(machineNames(3), machine, 6); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", machine, got, want)
		}
	}
}

func TestVIPsSpreadOverGroupsAndAFurtherGroupMovesItsShareOnly(t *testing.T) {
	const vips = 2000
	for groups := 1; groups <= 32; groups++ {
		counts, moved := make([]int, groups+1), 0
		for i := range vips {
			before, after := GroupOf(vipNumber(i), groups), GroupOf(vipNumber(i), groups+1)
			counts[after]++
			if before != after {
				moved++
				if after != groups {
					t.Fatalf("%d groups: VIP %d moved between groups that both were before", groups, i)
				}
			}
		}
		share := vips / (groups + 1)
		if moved > share*3/2 || slices.Min(counts) < share/2 || slices.Max(counts) > share*2 {
			t.Errorf("%d groups and one more: %d VIPs moved, groups have %v", groups, moved, counts)
		}
	}
}

func TestEveryMachineOwnsAsManyGroupsAsAnyOtherOrOneLess(t *testing.T) {
	for machines := 1; machines <= MachinesMax; machines++ {
		names := machineNames(machines)
		for groups := 1; groups <= 20; groups++ {
			owns := make([]int, machines)
			given := map[int][]uint8{}
			for i, name := range names {
				for group, priority := range Priorities(names, name, groups) {
					given[group] = append(given[group], priority)
					if priority == priorityFirst {
						owns[i]++
					}
				}
			}
			if slices.Max(owns)-slices.Min(owns) > 1 {
				t.Errorf("%d machines, %d groups: they own %v", machines, groups, owns)
			}
			for group, priorities := range given {
				slices.Sort(priorities)
				if len(slices.Compact(priorities)) != machines {
					t.Errorf("%d machines, group %d: priorities are not distinct", machines, group)
				}
			}
		}
	}
}

// With two machines of two groups, one each; and who dies leaves its groups to all others.
func TestTheGroupsOfADeadMachineGoToSeveral(t *testing.T) {
	names := machineNames(4)
	heirs := map[string]int{}
	for _, order := range orders(names, 12) {
		if order[0] == "lb-1" {
			heirs[order[1]]++
		}
	}
	if len(heirs) < 2 {
		t.Errorf("three groups of lb-1 go to %v", heirs)
	}
}

func TestAFurtherMachineTakesFewGroupsFromOthers(t *testing.T) {
	changed, groupsInAll, least := 0, 0, 0
	for machines := 1; machines < 8; machines++ {
		for groups := 2; groups <= 32; groups++ {
			before, after := orders(machineNames(machines), groups), orders(machineNames(machines+1), groups)
			groupsInAll, least = groupsInAll+groups, least+groups/(machines+1)
			for group := range groups {
				if before[group][0] != after[group][0] {
					changed++
				}
			}
		}
	}
	t.Logf("of %d groups %d changed owner, at least %d had to", groupsInAll, changed, least)
	if changed > least*2 {
		t.Errorf("of %d groups %d changed owner, %d had to", groupsInAll, changed, least)
	}
}

func TestTheOrderOfMachinesAndStrangersDoNotMatter(t *testing.T) {
	if a, b := Priorities([]string{"a", "b", "c"}, "b", 5), Priorities([]string{"c", "b", "a", "b"}, "b", 5); !slices.Equal(a, b) {
		t.Errorf("%v and %v", a, b)
	}
	if got := Priorities([]string{"a", "b"}, "c", 5); got != nil {
		t.Errorf("a machine that is not listed has priorities %v", got)
	}
	if got := Priorities(machineNames(MachinesMax+1), "lb-1", 5); got != nil {
		t.Errorf("more machines than priorities: %v", got)
	}
}

// The last machine waits for 3.5 intervals at most, and a slow machine is behind each other.
func TestPrioritiesKeepTheTimeOfDetectionAndOrderSlowMachinesLast(t *testing.T) {
	last := priorityFirst - priorityStep*(MachinesMax-1)
	if skew := float64(256-last) / 256; 3+skew > 3.6 {
		t.Errorf("the last machine waits for %.2f intervals", 3+skew)
	}
	if priorityFirst > PriorityMax || priorityFirst-SlowBy >= last || last-SlowBy < 1 {
		t.Errorf("first %d, last %d, slow ones %d lower", priorityFirst, last, SlowBy)
	}
}
