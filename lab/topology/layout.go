// Package topology is the network of a lab: its namespaces, links, addresses and routes, and
// what scenarios change about them.
//
// It does not know what runs in the namespaces: see lab/hosts.
package topology

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// Everything that has a fixed place in every lab. Namespaces keep labs apart,
// so all of them can use the same addresses.
const (
	ASNMachines = 64512
	ASNRouter   = 64513

	HTTPPort = 80
	EchoPort = 7000

	// clientMTU is what clients of the internet have; the usual fabric has room
	// for the outer header of the largest encapsulation.
	clientMTU        = 1500
	defaultFabricMTU = 1600

	// DefaultQueues of a load balancer's interface, so workers of its forwarder.
	DefaultQueues = 2

	// NoRouter of Options.Router.
	NoRouter = "none"

	// MachinesMax of each kind.
	MachinesMax = 200
)

// Prefixes and addresses of services, the same in every lab.
var (
	VIPPrefix4 = netip.MustParsePrefix("203.0.113.0/24")
	VIPPrefix6 = netip.MustParsePrefix("2001:db8:a::/64")

	WebVIPs  = []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:a::10")}
	EchoVIPs = []netip.Addr{netip.MustParseAddr("203.0.113.20"), netip.MustParseAddr("2001:db8:a::20")}

	vipsCount = len(WebVIPs) + len(EchoVIPs)

	// The second cluster's own prefixes, where there are two: its VIPs have the
	// suffixes of the first one's.
	OtherPrefix4 = netip.MustParsePrefix("198.51.100.0/24")
	OtherPrefix6 = netip.MustParsePrefix("2001:db8:b::/64")

	// MachinePrefixes hold the sources of all tunnels: what agents accept.
	MachinePrefixes = []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("2001:db8:20::/48")}
)

// Options say how large a lab is.
type Options struct {
	// Name is the instance: part of the name of each namespace.
	Name string
	// RunDir holds the state file and everything written while it runs.
	RunDir string
	// BinDir holds guideway, guideway-forwarder, guideway-agent and guideway-lab.
	BinDir string

	LoadBalancers int
	// Backends that the load balancers' config names.
	Backends int
	// Spares are backends that run but are in no config yet.
	Spares int
	// Queues of each load balancer's interface.
	Queues int
	// Router: bird (or empty), frr, or none: see Network.Switch.
	Router string

	Settings
}

// Settings are what scenarios vary. Their zero value is the usual lab.
type Settings struct {
	// TwoClusters: the first half of the load balancers (of three: the first)
	// and of the backends (without spares) are one cluster, all others a second
	// one. A cluster
	// without backends spills to the other.
	TwoClusters bool
	// FabricMTU of load balancers and backends; 0: room for tunnel headers.
	FabricMTU int
	// ConnectionsMax of each load balancer; 0: plenty.
	ConnectionsMax int
	// Driver of the load balancers' interfaces: af_xdp (or empty), or af_packet. With the
	// latter all interfaces keep their offloads, as they come.
	Driver string
	// Steering: rss (or empty), or software, with Workers workers (0: as many
	// as the forwarder likes).
	Steering string
	Workers  int
	// Encapsulators are prefixes that may tunnel packets to load balancers.
	Encapsulators []string
	// Encap of every service; empty: gre. Reconfigure changes it.
	Encap string
	// Stateless: services are; Encap is geneve. Several load balancers have etcd.
	Stateless bool
	// SecondChance: TCP services have it; Encap is geneve. Reconfigure changes it.
	SecondChance bool
	// Multipath: the echo service selects by keys of Multipath TCP, with the help of the
	// backends' agents; Stateless.
	Multipath bool
	// Agents measure how long clients wait.
	ResponseTimes bool
	// JoinPorts: the echo service has ports for joins of Multipath TCP from here on; 0:
	// none. Reconfigure changes it.
	JoinPorts int
	// TCPOverIPv6: the tunnels of TCP services are IPv6, as those of UDP always
	// are. Reconfigure changes it.
	TCPOverIPv6 bool
	// TunnelMTU: what the load balancers' config says of the way to the backends; 0:
	// nothing. Reconfigure changes it.
	TunnelMTU int
	// TunnelChecks: backends are also checked through the tunnels. Reconfigure
	// changes it.
	TunnelChecks bool
	// Announce of every service; empty: address. Reconfigure changes it.
	Announce string
	// OneOwner: without a router, one load balancer owns all VIPs by VRRP while it is well.
	OneOwner bool
}

