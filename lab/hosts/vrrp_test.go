package hosts

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/guideway/guideway/lab/topology"
)

func TestWithoutARouterEachLoadBalancerOwnsVIPs(t *testing.T) {
	for machines := 1; machines <= 4; machines++ {
		o := testOptions()
		o.Router, o.LoadBalancers = topology.NoRouter, machines
		network := topology.New(o)
		groups := vrrpGroups(network)
		routes, owners := topology.Routes{}, map[string]bool{}
		for group, vips := range groups {
			owner := preferred(network.LoadBalancers, group, len(groups))
			owners[owner.Name] = true
			for _, vip := range vips {
				routes[vip] = []netip.Addr{owner.Address(0)}
			}
		}
		if len(owners) != machines || len(routes) != 4 {
			t.Errorf("%d machines: %v own %v", machines, owners, groups)
		}
		if err := routesComplete(network, routes); err != nil {
			t.Errorf("%d machines: %v", machines, err)
		}
		delete(routes, topology.EchoVIPs[1])
		if err := routesComplete(network, routes); err == nil || !strings.Contains(err.Error(), topology.EchoVIPs[1].String()) {
			t.Errorf("%d machines: a VIP has no owner: %v", machines, err)
		}
	}
}

func TestOneOwnerHasAllVIPs(t *testing.T) {
	o := testOptions()
	o.Router, o.OneOwner = topology.NoRouter, true
	lab := &Lab{Network: topology.New(o)}
	if groups := vrrpGroups(lab.Network); len(groups) != 1 || len(groups[0]) != 4 {
		t.Errorf("groups %v", groups)
	}
	owner, err := lab.Network.LoadBalancer(lab.PreferredOwner())
	if err != nil {
		t.Fatal(err)
	}
	routes := topology.Routes{}
	for i, vip := range append(topology.WebVIPs, topology.EchoVIPs...) {
		routes[vip] = []netip.Addr{owner.Address(i % 2)}
	}
	if err := routesComplete(lab.Network, routes); err != nil {
		t.Error(err)
	}
}

func TestOfTwoLoadBalancersEachOwnsBothServicesAndFamilies(t *testing.T) {
	o := testOptions()
	o.Router = topology.NoRouter
	network := topology.New(o)
	config := machineConfig(network, network.LoadBalancers[0], nil, o.Settings)
	const want = `groups: [{vips: ["203.0.113.10", "2001:db8:a::20"]}, {vips: ["2001:db8:a::10", "203.0.113.20"]}]`
	if !strings.Contains(config, want) || strings.Contains(config, "bgp:") {
		t.Errorf("no %q, or BGP, in\n%s", want, config)
	}
}
