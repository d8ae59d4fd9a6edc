package hosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/speaker/vrrp/election"
)

// vrrp is what there is without a router: the load balancers own the VIPs on a segment that
// they share with the client.
type vrrp struct{ lab *Lab }

func (vrrp) daemons() []string { return nil }

func (vrrp) start() error { return nil }

func (v vrrp) show() [][2]string {
	guideway, first := v.lab.program(), v.lab.Network.LoadBalancers[0]
	return [][2]string{
		{"who owns which VIPs", fmt.Sprintf("%s show vrrp --run-dir %s", guideway, v.lab.path(first, "run"))},
		{"", fmt.Sprintf("ip -n %s neigh show", v.lab.Network.Client.Namespace)},
	}
}

func (vrrp) reset(context.Context, topology.Node) error {
	return errors.New("reset a BGP session: the lab has no router")
}

// vrrpConfig of every load balancer. Another one owns its VIPs 0.7 s after its death: slower
// than by default, because here two cores play all machines.
func vrrpConfig(network topology.Network) string {
	var groups []string
	for _, vips := range vrrpGroups(network) {
		var items []string
		for _, vip := range vips {
			items = append(items, fmt.Sprintf("%q", vip))
		}
		groups = append(groups, fmt.Sprintf("{vips: [%s]}", strings.Join(items, ", ")))
	}
	return fmt.Sprintf("vrrp: {interface: eth0, interval: 200ms, groups: [%s]}\n", strings.Join(groups, ", "))
}

// vrrpGroups: one for each load balancer, listed so that none is without VIPs, and so that
// of two each has both services and both families. With one owner there is one group.
func vrrpGroups(network topology.Network) [][]netip.Addr {
	count := len(network.LoadBalancers)
	if network.OneOwner {
		count = 1
	}
	groups := make([][]netip.Addr, count)
	for i, vip := range slices.Concat(topology.WebVIPs, []netip.Addr{topology.EchoVIPs[1], topology.EchoVIPs[0]}) {
		groups[i%len(groups)] = append(groups[i%len(groups)], vip)
	}
	return groups
}

// allOwn: each VIP's owner is the load balancer that its group prefers.
func allOwn(network topology.Network, routes topology.Routes) error {
	groups := vrrpGroups(network)
	for i, vips := range groups {
		owner := preferred(network.LoadBalancers, i, len(groups))
		own := []netip.Addr{owner.Address(0), owner.Address(1)}
		for _, vip := range vips {
			if !routes.Of([]netip.Addr{vip}).Via(own) {
				return fmt.Errorf("the client has %v for %s, and not %s", routes[vip], vip, owner.Name)
			}
		}
	}
	return nil
}

// PreferredOwner of all VIPs, in a lab in which they have one.
func (lab *Lab) PreferredOwner() string {
	return preferred(lab.Network.LoadBalancers, 0, 1).Name
}

// preferred by a group of so many.
func preferred(machines []topology.Node, group, groups int) topology.Node {
	names := topology.Names(machines)
	return slices.MaxFunc(machines, func(a, b topology.Node) int {
		return cmp.Compare(election.Priorities(names, a.Name, groups)[group], election.Priorities(names, b.Name, groups)[group])
	})
}