// ValidName of an instance: letters, digits and dashes, so that it can be part
// of a namespace's name and of a path.
func ValidName(name string) bool { return namePattern.MatchString(name) }

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// Check refuses what cannot be built, naming option and cure.
func (o Options) Check() error {
	switch {
	case !namePattern.MatchString(o.Name):
		return fmt.Errorf("name %q: use 1 to 32 of a-z, 0-9 and -, beginning with a letter or digit", o.Name)
	case o.LoadBalancers < 1 || o.LoadBalancers > MachinesMax:
		return fmt.Errorf("load balancers %d: give 1 to %d", o.LoadBalancers, MachinesMax)
	case o.Backends < 1 || o.Backends+o.Spares > MachinesMax:
		return fmt.Errorf("backends %d (and %d spare): give 1 to %d in all", o.Backends, o.Spares, MachinesMax)
	case o.Queues < 1 || o.Queues > 16:
		return fmt.Errorf("queues %d: give 1 to 16", o.Queues)
	case !slices.Contains([]string{"", "bird", "frr", NoRouter}, o.Router):
		return fmt.Errorf("router %q: give bird, frr or none", o.Router)
	case o.Router == NoRouter && o.LoadBalancers > vipsCount:
		return fmt.Errorf("load balancers %d without a router: give 1 to %d, as many as there are VIPs, each of which has one owner", o.LoadBalancers, vipsCount)
	case o.Router == NoRouter && o.TwoClusters:
		return errors.New("two clusters without a router: give one or the other")
	case o.OneOwner && o.Router != NoRouter:
		return fmt.Errorf("one owner of all VIPs with router %q: VIPs have owners only in a lab without a router: give router none, too", o.Router)
	case !slices.Contains([]string{"", "gre", "ipip", "gue", "geneve", "l2"}, o.Encap):
		return fmt.Errorf("encap %q: give gre, ipip, gue, geneve or l2", o.Encap)
	case o.Encap == "l2" && o.Router != NoRouter:
		return fmt.Errorf("encap %q: needs a lab without a router, in which backends are on the load balancers' segment: give router none, too", o.Encap)
	case o.Stateless && o.Encap != "geneve":
		return fmt.Errorf("encap %q: stateless services need geneve", o.Encap)
	case o.Stateless && o.TwoClusters:
		return errors.New("two clusters of stateless services: give one or the other")
	case !slices.Contains([]string{"", "af_xdp", "af_packet"}, o.Driver):
		return fmt.Errorf("driver %q: give af_xdp or af_packet", o.Driver)
	case !slices.Contains([]string{"", "rss", "software"}, o.Steering):
		return fmt.Errorf("steering %q: give rss or software", o.Steering)
	case o.Workers != 0 && o.Steering != "software":
		return fmt.Errorf("steered workers %d: only with steering software", o.Workers)
	case o.Workers < 0 || o.Workers > 64:
		return fmt.Errorf("steered workers %d: give 1 to 64", o.Workers)
	case o.FabricMTU != 0 && o.FabricMTU < clientMTU:
		return fmt.Errorf("fabric MTU %d: give %d or more", o.FabricMTU, clientMTU)
	case o.TwoClusters && (o.LoadBalancers < 2 || o.Backends < 2):
		return fmt.Errorf("two clusters of %d load balancers and %d backends: give 2 of each, or more", o.LoadBalancers, o.Backends)
	}
	return nil
}

// Node is one machine of the lab: a namespace whose eth0 is linked to a port
// of the router, or of the switch.
type Node struct {
	// Name as people see it: client, lb-1, be-3.
	Name      string
	Namespace string
	// Port is the name of the link's other end, at the router.
	Port   string
	Queues int
	MTU    int
	// RouteMTU of its default routes; 0: the link's. Backends' answers are as small
	// as the clients' network has them: no router on the way would cut an IPv6
	// datagram, and the first large one would be lost. Agents take the link's among
	// themselves.
	RouteMTU int
	// Cluster that it belongs to, 0 or 1: see Settings.TwoClusters.
	Cluster int
	// Addresses of eth0 and of the router's port, IPv4 then IPv6.
	Addresses []netip.Prefix
	Gateways  []netip.Prefix
}

