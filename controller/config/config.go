// Package config reads the configuration from YAML or JSON files. The result is one
// immutable Config, or every mistake in the files with its place and its cure.
//
//	files ─► document (nodes, positions) ─► schema (decode, rules) ─► build ─► check ─► Config
//
// It guarantees the properties written at the fields below, so that code that uses a Config
// does not check them again. It has no knowledge of health, no clock and no network.
// Besides the config files it opens only files that the config names (the cluster's secret,
// BGP passwords), through a function that the caller supplies.
package config

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/guideway/guideway/controller/check"
)

// Config is a valid configuration. It is never changed: a reload makes a new one.
type Config struct {
	Cluster Cluster
	Machine Machine
	// In order of the file; names and addresses are unique.
	Peers         []Peer
	Encapsulators []netip.Prefix
	Tunnel        Tunnel
	// In order of the file; names are unique, and no prefix is in two groups.
	PrefixGroups []PrefixGroup
	// In order of the file, of all shards; names are unique, and no two
	// services of a shard have a VIP in common.
	Services []Service
	// In order of the file; names are unique, pools form no cycle.
	Pools []Pool
	// In order of the file; names are unique.
	HealthChecks []HealthCheck
	// Every backend that a pool has, once, in order of name.
	Backends []Backend
	// nil: nothing is announced to routers.
	BGP *BGP
	// Programs that hear of changes.
	Hooks []Hook
	// nil: no VIP is owned on a segment.
	VRRP    *VRRP
	Speaker Speaker
	// When a move of a stateless service's buckets closes at the latest.
	MoveAgeMax time.Duration
	// nil: devices are left alone.
	Forwarder *Forwarder
	Metrics   Metrics
	// nil: unix sockets only.
	API *API
	// nil: messages of agents are not received. Else the cluster has a secret.
	Agents *Agents
	// nil: the config is in files alone.
	Etcd *Etcd
	// Pools as services here see them through their tunnels, in order of name.
	PoolViews []PoolView
	// What is probed through the tunnels, in order of backend, encapsulation,
	// VIP and check; each has a port of its own among those of one VIP.
	TunnelProbes []TunnelProbe
	// The same on machines whose configs are, but for what is each machine's own, and no
	// other's.
	SharedDigest string
	// What is allowed but probably not meant, in order of place.
	Warnings Problems

	// Places in Pools and HealthChecks by name.
	poolIndex, checkIndex map[string]int
	// nil: no pool has a source.
	decoded *decoded
}

// Cluster is what all machines share.
type Cluster struct {
	Name string
	// KeyDerived, or hex of 8 bytes that name the secret.
	KeyID string
	// Path of the secret, empty for a derived key. It was readable and long
	// enough when the config was parsed.
	SecretFile string
	// Masked. Empty: every VIP is the cluster's own.
	Prefixes []netip.Prefix
}

// KeyDerived is the key id of a cluster without a secret.
const KeyDerived = "derived"

// DefaultSecretFile is where `make install` puts a secret, and where the
// forwarder's unit reads it.
const DefaultSecretFile = "/etc/guideway/cluster.key"

// Machine is this load balancer.
type Machine struct {
	Name  string
	Shard string
	// Source ports of probes through tunnels.
	ProbePorts PortRange
	// One or two, of different families.
	Addresses []netip.Addr
}

// Address returns the machine's address of the family of other; it exists for
// every backend of a Config.
func (m Machine) Address(other netip.Addr) (netip.Addr, bool) {
	for _, address := range m.Addresses {
		if address.Is4() == other.Is4() {
			return address, true
		}
	}
	return netip.Addr{}, false
}

// Peer is another load balancer of the cluster.
type Peer struct {
	Name string
	// One or two, of different families.
	Addresses []netip.Addr
}

// Tunnel is how all services encapsulate.
type Tunnel struct {
	UDP6Checksum bool
	// IPv4, masked; invalid when not given.
	SourcePrefix netip.Prefix
	// The longest packet with its outer headers; 0: what links and routes carry.
	MTU int
}

// PrefixGroup is a class of prefixes.
type PrefixGroup struct {
	Name string
	// Masked, at least one, each once.
	Prefixes []netip.Prefix
}

