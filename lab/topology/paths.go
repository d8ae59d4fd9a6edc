package topology

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
)

// Scenarios bend the router's ways: by marks that its packet filter sets, and
// by MTUs of its routes. Real routers do the like: they spread fragments by
// other fields than whole packets, and ICMP errors by fields of their own.

// Marks: packets with mark N go to load balancer N (from 1), whatever the
// router's multipath routes say; those marked for a host go there.
const (
	markTable = 100
	markHost  = 1000
)

// RouteByMark makes the router heed marks.
func (network Network) RouteByMark(ctx context.Context) error {
	for i, n := range network.LoadBalancers {
		if err := network.routeMark(ctx, i+1, n); err != nil {
			return err
		}
	}
	return nil
}

// RouteToHost sends packets with the mark that it returns to the host.
func (network Network) RouteToHost(ctx context.Context, host *Host) (mark int, err error) {
	own := host.Node.Address(0).As4()
	mark = markHost + int(own[2])
	return mark, network.routeMark(ctx, mark, host.Node)
}

func (network Network) routeMark(ctx context.Context, mark int, to Node) error {
	var lines []string
	for family, flag := range []string{"-4", "-6"} {
		lines = append(lines,
			fmt.Sprintf("%s rule add fwmark %d table %d", flag, mark, markTable+mark),
			fmt.Sprintf("%s route replace default via %s table %d", flag, to.Address(family), markTable+mark))
	}
	for _, line := range lines {
		if err := Run(ctx, "", "ip", append([]string{"-n", network.Router}, strings.Fields(line)...)...); err != nil {
			return fmt.Errorf("route mark %d to %s: %w", mark, to.Name, err)
		}
	}
	return nil
}

// filterTable is the router's packet filter, all of it.
const filterTable = "inet guideway_lab"

// FilterRouter replaces the router's packet filter by these chains and
// counters, in nft's language; none of them removes it.
func (network Network) FilterRouter(ctx context.Context, chains string) error {
	// Declared first, so that deleting it never fails.
	rules := fmt.Sprintf("table %[1]s {}\ndelete table %[1]s\n", filterTable)
	if chains != "" {
		rules += fmt.Sprintf("table %s {\n%s\n}\n", filterTable, chains)
	}
	if err := Run(ctx, rules, "ip", "netns", "exec", network.Router, "nft", "-f", "-"); err != nil {
		return fmt.Errorf("filter on the router: %w", err)
	}
	return nil
}

// SpreadFragments sends every fragment but the first to one of these load
// balancers by chance, and counts them by its name. First fragments go as the
// router's multipath routes say.
func (network Network) SpreadFragments(ctx context.Context, names ...string) error {
	var counters, chains, verdicts strings.Builder
	for i, name := range names {
		mark, err := network.Mark(name)
		if err != nil {
			return err
		}
		label := strings.ReplaceAll(name, "-", "_")
		fmt.Fprintf(&counters, "counter %s {}\n", label)
		fmt.Fprintf(&chains, "chain to_%[1]s { counter name %[1]s meta mark set %[2]d; }\n", label, mark)
		fmt.Fprintf(&verdicts, "%d : goto to_%s, ", i, label)
	}
	vips4, vips6 := VIPPrefix4, VIPPrefix6
	return network.FilterRouter(ctx, fmt.Sprintf(`%s%s
chain spread { numgen random mod %d vmap { %s }; }
chain prerouting {
	type filter hook prerouting priority mangle;
	ip daddr %s ip frag-off & 0x1fff != 0 goto spread;
	ip6 daddr %s frag frag-off != 0 goto spread;
}`, counters.String(), chains.String(), len(names), verdicts.String(), vips4, vips6))
}

// Mark of a load balancer.
func (network Network) Mark(name string) (int, error) {
	n, err := network.LoadBalancer(name)
	if err != nil {
		return 0, err
	}
	own := n.Address(0).As4()
	return int(own[2]), nil
}

// RouterCounters are the packets that the filter's named counters saw.
func (network Network) RouterCounters(ctx context.Context) (map[string]uint64, error) {
	out, err := Output(ctx, "", "ip", append([]string{"netns", "exec", network.Router, "nft", "-j", "list", "counters", "table"}, strings.Fields(filterTable)...)...)
	if err != nil {
		return nil, fmt.Errorf("counters of the router: %w", err)
	}
	var listing struct {
		Nftables []struct {
			Counter *struct {
				Name    string
				Packets uint64
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &listing); err != nil {
		return nil, fmt.Errorf("counters of the router: %w", err)
	}
	counts := map[string]uint64{}
	for _, item := range listing.Nftables {
		if item.Counter != nil {
			counts[item.Counter.Name] = item.Counter.Packets
		}
	}
	return counts, nil
}

// NarrowPath makes the router's way to the clients' network ("client") or to a
// backend narrower than its link; 0 makes it as wide as that again.
func (network Network) NarrowPath(ctx context.Context, name string, mtu int) error {
	n, err := network.Node(name)
	if err != nil {
		return err
	}
	for family, prefix := range n.Addresses {
		// Locked, so that the router takes it for the path's when it forwards.
		limit := fmt.Sprintf(" mtu lock %d", mtu)
		if mtu == 0 {
			limit = ""
		}
		line := fmt.Sprintf("route replace %s dev %s proto kernel%s%s", prefix.Masked(), n.Port, onLink(n, family), limit)
		if err := IPBatch(ctx, network.Router, []string{line}); err != nil {
			return fmt.Errorf("path to %s: %w", name, err)
		}
	}
	return nil
}

// onLink are the rest of a connected route's words.
func onLink(n Node, family int) string {
	if family == 0 {
		return fmt.Sprintf(" scope link src %s", n.Gateway(family))
	}
	return " metric 256"
}

// ForgetPaths makes all nodes forget what they learnt of paths.
func (network Network) ForgetPaths(ctx context.Context) error {
	for _, namespace := range network.Namespaces() {
		for _, flag := range []string{"-4", "-6"} {
			if err := Run(ctx, "", "ip", flag, "-n", namespace, "route", "flush", "cache"); err != nil {
				return fmt.Errorf("forget paths: %w", err)
			}
		}
	}
	return nil
}

// PathMTU that a node's kernel has learnt towards an address, or its route's;
// 0: neither.
func (network Network) PathMTU(ctx context.Context, name string, to, from netip.Addr) (int, error) {
	n, err := network.Node(name)
	if err != nil {
		return 0, err
	}
	out, err := Output(ctx, "", "ip", "-j", "-n", n.Namespace, "route", "get", to.String(), "from", from.String())
	if err != nil {
		return 0, fmt.Errorf("path of %s to %s: %w", name, to, err)
	}
	var routes []struct {
		Metrics []struct{ MTU int }
	}
	if err := json.Unmarshal([]byte(out), &routes); err != nil {
		return 0, fmt.Errorf("path of %s to %s: %w", name, to, err)
	}
	for _, route := range routes {
		for _, metrics := range route.Metrics {
			return metrics.MTU, nil
		}
	}
	return 0, nil
}