// Network names every node of a lab. It is a pure function of the options, so
// a lab can be taken down knowing nothing else.
type Network struct {
	// Instance of the lab: part of each namespace's name.
	Instance string
	// Router is its namespace, or the switch's.
	Router        string
	Client        Node
	LoadBalancers []Node
	Backends      []Node
	TwoClusters   bool
	// Switch: there is no router. All nodes are on one segment, and nobody has a gateway:
	// every address is on the link. The load balancers own the VIPs by VRRP.
	Switch bool
	// OneOwner: see Settings.
	OneOwner bool
	// KeepsOffloads: see Settings.Driver.
	KeepsOffloads bool
}

// NamespacePrefix of an instance.
func NamespacePrefix(instance string) string { return "gw-" + instance + "." }

// New network of a lab with these options.
func New(o Options) Network {
	prefix := NamespacePrefix(o.Name)
	network := Network{Instance: o.Name, Router: prefix + "router", TwoClusters: o.TwoClusters, KeepsOffloads: o.Driver == "af_packet", OneOwner: o.OneOwner}
	if o.Router == NoRouter {
		network.Router, network.Switch = prefix+"switch", true
	}
	fabricMTU := defaultFabricMTU
	if o.FabricMTU != 0 {
		fabricMTU = o.FabricMTU
	}
	network.Client = clientLink(0)
	network.Client.Name, network.Client.Namespace = "client", prefix+"client"
	for i := 1; i <= o.LoadBalancers; i++ {
		n := fabricNode(prefix, "lb", 20, i, fabricMTU)
		n.Queues = o.Queues
		if o.TwoClusters && i > o.LoadBalancers/2 {
			n.Cluster = 1
		}
		network.LoadBalancers = append(network.LoadBalancers, n)
	}
	for i := 1; i <= o.Backends+o.Spares; i++ {
		n := fabricNode(prefix, "be", 30, i, fabricMTU)
		n.RouteMTU = clientMTU
		if o.TwoClusters && i > o.Backends/2 {
			n.Cluster = 1
		}
		network.Backends = append(network.Backends, n)
	}
	return network
}

// clientLink by number: two of the client, then two of the other one (see AddClient).
func clientLink(number int) Node {
	port := "client"
	if number > 0 {
		port = fmt.Sprintf("client-%d", number+1)
	}
	net := clientNet + number
	return Node{
		Port: port, MTU: clientMTU,
		// One queue: veth hands the number of the sender's queue on, and the
		// router would take it for its own receive queue, less one. Without it
		// the router spreads over a load balancer's queues by flow hash.
		Queues:    1,
		Addresses: prefixes(fmt.Sprintf("10.%d.0.1/16", net), fmt.Sprintf("2001:db8:%d::1/64", net)),
		Gateways:  prefixes(fmt.Sprintf("10.%d.255.254/16", net), fmt.Sprintf("2001:db8:%d::fe/64", net)),
	}
}

// clientNet is the second byte of the client's addresses, in decimal also in IPv6 ones; that
// of each further link is the next.
const clientNet = 10

func fabricNode(prefix, kind string, net, index, mtu int) Node {
	name := fmt.Sprintf("%s-%d", kind, index)
	return Node{
		Name: name, Namespace: prefix + name, Port: name, Queues: 1, MTU: mtu,
		Addresses: prefixes(fmt.Sprintf("10.%d.%d.1/24", net, index), fmt.Sprintf("2001:db8:%d:%d::1/64", net, index)),
		Gateways:  prefixes(fmt.Sprintf("10.%d.%d.254/24", net, index), fmt.Sprintf("2001:db8:%d:%d::fe/64", net, index)),
	}
}

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

// RouterName is what people call the router's namespace.
func (network Network) RouterName() string {
	return strings.TrimPrefix(network.Router, NamespacePrefix(network.Instance))
}

