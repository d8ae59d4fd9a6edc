// Package compile turns a valid Config and the states of its backends into a Plan. It is a
// pure function: the same input gives the same plan, byte for byte when marshalled
// deterministically, and the order of pools and backends in the config does not matter.
//
// It makes no decisions: backends' states are its input, and package config fixes what the
// config means.
package compile

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// States is what probes and operators say. The zero value knows nothing
// bad: every backend is active and every peer healthy.
type States struct {
	// State of a backend as one pool's health checks see it. nil: active.
	Backend func(pool, backend string) planv1.BackendState
	// How many fifths of its weight a backend has in one pool. nil: all five.
	Fifths func(pool, backend string) uint32
	// Which members of a group are used. nil: the own.
	Use func(group string) Use
	// Whether a peer is reachable through the tunnel. nil: yes.
	PeerHealthy func(peer string) bool
	// Whether a cluster that packets are spilled to fails its probes. nil: none
	// does.
	SpillDown func(prefix netip.Prefix) bool
	// The bucket map of a stateless service with these members. nil: a new one.
	BucketMap func(service *config.Service, group *planv1.Group) *planv1.BucketMap
	// Whether that map may differ though no member does. nil: it does not.
	BucketsDue func(service string) bool
	// The tables that a group has had, the latest first. nil: none.
	Tables func(group string) []Table
	// The peer's addresses, the best to tunnel to first. nil: as configured.
	PeerAddresses func(peer config.Peer) []netip.Addr
}

// Compile makes the plan of the machine that the config is for: services of
// other shards are left out, and so are backends that no service here has.
func Compile(c *config.Config, states States, generation uint64) *planv1.Plan {
	services := c.ServicesHere()
	plan := &planv1.Plan{
		Generation:    generation,
		Cluster:       &planv1.Cluster{Name: c.Cluster.Name, KeyId: c.Cluster.KeyID},
		Machine:       &planv1.Machine{Name: c.Machine.Name, Addresses: texts(c.Machine.Addresses), Routers: routers(c.BGP)},
		Peers:         peers(c.Peers, states),
		Encapsulators: texts(c.Encapsulators),
		Tunnel:        tunnel(c.Tunnel),
		PrefixGroups:  PrefixGroups(c.PrefixGroups),
		Services:      make([]*planv1.Service, len(services)),
		Forwarder:     forwarder(c.Forwarder),
		Probing:       probing(c),

		CountersByService: c.Metrics.ByService,
	}
	for i := range services {
		plan.Services[i] = service(&services[i], states)
	}
	plan.Groups, plan.Backends = groups(c, services, states)
	setBucketMaps(plan, services, states)
	plan.Requires = requires(plan)
	return plan
}

func service(s *config.Service, states States) *planv1.Service {
	compiled := &planv1.Service{
		Name:             s.Name,
		Vips:             make([]*planv1.Vip, len(s.VIPs)),
		Group:            s.Group,
		Mode:             modes[s.Mode],
		Affinity:         Affinity(s.Affinity),
		Encap:            encaps[s.Encap],
		TableSize:        s.TableSize,
		IdleTimeouts:     idleTimeouts(s.IdleTimeouts),
		ConnectionsQuota: s.ConnectionsQuota,
		OnDown:           onDowns[s.OnDown],
		WhenNone:         whenNones[s.WhenNone],
		Fragments:        fragments[s.Fragments],
		Dscp:             s.DSCP,
		Unmatched:        unmatcheds[s.Unmatched],
	}
	compiled.QuicLb = quicLB(s)
	if s.MultipathTCP {
		compiled.Mptcp = &planv1.Mptcp{}
	}
	for _, join := range config.JoinPortsOf(s) {
		compiled.JoinPorts = append(compiled.JoinPorts, &planv1.JoinPort{Port: uint32(join.Port), Backend: join.Backend})
	}
	if s.SecondChance {
		compiled.SecondChance = &planv1.SecondChance{PacketsPerSecond: uint64(s.SecondChanceRate)}
	}
	for i, vip := range s.VIPs {
		compiled.Vips[i] = VIP(vip)
	}
	for _, spill := range s.Spill {
		compiled.Spill = append(compiled.Spill, &planv1.Spill{
			PrefixGroup: spill.PrefixGroup, Prefix: spill.Prefix.String(),
			Down: states.SpillDown != nil && states.SpillDown(spill.Prefix),
		})
	}
	return compiled
}

// groups are the sets of members that the services name, in order of name;
// and the backends in them, in the config's order of name.
func groups(c *config.Config, services []config.Service, states States) ([]*planv1.Group, []*planv1.Backend) {
	chances := secondChanceGroups(services)
	members := map[string][]config.Member{}
	for i := range services {
		members[services[i].Group] = services[i].Members
	}
	used := map[string]bool{}
	var compiled []*planv1.Group
	for _, name := range slices.Sorted(maps.Keys(members)) {
		for _, member := range members[name] {
			used[member.Backend.Name] = true
		}
		compiled = append(compiled, group(name, members[name], chances[name], states))
	}
	var backends []*planv1.Backend
	for _, backend := range c.Backends {
		if used[backend.Name] {
			backends = append(backends, &planv1.Backend{Name: backend.Name, Address: backend.Address.String()})
		}
	}
	return compiled, backends
}

