package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

const owned = `
machine: {name: lb-1, addresses: [10.0.0.1]}
peers: [{name: lb-2, addresses: [10.0.0.2]}]
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}, {address: "2001:db8::10", ports: [80], protocol: tcp}], pools: [web]}
- {name: dns, vips: [{address: 203.0.113.11, ports: [53], protocol: udp}], pools: [web]}
pools: [{name: web, backends: [{name: web-1, address: 10.1.0.11}]}]
tunnel: {mtu: 1600}
vrrp: %s
`

func TestVRRPHasAGroupForEachMachineUnlessItIsGivenSome(t *testing.T) {
	for given, want := range map[string]VRRP{
		"{interface: eth1}": {Interface: "eth1", Interval: 100 * time.Millisecond, Groups: []VRRPGroup{{VRID: 51}, {VRID: 52}}},
		"{interface: eth1, vrid: 7, interval: 1s, groups: [{vips: [203.0.113.11]}, {}]}": {Interface: "eth1", Interval: time.Second, Groups: []VRRPGroup{
			{VRID: 7, VIPs: []netip.Addr{netip.MustParseAddr("203.0.113.11")}}, {VRID: 8},
		}},
	} {
		c, err := parseFor("", fmt.Sprintf(owned, given))
		if err != nil {
			t.Errorf("%s: %v", given, err)
			continue
		}
		same := slices.EqualFunc(c.VRRP.Groups, want.Groups, func(a, b VRRPGroup) bool { return a.VRID == b.VRID && slices.Equal(a.VIPs, b.VIPs) })
		if c.VRRP.Interface != want.Interface || c.VRRP.Interval != want.Interval || !same || !c.Announces() {
			t.Errorf("%s: %+v", given, c.VRRP)
		}
	}
}

func TestWhatVRRPCannotOwnIsRefused(t *testing.T) {
	for _, test := range []struct{ given, from, to, says string }{
		{"{vrid: 7}", "", "", "vrrp.interface"},
		{"{interface: eth1, interval: 15ms}", "", "", "vrrp.interval: is 15ms: give steps of 10ms"},
		{"{interface: eth1, interval: 1m}", "", "", "vrrp.interval: "},
		{"{interface: eth1, vrid: 256}", "", "", "vrrp.vrid: is 256"},
		{"{interface: eth1, vrid: 255}", "", "", "vrrp.vrid: is 255, and 2 groups from it on end at 256"},
		{"{interface: eth1, groups: [{vips: [203.0.113.99]}, {}]}", "", "", "vrrp.groups[0].vips[0]: 203.0.113.99 is the VIP of no service"},
		{"{interface: eth1, groups: [{vips: [203.0.113.11]}, {vips: [203.0.113.11]}, {}]}", "", "", "vrrp.groups[1].vips[0]: 203.0.113.11 is in two groups"},
		{"{interface: eth1, groups: [{vips: [nonsense]}, {}]}", "", "", "vrrp.groups[0].vips[0]: is \"nonsense\""},
		{"{interface: eth1, groups: [{vips: [203.0.113.11]}]}", "", "", "vrrp.groups: do not have VIP 203.0.113.10 of service web"},
		{"{interface: eth1, probes: [10.0.0.1]}", "", "", "vrrp.probes[0]: 10.0.0.1 is this machine's own address"},
		{"{interface: eth1, probes: [203.0.113.11]}", "", "", "vrrp.probes: 203.0.113.11 is a VIP"},
		{"{interface: eth1}", "name: lb-1, addresses: [10.0.0.1]", "name: lb-1, addresses: [203.0.113.11]", "203.0.113.11"},
	} {
		text := strings.Replace(fmt.Sprintf(owned, test.given), test.from, test.to, 1)
		if _, err := parseFor("", text); err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", test.given, err)
		}
	}
	peers := ""
	for i := range 17 {
		peers += fmt.Sprintf(", {name: more-%d, addresses: [10.0.1.%d]}", i, i+1)
	}
	text := strings.Replace(fmt.Sprintf(owned, "{interface: eth1}"), "[10.0.0.2]}", "[10.0.0.2]}"+peers, 1)
	if _, err := parseFor("", text); err == nil || !strings.Contains(err.Error(), "vrrp: is for at most 16 machines, and the cluster has 19") {
		t.Error(err)
	}
}

func TestAnEntryOfMachinesHasItsInterface(t *testing.T) {
	text := strings.Replace(fmt.Sprintf(owned, "{interface: eth1}"), "machine: {name: lb-1, addresses: [10.0.0.1]}\npeers: [{name: lb-2, addresses: [10.0.0.2]}]",
		"machines: [{name: lb-1, addresses: [10.0.0.1], vrrp_interface: bond0}, {name: lb-2, addresses: [10.0.0.2]}]", 1)
	for machine, want := range map[string]string{"lb-1": "bond0", "lb-2": "eth1"} {
		if c, err := parseFor(machine, text); err != nil || c.VRRP.Interface != want {
			t.Errorf("%s: %+v %v", machine, c, err)
		}
	}
}