// Nodes are all but the router.
func (network Network) Nodes() []Node {
	list := append([]Node{network.Client}, network.LoadBalancers...)
	return append(list, network.Backends...)
}

// Node of that name, but the router.
func (network Network) Node(name string) (Node, error) {
	for _, n := range network.Nodes() {
		if n.Name == name {
			return n, nil
		}
	}
	return Node{}, fmt.Errorf("lab %s has no node %q", network.Instance, name)
}

// LoadBalancer of that name.
func (network Network) LoadBalancer(name string) (Node, error) {
	i := slices.IndexFunc(network.LoadBalancers, func(n Node) bool { return n.Name == name })
	if i < 0 {
		return Node{}, fmt.Errorf("lab %s has no load balancer %q: it has %v", network.Instance, name, Names(network.LoadBalancers))
	}
	return network.LoadBalancers[i], nil
}

// Addresses of a load balancer: the next hops of its routes.
func (network Network) Addresses(name string) ([]netip.Addr, error) {
	n, err := network.LoadBalancer(name)
	if err != nil {
		return nil, err
	}
	return []netip.Addr{n.Address(0), n.Address(1)}, nil
}

// Names of nodes, in order.
func Names(nodes []Node) []string {
	var list []string
	for _, n := range nodes {
		list = append(list, n.Name)
	}
	return list
}

// Namespaces of all nodes and the router.
func (network Network) Namespaces() []string {
	list := []string{network.Router}
	for _, n := range network.Nodes() {
		list = append(list, n.Namespace)
	}
	return list
}

// Cluster is what the machines of one cluster have to themselves.
type Cluster struct {
	Name          string
	Prefixes      []netip.Prefix
	LoadBalancers []Node
	Backends      []Node
}

// Clusters of the lab: one, or two.
func (network Network) Clusters() []Cluster {
	list := []Cluster{{Name: "lab", Prefixes: []netip.Prefix{VIPPrefix4, VIPPrefix6}}}
	if network.TwoClusters {
		list = append(list, Cluster{Name: "other", Prefixes: []netip.Prefix{OtherPrefix4, OtherPrefix6}})
	}
	for _, n := range network.LoadBalancers {
		list[n.Cluster].LoadBalancers = append(list[n.Cluster].LoadBalancers, n)
	}
	for _, n := range network.Backends {
		list[n.Cluster].Backends = append(list[n.Cluster].Backends, n)
	}
	return list
}

// VIPPrefixes of all clusters.
func (network Network) VIPPrefixes() []netip.Prefix {
	var list []netip.Prefix
	for _, c := range network.Clusters() {
		list = append(list, c.Prefixes...)
	}
	return list
}

// VIPs of a cluster: the first one's addresses, in its own prefixes.
func (c Cluster) VIPs() []netip.Addr {
	var list []netip.Addr
	for _, vip := range slices.Concat(WebVIPs, EchoVIPs) {
		for _, prefix := range c.Prefixes {
			if prefix.Addr().Is4() == vip.Is4() {
				list = append(list, SameSuffix(prefix, vip))
			}
		}
	}
	return list
}

// OtherVIP is the address in the second cluster that a VIP of the first one
// is spilled to.
func OtherVIP(vip netip.Addr) netip.Addr {
	if vip.Is4() {
		return SameSuffix(OtherPrefix4, vip)
	}
	return SameSuffix(OtherPrefix6, vip)
}

// SameSuffix puts whole bytes of a prefix in front of an address's rest.
func SameSuffix(prefix netip.Prefix, address netip.Addr) netip.Addr {
	bytes := address.AsSlice()
	copy(bytes, prefix.Addr().AsSlice()[:prefix.Bits()/8])
	joined, _ := netip.AddrFromSlice(bytes) // of the same length: it is an address
	return joined
}

// Address of the node in the family of the n-th entry (0: IPv4, 1: IPv6).
func (n Node) Address(family int) netip.Addr { return n.Addresses[family].Addr() }

// Gateway of the node in that family.
func (n Node) Gateway(family int) netip.Addr { return n.Gateways[family].Addr() }