// Service is what clients connect to.
type Service struct {
	Name  string
	Shard string
	// At least one.
	VIPs []VIP
	// Names of existing pools, at least one, in order of the file.
	Pools []string
	// At least 1, at most len(Members).
	BackendsMin int
	// Names of existing pools, none of them in Pools.
	BackupPools []string
	// Of the service's routes, beside BGP's.
	Communities      []Community
	LargeCommunities []LargeCommunity
	// AnnounceAggregate: no prefix of the cluster's that holds one of VIPs holds one
	// of another shard.
	Announce Announce
	// Names the set of pools: equal for services that have the same Members
	// for the same reason, and the same rule what is done with few of them. The
	// pools' names, sorted, joined by spaces; what else it says follows after two.
	Group string
	// The pools flattened, in order of backend name, each backend once. Shared
	// between services of one Group: read only.
	Members  []Member
	Mode     Mode
	Affinity Affinity
	Encap    Encap
	// A prime, not below len(Members).
	TableSize uint32
	// Of a stateless service: a power of two, at least eight for each of Members.
	// 0: the service is stateful.
	Buckets uint32
	// Of a stateless service; nil: it has none.
	QUICLB *QUICLB
	// Of a stateless service whose affinity is AffinityFlow, without QUICLB and JoinPorts:
	// its connections of Multipath TCP go by keys and tokens.
	MultipathTCP bool
	// The first of the ports that backends have for joins; 0: they have none.
	JoinPorts uint16
	// Of a stateful service whose encap is geneve; and then the rate, at least 1.
	SecondChance     bool
	SecondChanceRate uint32
	IdleTimeouts     IdleTimeouts
	// 0: no limit.
	ConnectionsQuota uint64
	OnDown           OnDown
	WhenNone         WhenNone
	Fragments        Fragments
	Spill            []Spill
	// nil: copy the inner packet's. Else 0 to 63.
	DSCP      *uint32
	Unmatched Unmatched
}

// VIP is an exact address, or a suffix in each prefix of a group.
type VIP struct {
	// Valid if and only if PrefixGroup is empty.
	Address netip.Addr
	// Name of an existing group.
	PrefixGroup string
	// The suffix, upper bits zero; at least one prefix of the group has its
	// family, and it fits each of those.
	Suffix netip.Addr
	// How many low bits are compared. 0: those that the prefix leaves.
	SuffixBits int
	// Sorted, merged, no two touch. Empty: all ports.
	Ports    []PortRange
	Protocol Protocol
}

// PortRange is inclusive, 1 <= First <= Last.
type PortRange struct {
	First, Last uint16
}

// Member is a backend as one service uses it.
type Member struct {
	Backend *Backend
	// 0 to 1000. 0: draining.
	Weight uint32
	// The pools that list it themselves, in the order in which the first
	// service with this set of pools reaches them; by its view's name what the
	// service sees through its tunnel.
	Pools []string
	// Reached by BackupPools only.
	IsBackup bool
}

// Backend is a server. One name has one address.
type Backend struct {
	Name    string
	Address netip.Addr
}

// Agents on backends, and where their messages are received.
type Agents struct {
	// At each of the machine's addresses.
	Port uint16
}

// IdleTimeouts are never zero.
type IdleTimeouts struct {
	TCP, TCPUnconfirmed, TCPClosing, UDP time.Duration
}

// Spill is another cluster's prefix.
type Spill struct {
	// Name of an existing group that holds Prefix.
	PrefixGroup string
	Prefix      netip.Prefix
}

// Pool is a set of backends.
type Pool struct {
	Name string
	// Its own, in order of the file; each name once.
	Backends []PoolBackend
	// Names of existing pools.
	Pools []string
	// Names of existing health checks, each once. They apply to Backends, not
	// to those of Pools.
	HealthChecks []string
	// Per cent of Backends, 0 to 100.
	EjectionMax uint32
	// nil: none.
	Damping *Damping
	// 0: none; else at least a second.
	SlowStart time.Duration
	// nil: Backends are the config's. Else they are those of WithMembers.
	From *MemberSource
	// Of a pool with From.
	ShrinkDelay, DrainTime time.Duration
}