func group(name string, members []config.Member, hasSecondChance bool, states States) *planv1.Group {
	compiled := &planv1.Group{Name: name, Members: make([]*planv1.Member, len(members))}
	weights := memberWeights(members, states)
	use := UseOwn
	if states.Use != nil {
		use = states.Use(name)
	}
	for i, member := range members {
		compiled.Members[i] = &planv1.Member{
			Backend: member.Backend.Name,
			Weight:  weights[i],
			State:   use.State(member, memberState(member, states)),
		}
	}
	if hasSecondChance && states.Tables != nil {
		setEarlier(compiled, states.Tables(name))
	}
	return compiled
}

// memberState is the worst of what the pools say that list the backend: it
// must satisfy all of their checks. Weight 0 drains what would be active.
// BackendState's numbers ascend from active to disabled.
func memberState(member config.Member, states States) planv1.BackendState {
	worst := planv1.BackendState_BACKEND_STATE_ACTIVE
	if member.Weight == 0 {
		worst = planv1.BackendState_BACKEND_STATE_DRAINING
	}
	if states.Backend == nil {
		return worst
	}
	for _, pool := range member.Pools {
		worst = max(worst, states.Backend(pool, member.Backend.Name))
	}
	return worst
}

// Affinity as plans have it.
func Affinity(a config.Affinity) planv1.Affinity { return affinities[a] }

// VIP as plans have it.
func VIP(vip config.VIP) *planv1.Vip {
	compiled := &planv1.Vip{Protocol: protocols[vip.Protocol]}
	if vip.Address.IsValid() {
		compiled.Target = &planv1.Vip_Address{Address: vip.Address.String()}
	} else {
		compiled.Target = &planv1.Vip_PrefixSuffix{PrefixSuffix: &planv1.PrefixSuffix{
			PrefixGroup: vip.PrefixGroup,
			Suffix:      vip.Suffix.String(),
			SuffixBits:  uint32(vip.SuffixBits),
		}}
	}
	for _, ports := range vip.Ports {
		compiled.Ports = append(compiled.Ports, &planv1.PortRange{First: uint32(ports.First), Last: uint32(ports.Last)})
	}
	return compiled
}

// routers are those that we announce to: what they send us they also take
// back.
func routers(bgp *config.BGP) []string {
	if bgp == nil {
		return nil
	}
	var compiled []string
	for _, neighbor := range bgp.Neighbors {
		compiled = append(compiled, neighbor.Address.String())
	}
	return compiled
}

func peers(given []config.Peer, states States) []*planv1.Peer {
	var compiled []*planv1.Peer
	for _, peer := range given {
		addresses := peer.Addresses
		if states.PeerAddresses != nil {
			addresses = states.PeerAddresses(peer)
		}
		compiled = append(compiled, &planv1.Peer{
			Name:      peer.Name,
			Addresses: texts(addresses),
			Healthy:   states.PeerHealthy == nil || states.PeerHealthy(peer.Name),
		})
	}
	return compiled
}

// probing says which tunnel each port of probes stands for; absent where no probe
// goes through one.
func probing(c *config.Config) *planv1.Probing {
	if len(c.TunnelProbes) == 0 {
		return nil
	}
	assigned := map[uint16]*planv1.ProbePort{}
	for _, probe := range c.TunnelProbes {
		port := probe.From.Port()
		assigned[port] = &planv1.ProbePort{Port: uint32(port), Backend: probe.Backend.Name, Encap: encaps[probe.Encap]}
	}
	reserved := c.Machine.ProbePorts
	compiled := &planv1.Probing{Ports: &planv1.PortRange{First: uint32(reserved.First), Last: uint32(reserved.Last)}}
	for _, port := range slices.Sorted(maps.Keys(assigned)) {
		compiled.Assigned = append(compiled.Assigned, assigned[port])
	}
	return compiled
}

// tunnel is absent where it says nothing.
func tunnel(t config.Tunnel) *planv1.Tunnel {
	if t == (config.Tunnel{}) {
		return nil
	}
	compiled := &planv1.Tunnel{Udp6Checksum: t.UDP6Checksum, Mtu: uint32(t.MTU)}
	if t.SourcePrefix.IsValid() {
		compiled.SourcePrefix = t.SourcePrefix.String()
	}
	return compiled
}

// PrefixGroups as plans have them.
func PrefixGroups(groups []config.PrefixGroup) []*planv1.PrefixGroup {
	var compiled []*planv1.PrefixGroup
	for _, group := range groups {
		compiled = append(compiled, &planv1.PrefixGroup{Name: group.Name, Prefixes: texts(group.Prefixes)})
	}
	return compiled
}

func forwarder(f *config.Forwarder) *planv1.Forwarder {
	if f == nil {
		return nil
	}
	compiled := &planv1.Forwarder{Steering: steerings[f.Steering], ConnectionsMax: f.ConnectionsMax, KernelCache: kernelCaches[f.KernelCache]}
	for _, one := range f.Interfaces {
		compiled.Interfaces = append(compiled.Interfaces, &planv1.Interface{
			Name: one.Name, Driver: drivers[one.Driver], AutoDriver: one.Driver == config.DriverAuto, Queues: one.Queues,
		})
	}
	return compiled
}

func idleTimeouts(t config.IdleTimeouts) *planv1.IdleTimeouts {
	return &planv1.IdleTimeouts{
		TcpMs:            milliseconds(t.TCP),
		TcpUnconfirmedMs: milliseconds(t.TCPUnconfirmed),
		TcpClosingMs:     milliseconds(t.TCPClosing),
		UdpMs:            milliseconds(t.UDP),
	}
}

func milliseconds(d time.Duration) uint32 { return uint32(d.Milliseconds()) }

func texts[T interface {
	netip.Addr | netip.Prefix
	String() string
}](values []T) []string {
	var out []string
	for _, value := range values {
		out = append(out, value.String())
	}
	return out
}
