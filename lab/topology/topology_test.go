package topology

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

func testOptions() Options {
	return Options{Name: "t", RunDir: "/nowhere", LoadBalancers: 2, Backends: 3, Spares: 1, Queues: 2}
}

func TestEveryNodeHasItsOwnNameAndAddresses(t *testing.T) {
	o := testOptions()
	o.LoadBalancers, o.Backends, o.Spares = MachinesMax, MachinesMax-1, 1
	l := New(o)
	seen := map[string]bool{}
	for _, n := range l.Nodes() {
		for _, text := range []string{n.Namespace, n.Port, n.Address(0).String(), n.Address(1).String(), n.Gateway(0).String(), n.Gateway(1).String()} {
			if seen[text] {
				t.Errorf("%s: %s is used twice", n.Name, text)
			}
			seen[text] = true
		}
		if len(n.Port) > 15 {
			t.Errorf("%s: a link's name has at most 15 characters", n.Port)
		}
		if !strings.HasPrefix(n.Namespace, "gw-t.") {
			t.Errorf("namespace %s does not carry the instance", n.Namespace)
		}
	}
	if len(seen) != 6*(1+2*MachinesMax) {
		t.Errorf("%d names", len(seen))
	}
}

func TestNoInstanceIsThePrefixOfAnother(t *testing.T) {
	for _, name := range New(Options{Name: "t-1", LoadBalancers: 1, Backends: 1}).Namespaces() {
		if strings.HasPrefix(name, NamespacePrefix("t")) {
			t.Errorf("lab t would take namespace %s of lab t-1 down", name)
		}
	}
}

func TestBadOptionsAreRefusedWithTheirCure(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"name":               func(o *Options) { o.Name = "a b" },
		"name \"../etc\"":    func(o *Options) { o.Name = "../etc" },
		"load balancers 0":   func(o *Options) { o.LoadBalancers = 0 },
		"backends 0":         func(o *Options) { o.Backends = 0 },
		"backends 200 (and ": func(o *Options) { o.Backends = 200 },
		"queues 17":          func(o *Options) { o.Queues = 17 },
		"encap \"vxlan\"":    func(o *Options) { o.Encap = "vxlan" },
		"driver \"dpdk\"":    func(o *Options) { o.Driver = "dpdk" },
		"steering \"hand\"":  func(o *Options) { o.Steering = "hand" },
		"workers 3: only":    func(o *Options) { o.Workers = 3 },
		"workers 65: give":   func(o *Options) { o.Steering, o.Workers = "software", 65 },
		"fabric MTU 1400":    func(o *Options) { o.FabricMTU = 1400 },
		"bird, frr or none":  func(o *Options) { o.Router = "cisco" },
		"give 1 to 4, as":    func(o *Options) { o.Router, o.LoadBalancers = NoRouter, 5 },
		"one owner of all":   func(o *Options) { o.OneOwner = true },
		"without a router":   func(o *Options) { o.Router, o.TwoClusters = NoRouter, true },
	} {
		o := testOptions()
		change(&o)
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", want, err)
		}
	}
	if err := testOptions().Check(); err != nil {
		t.Error(err)
	}
}

func TestWithoutARouterEverythingIsOnTheLink(t *testing.T) {
	o := testOptions()
	for router, want := range map[string][3]string{
		"":       {"router", "route replace default via 10.30.1.254 mtu 1500", "route replace default via 2001:db8:30:1::fe mtu 1500"},
		NoRouter: {"switch", "route replace 0.0.0.0/0 dev eth0 mtu 1500", "route replace ::/0 dev eth0 mtu 1500"},
	} {
		o.Router = router
		network := New(o)
		backend := network.Backends[0]
		got := [3]string{network.RouterName(), network.defaultRoute(backend, 0), network.defaultRoute(backend, 1)}
		if got != want || network.Router != "gw-t."+want[0] {
			t.Errorf("%q: %q in %s", router, got, network.Router)
		}
	}
}

func TestAVIPsOwnerIsTheNeighbourThatAnswersForIt(t *testing.T) {
	address := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	machines := map[string]Node{address.String(): {Name: "lb-1"}}
	for name, test := range map[string]struct {
		neighbor netlink.Neigh
		owned    bool
	}{
		"owned":            {netlink.Neigh{IP: WebVIPs[0].AsSlice(), HardwareAddr: address, State: netlink.NUD_STALE}, true},
		"IPv6":             {netlink.Neigh{IP: WebVIPs[1].AsSlice(), HardwareAddr: address, State: netlink.NUD_REACHABLE}, true},
		"does not answer":  {netlink.Neigh{IP: WebVIPs[0].AsSlice(), HardwareAddr: address, State: netlink.NUD_FAILED}, false},
		"never answered":   {netlink.Neigh{IP: WebVIPs[0].AsSlice(), State: netlink.NUD_INCOMPLETE}, false},
		"another's answer": {netlink.Neigh{IP: WebVIPs[0].AsSlice(), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 2}, State: netlink.NUD_REACHABLE}, false},
		"no VIP":           {netlink.Neigh{IP: net.IPv4(10, 20, 1, 1), HardwareAddr: address, State: netlink.NUD_REACHABLE}, false},
	} {
		vip, owner, ok := ownerOf(test.neighbor, machines)
		if ok != test.owned || ok && (owner.Name != "lb-1" || vip.AsSlice() == nil) {
			t.Errorf("%s: %s of %s, %v", name, vip, owner.Name, ok)
		}
	}
}

func TestKernelCountersAreFoundByTheirColumn(t *testing.T) {
	const snmp = `Ip: Forwarding DefaultTTL InCsumErrors
Ip: 1 64 9
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn InErrs OutRsts InCsumErrors
Tcp: 1 200 120000 -1 4 6 3
Udp: InDatagrams NoPorts InCsumErrors IgnoredMulti
Udp: 7 8 2 0
`
	counters := map[string]uint64{}
	parseSnmp(snmp, counters)
	parseSnmp6("Udp6InErrors  3\nUdp6InCsumErrors   4\nUdpLite6InCsumErrors 5\n", counters)
	for name, want := range map[string]uint64{"Ip.InCsumErrors": 9, "Tcp.InCsumErrors": 3, "Udp.InCsumErrors": 2, "Udp6InCsumErrors": 4, "Tcp.MaxConn": 0} {
		if got, known := counters[name]; !known || got != want {
			t.Errorf("%s is %d", name, got)
		}
	}
}

func TestNextHopsOfSingleAndMultipathRoutes(t *testing.T) {
	first, second := netip.MustParseAddr("10.20.1.1"), netip.MustParseAddr("10.20.2.1")
	single := netlink.Route{Gw: first.AsSlice()}
	multi := netlink.Route{MultiPath: []*netlink.NexthopInfo{{Gw: first.AsSlice()}, {Gw: second.AsSlice()}}}
	if got := nextHops(single); len(got) != 1 || got[0] != first {
		t.Errorf("single: %v", got)
	}
	if got := nextHops(multi); len(got) != 2 || got[1] != second {
		t.Errorf("multipath: %v", got)
	}
	routes := Routes{WebVIPs[0]: {first}, WebVIPs[1]: nil}
	if !routes.Via([]netip.Addr{first, second}) || routes.Via([]netip.Addr{second}) {
		t.Error("via returns another route")
	}
	if err := routes.Complete(WebVIPs, 1); err == nil {
		t.Error("routes lack, but are complete")
	}
}