// Damping holds backends down that flap.
type Damping struct {
	// At least 2.
	Flaps int
	// At least a second.
	Within, Hold time.Duration
}

// PoolView is a pool as those services see it that have the same encapsulation
// and VIPs: its checks through the tunnel go through that, and a backend may be up
// for one view and down for another.
type PoolView struct {
	// As configured, but for the name: `web via gre to 203.0.113.10`.
	Pool
	// The pool's name.
	Of string
	// Each once, in order.
	VIPs  []netip.Addr
	Encap Encap
}

// TunnelProbe is one probe of one backend through a tunnel.
type TunnelProbe struct {
	Backend *Backend
	Encap   Encap
	VIP     netip.Addr
	// Name of an existing check.
	Check string
	// The machine's address of the VIP's family; the port says which backend and
	// encapsulation the probe is for.
	From netip.AddrPort
	// Names of the views that it counts for, in order.
	Views []string
}

// PoolBackend is a backend as one pool lists it.
type PoolBackend struct {
	*Backend
	Weight uint32
	// The pool's source does not list it any more; Weight is 0.
	Leaves bool
}

// HealthCheck is what to do; a probe is doing it once.
type HealthCheck struct {
	Name  string
	Check check.Check
	// 0 < Timeout <= Interval.
	Interval, Timeout time.Duration
	// At least 1.
	Rise, Fall int
	Via        Via
}

// Kind is the field that gives it, like `http`.
func (h *HealthCheck) Kind() string { return check.Kind(h.Check) }

// Announces: the speaker has to be there.
func (c *Config) Announces() bool { return c.BGP != nil || c.VRRP != nil }

// Hook is a program, by its name, that hears of changes.
type Hook struct {
	Program string
	Timeout time.Duration
}

// VRRP is how VIPs are owned on a segment.
type VRRP struct {
	Interface string
	Interval  time.Duration
	// In checksums over IPv4.
	PseudoHeader bool
	// Hosts that answer; with any, VIPs are owned only while something is received.
	Probes []netip.Addr
	// At least one.
	Groups []VRRPGroup
}

// VRRPGroup of VIPs that have one owner.
type VRRPGroup struct {
	VRID uint8
	// Empty: it shares all VIPs that no group lists with others of the kind.
	VIPs []netip.Addr
}

// BGP is how VIPs are announced.
type BGP struct {
	ASN uint32
	// Unless given the machine's IPv4 address; for a machine without one four
	// bytes made from its name (RFC 6286: unique in the AS, and not zero).
	RouterID  netip.Addr
	Neighbors []Neighbor
	// Of every route.
	Communities      []Community
	LargeCommunities []LargeCommunity
	// 0: no limit. The config has no more routes.
	RoutesMax int
}

// Community (RFC 1997): upper half the first number, lower half the second.
type Community uint32

func (c Community) String() string { return fmt.Sprintf("%d:%d", c>>16, c&0xffff) }

// LargeCommunity (RFC 8092).
type LargeCommunity struct{ Global, Local1, Local2 uint32 }

func (c LargeCommunity) String() string { return fmt.Sprintf("%d:%d:%d", c.Global, c.Local1, c.Local2) }

// Neighbor is a router.
type Neighbor struct {
	// Unique.
	Address netip.Addr
	ASN     uint32
	// 0, or at least 3 s; whole seconds.
	HoldTime time.Duration
	// nil: off.
	BFD *BFD
	// Path, empty for none. It was readable when the config was parsed.
	PasswordFile string
	// TTL 255 is sent and demanded.
	TTLSecurity bool
	// Invalid: the kernel's choice.
	Source netip.Addr
	// TTL of the session with another AS; 0: one link.
	Multihop uint8
	// nil: none.
	MED *uint32
	// At least 1 inside the AS, else 0.
	LocalPref uint32
	// 0 inside the AS.
	Prepend uint8
}

// BFD is bidirectional forwarding detection.
type BFD struct {
	Interval   time.Duration
	Multiplier uint32
}

