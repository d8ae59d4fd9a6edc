package topology

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"
)

// Build makes namespaces, links, addresses and static routes. The
// router's routes to the VIPs come by BGP; without a router, the client learns
// by ARP and neighbour discovery who owns a VIP.
func (network Network) Build(ctx context.Context) error {
	for _, namespace := range network.Namespaces() {
		if err := Run(ctx, "", "ip", "netns", "add", namespace); err != nil {
			return err
		}
	}
	if err := linkNodes(ctx, network); err != nil {
		return fmt.Errorf("link nodes: %w", err)
	}
	setUp := setUpRouter
	if network.Switch {
		setUp = setUpSwitch
	}
	if err := setUp(ctx, network); err != nil {
		return fmt.Errorf("set up %s: %w", network.RouterName(), err)
	}
	group, nodes := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, n := range network.Nodes() {
		group.Go(func() error {
			if err := network.setUpNode(nodes, n); err != nil {
				return fmt.Errorf("set up %s: %w", n.Name, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := passAll(ctx, network); err != nil {
		return err
	}
	// Loads choose their ports below these themselves (lab/traffic/load).
	if err := SetSysctls(network.Client.Namespace, []string{"ipv4/ip_local_port_range=60000 65535"}); err != nil {
		return err
	}
	if network.Switch {
		if err := keepOwnersResolved(ctx, network); err != nil {
			return err
		}
	}
	return giveBackendsTheVIPs(ctx, network)
}

// linkNodes makes both ends of every link inside the namespaces, so that no
// name of a link is ever seen by the machine or by another lab.
func linkNodes(ctx context.Context, network Network) error {
	var lines []string
	for _, n := range network.Nodes() {
		lines = append(lines, linkLine(n))
	}
	return IPBatch(ctx, network.Router, lines)
}

func linkLine(n Node) string {
	queues := fmt.Sprintf("numrxqueues %d numtxqueues %d", n.Queues, n.Queues)
	return fmt.Sprintf("link add %s mtu %d %s type veth peer name eth0 mtu %d %s netns %s",
		n.Port, n.MTU, queues, n.MTU, queues, n.Namespace)
}

// Settings that every namespace needs before its interfaces get addresses.
var commonSysctls = []string{
	// Replies leave with a VIP as source through an interface that the VIP is
	// not routed to.
	"ipv4/conf/all/rp_filter=0", "ipv4/conf/default/rp_filter=0",
	"ipv6/conf/all/accept_dad=0", "ipv6/conf/default/accept_dad=0",
	"ipv6/conf/all/accept_ra=0", "ipv6/conf/default/accept_ra=0",
	// The hash of a sender's socket travels with its packets over veth; a new
	// one at each retransmission would move the flow to another queue, so to
	// another worker.
	"?core/txrehash=0",
}

func setUpRouter(ctx context.Context, network Network) error {
	settings := append([]string{
		"ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1", "ipv6/conf/default/forwarding=1",
		"ipv4/conf/all/send_redirects=0", "ipv4/conf/default/send_redirects=0",
		// A port that was down keeps its IPv6 addresses, as it does IPv4 ones.
		"ipv6/conf/all/keep_addr_on_down=1", "ipv6/conf/default/keep_addr_on_down=1",
		// Policy 1 uses the hash of the sender's socket. 3 with these fields
		// is the five-tuple, computed from the packet: source and destination
		// address 0x3, protocol 0x4, source and destination port 0x30.
		"ipv4/fib_multipath_hash_policy=3", "ipv4/fib_multipath_hash_fields=0x37",
		"ipv6/fib_multipath_hash_policy=3", "ipv6/fib_multipath_hash_fields=0x37",
	}, commonSysctls...)
	if err := SetSysctls(network.Router, settings); err != nil {
		return err
	}
	lines := []string{"link set lo up"}
	for _, prefix := range network.VIPPrefixes() {
		// As on a real router: while no route to a VIP is there (BIRD replaces
		// an IPv6 route by deleting it first) its packets vanish and are sent
		// again, instead of being answered with an error that ends connections.
		// Routes that BIRD and FRR learn by BGP have lower metrics. FRR takes a
		// metric's high byte for the administrative distance of a route that it
		// finds in the kernel: with 255 this one never displaces one of BGP.
		lines = append(lines, fmt.Sprintf("route add blackhole %s metric %d", prefix, uint32(255<<24+1_000_000)))
	}
	for _, n := range network.Nodes() {
		lines = append(lines, bringUp(n.Port, n.Gateways)...)
	}
	return setUpPorts(ctx, network, lines)
}

// setUpSwitch: a bridge of all ports. It has the addresses that a router would have in the
// load balancers' networks, because their etcd runs here; it forwards nothing by them.
func setUpSwitch(ctx context.Context, network Network) error {
	const bridge = "bridge"
	if err := SetSysctls(network.Router, commonSysctls); err != nil {
		return err
	}
	// Without a querier of MLD and IGMP every port gets all multicasts anyway.
	lines := []string{"link set lo up", "link add name " + bridge + " type bridge mcast_snooping 0"}
	for _, n := range network.Nodes() {
		lines = append(lines, fmt.Sprintf("link set %s master %s up", n.Port, bridge))
	}
	for _, n := range network.LoadBalancers {
		lines = append(lines, bringUp(bridge, n.Gateways)...)
	}
	return setUpPorts(ctx, network, lines)
}

// setUpPorts of the router or the switch by these lines of `ip`.
func setUpPorts(ctx context.Context, network Network, lines []string) error {
	if err := IPBatch(ctx, network.Router, lines); err != nil {
		return err
	}
	for _, n := range network.Nodes() {
		if err := network.computeChecksums(ctx, network.Router, n.Port); err != nil {
			return err
		}
	}
	return nil
}

// keepOwnersResolved: the client's neighbour tables always name each VIP's owner, also
// while it sends nothing there: see Router.
func keepOwnersResolved(ctx context.Context, network Network) error {
	var lines []string
	for _, c := range network.Clusters() {
		for _, vip := range c.VIPs() {
			lines = append(lines, fmt.Sprintf("neigh replace %s dev eth0 managed", vip))
		}
	}
	return IPBatch(ctx, network.Client.Namespace, lines)
}

func (network Network) setUpNode(ctx context.Context, n Node) error {
	if err := SetSysctls(n.Namespace, commonSysctls); err != nil {
		return err
	}
	lines := append([]string{"link set lo up"}, bringUp("eth0", n.Addresses)...)
	for family := range n.Gateways {
		lines = append(lines, network.defaultRoute(n, family))
	}
	if err := IPBatch(ctx, n.Namespace, lines); err != nil {
		return err
	}
	return network.computeChecksums(ctx, n.Namespace, "eth0")
}

func (network Network) defaultRoute(n Node, family int) string {
	gateway := n.Gateway(family)
	line := fmt.Sprintf("route replace default via %s", gateway)
	if network.Switch {
		line = fmt.Sprintf("route replace %s dev eth0", netip.PrefixFrom(gateway, 0).Masked())
	}
	if n.RouteMTU != 0 {
		line += fmt.Sprintf(" mtu %d", n.RouteMTU)
	}
	return line
}

func bringUp(link string, addresses []netip.Prefix) []string {
	lines := []string{fmt.Sprintf("link set %s up", link)}
	for _, address := range addresses {
		lines = append(lines, fmt.Sprintf("address add %s dev %s%s", address, link, nodad(address.Addr())))
	}
	return lines
}

// An IPv6 address is tentative, so unusable, until duplicate detection ends.
func nodad(address netip.Addr) string {
	if address.Is6() {
		return " nodad"
	}
	return ""
}

// computeChecksums makes senders at either end of a node's link finish their transport
// checksums, where a program runs in the link's driver. veth would leave them unfinished,
// and XDP on the other side would hand on packets with wrong ones.
func (network Network) computeChecksums(ctx context.Context, namespace, link string) error {
	if network.KeepsOffloads {
		return nil
	}
	return Run(ctx, "", "ip", "netns", "exec", namespace, "ethtool", "-K", link, "tx", "off")
}

// giveBackendsTheVIPs: on lo, and silent about them on the network.
func giveBackendsTheVIPs(ctx context.Context, network Network) error {
	var lines []string
	for _, c := range network.Clusters() {
		for _, vip := range c.VIPs() {
			lines = append(lines, fmt.Sprintf("address add %s dev lo%s", netip.PrefixFrom(vip, vip.BitLen()), nodad(vip)))
		}
	}
	for _, n := range network.Backends {
		err := SetSysctls(n.Namespace, []string{
			"ipv4/conf/all/arp_ignore=1", "ipv4/conf/all/arp_announce=2",
			// A client whose FIN was answered twice sends an RST. It must not end TIME_WAIT, or
			// what it has sent twice is answered by RSTs of VIPs, which scenarios count.
			"ipv4/tcp_rfc1337=1",
		})
		if err != nil {
			return err
		}
		if err := IPBatch(ctx, n.Namespace, lines); err != nil {
			return fmt.Errorf("VIPs of %s: %w", n.Name, err)
		}
	}
	return nil
}

// SetLink takes a node's link up or down at the router's end.
func (network Network) SetLink(ctx context.Context, n Node, state string) error {
	return IPBatch(ctx, network.Router, []string{fmt.Sprintf("link set %s %s", n.Port, state)})
}

// Split a switch: these nodes do not reach each other any more, and all others still do; or
// they do again.
func (network Network) Split(ctx context.Context, nodes []Node, isSplit bool) error {
	state, lines := "off", []string(nil)
	if isSplit {
		state = "on"
	}
	for _, n := range nodes {
		lines = append(lines, fmt.Sprintf("link set %s type bridge_slave isolated %s", n.Port, state))
	}
	return IPBatch(ctx, network.Router, lines)
}

// Renumber a node: it has the next addresses of its networks, and not those of before.
func (network Network) Renumber(ctx context.Context, n Node) (Node, error) {
	n.Addresses = slices.Clone(n.Addresses)
	var lines []string
	for family, former := range n.Addresses {
		next := netip.PrefixFrom(former.Addr().Next(), former.Bits())
		lines = append(lines,
			fmt.Sprintf("address del %s dev eth0", former),
			fmt.Sprintf("address add %s dev eth0%s", next, nodad(next.Addr())),
			network.defaultRoute(n, family))
		n.Addresses[family] = next
	}
	return n, IPBatch(ctx, n.Namespace, lines)
}

// AddClientLink gives the client a second way to the router, eth1, by which it sends
// what comes from the addresses there. It is returned like a node: SetLink takes it.
func (network Network) AddClientLink(ctx context.Context) (Node, error) {
	net := int(network.Client.Address(0).As4()[1]) + 1
	second := clientLink(net - clientNet)
	second.Namespace = network.Client.Namespace
	link := fmt.Sprintf("link add %s mtu %d type veth peer name eth1 mtu %d netns %s", second.Port, second.MTU, second.MTU, second.Namespace)
	if err := IPBatch(ctx, network.Router, append([]string{link}, bringUp(second.Port, second.Gateways)...)); err != nil {
		return second, fmt.Errorf("add the client's second link: %w", err)
	}
	lines := bringUp("eth1", second.Addresses)
	for family := range second.Gateways {
		lines = append(lines, fmt.Sprintf("route add default via %s table %d", second.Gateway(family), net))
	}
	if err := IPBatch(ctx, second.Namespace, lines); err != nil {
		return second, fmt.Errorf("set up the client's second link: %w", err)
	}
	for family, option := range []string{"-4", "-6"} {
		if err := Run(ctx, "", "ip", "-n", second.Namespace, option, "rule", "add", "from", second.Address(family).String(), "table", fmt.Sprint(net)); err != nil {
			return second, err
		}
	}
	for namespace, end := range map[string]string{network.Router: second.Port, second.Namespace: "eth1"} {
		if err := network.computeChecksums(ctx, namespace, end); err != nil {
			return second, err
		}
	}
	return second, nil
}

// AddClient makes another client, linked to the router as the first one is. The network is
// returned as it is for that one: with it in the first one's place.
func (network Network) AddClient(ctx context.Context) (Network, error) {
	router := network.Router
	n := clientLink(2)
	n.Name, n.Namespace = "other-client", NamespacePrefix(network.Instance)+"other-client"
	network.Client = n
	if err := Run(ctx, "", "ip", "netns", "add", n.Namespace); err != nil {
		return network, err
	}
	if err := IPBatch(ctx, router, append([]string{linkLine(n)}, bringUp(n.Port, n.Gateways)...)); err != nil {
		return network, fmt.Errorf("link %s: %w", n.Name, err)
	}
	if err := network.computeChecksums(ctx, router, n.Port); err != nil {
		return network, err
	}
	return network, network.setUpNode(ctx, n)
}

// AddClientAddresses gives the client one more block of addresses, the same
// number of each family, and returns them. Blocks are told apart by number:
// flows from different blocks never share a five-tuple.
func (network Network) AddClientAddresses(ctx context.Context, block, count int) ([]netip.Addr, error) {
	if block < 1 || block > 250 || count < 1 || count > 200 {
		return nil, fmt.Errorf("client addresses: block %d of %d: give a block of 1 to 250 with 1 to 200 addresses", block, count)
	}
	var lines []string
	var list []netip.Addr
	for i := 1; i <= count; i++ {
		for _, text := range []string{fmt.Sprintf("10.10.%d.%d/16", block, i), fmt.Sprintf("2001:db8:10::%x:%x/64", block, i)} {
			prefix := netip.MustParsePrefix(text)
			lines = append(lines, fmt.Sprintf("address replace %s dev eth0%s", prefix, nodad(prefix.Addr())))
			list = append(list, prefix.Addr())
		}
	}
	if err := IPBatch(ctx, network.Client.Namespace, lines); err != nil {
		return nil, fmt.Errorf("add client addresses: %w", err)
	}
	return list, nil
}

// Rehash has the router choose the next hops of all flows anew, in both families.
func (network Network) Rehash(ctx context.Context, seed uint32) error {
	return Run(ctx, "", "ip", "netns", "exec", network.Router, "sysctl", "-qw", fmt.Sprintf("net.ipv4.fib_multipath_hash_seed=%d", max(seed, 1)))
}
