package speaker

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
	"github.com/guideway/guideway/speaker/vrrp/election"
)

func desiredOf(machine string, routes ...*speakerv1.Route) *speakerv1.Desired {
	return &speakerv1.Desired{Routes: routes, Vrrp: &speakerv1.Vrrp{
		Interface: "eth1", Interval: durationpb.New(100 * time.Millisecond), Machine: machine, Machines: []string{"lb-1", "lb-2"},
		Vips:   []string{"203.0.113.10", "203.0.113.11", "203.0.113.12", "2001:db8::10"},
		Groups: []*speakerv1.VrrpGroup{{Vrid: 7, Vips: []string{"203.0.113.10", "2001:db8::10"}}, {Vrid: 8}, {Vrid: 9}},
	}}
}

func route(prefix string) *speakerv1.Route { return &speakerv1.Route{Prefix: prefix} }

var allRoutes = []*speakerv1.Route{route("203.0.113.10/32"), route("203.0.113.11/32"), route("203.0.113.12/32"), route("2001:db8::10/128"), route("198.51.100.0/24")}

// vipsOf groups by VRID, and their priorities.
func vipsOf(t *testing.T, desired *speakerv1.Desired) (vips map[uint8][]string, priorities map[uint8]uint8) {
	t.Helper()
	want, err := ownedOf(desired, election.Standing{})
	if err != nil {
		t.Fatal(err)
	}
	vips, priorities = map[uint8][]string{}, map[uint8]uint8{}
	for _, group := range want.Groups {
		for _, vip := range group.VIPs {
			vips[group.VRID] = append(vips[group.VRID], vip.String())
		}
		priorities[group.VRID] = group.Priority
	}
	return vips, priorities
}

func TestBothMachinesMakeTheSameGroupsAndOneOwnsEach(t *testing.T) {
	vips, one := vipsOf(t, desiredOf("lb-1", allRoutes...))
	others, two := vipsOf(t, desiredOf("lb-2", allRoutes...))
	if !slices.Equal(vips[7], []string{"203.0.113.10", "2001:db8::10"}) || len(vips[8])+len(vips[9]) != 2 {
		t.Errorf("groups %v", vips)
	}
	owns := map[string]int{}
	for vrid := range vips {
		if !slices.Equal(vips[vrid], others[vrid]) || one[vrid] == two[vrid] {
			t.Errorf("VRID %d: %v and %v, priorities %d and %d", vrid, vips[vrid], others[vrid], one[vrid], two[vrid])
		}
		if one[vrid] > two[vrid] {
			owns["lb-1"]++
		} else {
			owns["lb-2"]++
		}
	}
	if len(owns) != 2 {
		t.Errorf("owned %v", owns)
	}
}

func TestAGroupThatLacksVIPsIsLeftToWhoHasThem(t *testing.T) {
	_, had := vipsOf(t, desiredOf("lb-1", allRoutes...))
	vips, has := vipsOf(t, desiredOf("lb-1", allRoutes[1:]...)) // 203.0.113.10 is no route any more
	if !slices.Equal(vips[7], []string{"2001:db8::10"}) || had[7]-has[7] != election.SlowBy || has[8] != had[8] {
		t.Errorf("%v, priorities %v after %v", vips, has, had)
	}
	leaving := desiredOf("lb-1", allRoutes...)
	leaving.Routes = slices.Clone(leaving.Routes)
	leaving.Routes[0] = &speakerv1.Route{Prefix: "203.0.113.10/32", GracefulShutdown: true}
	if vips, has := vipsOf(t, leaving); len(vips[7]) != 2 || had[7]-has[7] != election.SlowBy {
		t.Errorf("leaving: %v, priorities %v", vips, has)
	}
	if vips, _ := vipsOf(t, desiredOf("lb-1")); len(vips) != 0 {
		t.Errorf("without routes: %v", vips)
	}
}

func TestWhatIsNoConfigOfVRRPIsToldAndChangesNothing(t *testing.T) {
	if want, err := ownedOf(&speakerv1.Desired{Routes: allRoutes}, election.Standing{}); err != nil || want.Interface != "" {
		t.Errorf("%v %v", want, err)
	}
	stranger := desiredOf("lb-9", allRoutes...)
	if _, err := ownedOf(stranger, election.Standing{}); err == nil || !strings.Contains(err.Error(), "lb-9 among them") {
		t.Error(err)
	}
	probing := desiredOf("lb-1", allRoutes...)
	probing.Vrrp.Probes = []string{"192.0.2.254", "fe80::1"}
	if want, err := ownedOf(probing, election.Standing{}); err != nil || len(want.Probes) != 2 || want.Check() != nil {
		t.Errorf("%v %v", want, err)
	}
	bad := desiredOf("lb-1", allRoutes...)
	bad.Vrrp.Vips = append(bad.Vrrp.Vips, "nonsense")
	if _, err := ownedOf(bad, election.Standing{}); err == nil {
		t.Error("taken")
	}
}