// Speaker is the process that announces.
type Speaker struct {
	// How long routes stay without a controller; 0: for as long as it takes.
	ControllerAbsentMax time.Duration
}

// Forwarder is the devices.
type Forwarder struct {
	// At least one; names are unique.
	Interfaces []Interface
	Steering   Steering
	// 0: the forwarder's default.
	ConnectionsMax uint64
	KernelCache    KernelCache
}

// Interface is a network interface.
type Interface struct {
	Name   string
	Driver Driver
	// 0: all.
	Queues uint32
}

// Metrics is where the controller serves them, and how much is counted.
type Metrics struct {
	// Host (may be empty) and port.
	Listen string
	// Backends are counted for each service apart.
	ByService bool
}

// API over TCP.
type API struct {
	// Address (may be empty) and port.
	Listen string
	// Files, which need not be there or good: they may change at any time.
	TLS TLSFiles
	// Names of certificates; at least one in all.
	Roles Roles
}

// TLSFiles of a server that demands certificates.
type TLSFiles struct{ CertFile, KeyFile, CAFile string }

// Roles have names of certificates; who has several has the last.
type Roles struct{ View, Operate, Admin []string }

// The choices, spelt as in the file.
type (
	Mode      string
	Affinity  string
	Encap     string
	OnDown    string
	WhenNone  string
	Announce  string
	Unmatched string
	Protocol  string
	Via       string
	Steering  string
	Driver    string

	KernelCache string

	// Fragments distinguishes "not given" from "no".
	Fragments string
)

const (
	ModeStateful  Mode = "stateful"
	ModeStateless Mode = "stateless"

	AffinityFlow   Affinity = "flow"
	AffinityClient Affinity = "client"

	EncapGRE    Encap = "gre"
	EncapIPIP   Encap = "ipip"
	EncapGUE    Encap = "gue"
	EncapGeneve Encap = "geneve"
	// None: frames are addressed to the backend, in the same segment.
	EncapL2 Encap = "l2"

	OnDownMove OnDown = "move"
	OnDownKeep OnDown = "keep"

	WhenNoneWithdraw WhenNone = "withdraw"
	WhenNoneKeep     WhenNone = "keep"
	WhenNoneFailOpen WhenNone = "fail_open"

	AnnounceAddress   Announce = "address"
	AnnounceAggregate Announce = "aggregate"

	UnmatchedDrop Unmatched = "drop"
	UnmatchedPass Unmatched = "pass"

	// ProtocolAny is any protocol; with ports, TCP and UDP.
	ProtocolAny Protocol = ""
	ProtocolTCP Protocol = "tcp"
	ProtocolUDP Protocol = "udp"

	// Through the tunnel for services that have a VIP to probe, else direct.
	ViaAuto   Via = "auto"
	ViaDirect Via = "direct"
	ViaTunnel Via = "tunnel"

	SteeringRSS      Steering = "rss"
	SteeringSoftware Steering = "software"

	DriverAuto     Driver = "auto"
	DriverAFXDP    Driver = "af_xdp"
	DriverAFPacket Driver = "af_packet"

	KernelCacheAuto KernelCache = "auto"
	KernelCacheOn   KernelCache = "on"
	KernelCacheOff  KernelCache = "off"

	FragmentsAuto Fragments = "auto"
	FragmentsOn   Fragments = "on"
	FragmentsOff  Fragments = "off"
)

// PoolNamed returns the pool; names in a Config always exist.
func (c *Config) PoolNamed(name string) *Pool {
	i, ok := c.poolIndex[name]
	if !ok {
		return nil
	}
	return &c.Pools[i]
}

// HealthCheckNamed returns the check; names in a Config always exist.
func (c *Config) HealthCheckNamed(name string) *HealthCheck {
	i, ok := c.checkIndex[name]
	if !ok {
		return nil
	}
	return &c.HealthChecks[i]
}

// ServicesHere returns the services that this machine serves, in order of the
// file: those of its own shard.
func (c *Config) ServicesHere() []Service {
	here := make([]Service, 0, len(c.Services))
	for _, service := range c.Services {
		if service.Shard == c.Machine.Shard {
			here = append(here, service)
		}
	}
	return here
}
