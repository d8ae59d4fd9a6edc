package config

// Builds the health checks through tunnels: which backends are probed for which VIPs, from
// which ports, and to which services the results apply.

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Below the ports that Linux chooses by itself, and where little listens.
const probePortsDefault = "20000-32767"

// throughTunnels is how the checks of one service's pools go to its VIPs.
type throughTunnels struct {
	index   int // of the service
	service *Service
	// Those that can be probed.
	vips []netip.Addr
	// Those that have checks through the tunnel.
	pools []*Pool
}

// suffix of the names of views and of their group.
func (t throughTunnels) suffix() string {
	return fmt.Sprintf("via %s to %s", t.service.Encap, joined(t.vips))
}

// tunnelViews gives the services here that have pools with checks through the
// tunnel views of these pools: what passes for one VIP may fail for another.
func (b *builder) tunnelViews() {
	found := b.throughTunnels()
	b.warnUnprobedVIPs(found)
	views := viewsOf(found)
	probes, problem := b.tunnelProbes(views)
	if problem != nil && b.autoGoesDirect(problem) {
		found = b.throughTunnels()
		views = viewsOf(found)
		probes, problem = b.tunnelProbes(views)
	}
	if problem != nil {
		b.errorf(problem.field, "%s: %s", problem.text, problem.cure)
		return
	}
	b.config.TunnelProbes = probes
	b.config.PoolViews = views
	members := map[string][]Member{}
	for _, t := range found {
		if len(t.vips) == 0 {
			continue
		}
		t.service.Group += "  " + t.suffix()
		if members[t.service.Group] == nil {
			members[t.service.Group] = t.renamedMembers()
		}
		t.service.Members = members[t.service.Group]
	}
}

// autoGoesDirect instead of refusing a config that says nothing of tunnels.
func (b *builder) autoGoesDirect(problem *tunnelProblem) bool {
	changed := false
	for i := range b.config.HealthChecks {
		if c := &b.config.HealthChecks[i]; c.Via == ViaAuto {
			c.Via, changed = ViaDirect, true
		}
	}
	if changed {
		b.warnf(problem.field, "%s, so checks without `via` go to the backends' own addresses: %s", problem.text, problem.cure)
	}
	return changed
}

func (b *builder) throughTunnels() []throughTunnels {
	var found []throughTunnels
	for i := range b.config.Services {
		service := &b.config.Services[i]
		if service.Shard != b.config.Machine.Shard {
			continue
		}
		if pools := b.tunnelChecked(service); len(pools) > 0 {
			found = append(found, throughTunnels{i, service, b.probedVIPs(service), pools})
		}
	}
	return found
}

func viewsOf(found []throughTunnels) []PoolView {
	views := map[string]PoolView{}
	for _, t := range found {
		if len(t.vips) == 0 {
			continue
		}
		for _, pool := range t.pools {
			view := PoolView{Pool: *pool, Of: pool.Name, VIPs: t.vips, Encap: t.service.Encap}
			view.Name = pool.Name + " " + t.suffix()
			views[view.Name] = view
		}
	}
	list := make([]PoolView, 0, len(views))
	for _, name := range slices.Sorted(maps.Keys(views)) {
		list = append(list, views[name])
	}
	return list
}

// tunnelChecked are the pools of the service that have checks through the tunnel.
func (b *builder) tunnelChecked(service *Service) []*Pool {
	var pools []*Pool
	for _, name := range namesOfPools(service.Members) {
		if pool := b.config.PoolNamed(name); pool != nil && b.hasCheck(pool, func(via Via) bool { return via != ViaDirect }) {
			pools = append(pools, pool)
		}
	}
	return pools
}

// hasCheck that goes such a way.
func (b *builder) hasCheck(pool *Pool, is func(Via) bool) bool {
	return slices.ContainsFunc(pool.HealthChecks, func(name string) bool {
		c := b.config.HealthCheckNamed(name)
		return c != nil && is(c.Via)
	})
}

// probedVIPs are the service's VIPs that can be probed, each once, in order.
func (b *builder) probedVIPs(service *Service) []netip.Addr {
	var vips []netip.Addr
	for _, vip := range service.VIPs {
		if vip.Address.IsValid() && b.machineAddress(vip.Address).IsValid() {
			vips = append(vips, vip.Address)
		}
	}
	slices.SortFunc(vips, netip.Addr.Compare)
	return slices.Compact(vips)
}

// warnUnprobedVIPs of services whose checks are said to go through the tunnel.
func (b *builder) warnUnprobedVIPs(found []throughTunnels) {
	isSaid := func(pool *Pool) bool { return b.hasCheck(pool, func(via Via) bool { return via == ViaTunnel }) }
	for _, t := range found {
		if !slices.ContainsFunc(t.pools, isSaid) {
			continue
		}
		for j, vip := range t.service.VIPs {
			field := fmt.Sprintf("services[%d].vips[%d]", t.index, j)
			switch {
			case !vip.Address.IsValid():
				b.warnf(field, "is in prefixes, and checks with `via: tunnel` do not probe it: name an address of it as a VIP of its own, or use a check with `via: direct` too")
			case !b.machineAddress(vip.Address).IsValid():
				b.errorf(field+".address", "is %s, and machine.addresses has no %s address to probe it from through the tunnel: add one, or use checks with `via: direct`",
					vip.Address, family(vip.Address))
			}
		}
	}
}

// ServicesOfCheck are the services here whose pools name a check with `via: auto`, by the way
// it goes for them.
func (c *Config) ServicesOfCheck(check string) (tunnel, direct []string) {
	isView := map[string]bool{}
	for _, view := range c.PoolViews {
		if slices.Contains(view.HealthChecks, check) {
			isView[view.Name] = true
		}
	}
	for _, service := range c.ServicesHere() {
		for _, name := range namesOfPools(service.Members) {
			if isView[name] {
				tunnel = append(tunnel, service.Name)
				break
			}
			if pool := c.PoolNamed(name); pool != nil && slices.Contains(pool.HealthChecks, check) {
				direct = append(direct, service.Name)
				break
			}
		}
	}
	return tunnel, direct
}

func namesOfPools(members []Member) []string {
	names := map[string]bool{}
	for _, member := range members {
		for _, pool := range member.Pools {
			names[pool] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// machineAddress of the same family; not valid: there is none.
func (b *builder) machineAddress(vip netip.Addr) netip.Addr {
	for _, address := range b.config.Machine.Addresses {
		if address.Is4() == vip.Is4() {
			return address
		}
	}
	return netip.Addr{}
}

func joined(vips []netip.Addr) string {
	texts := make([]string, len(vips))
	for i, vip := range vips {
		texts[i] = vip.String()
	}
	return strings.Join(texts, ",")
}

// renamedMembers name views in place of their pools.
func (t throughTunnels) renamedMembers() []Member {
	views := map[string]string{}
	for _, pool := range t.pools {
		views[pool.Name] = pool.Name + " " + t.suffix()
	}
	copied := slices.Clone(t.service.Members)
	for i, member := range copied {
		copied[i].Pools = slices.Clone(member.Pools)
		for j, pool := range member.Pools {
			copied[i].Pools[j] = cmp.Or(views[pool], pool)
		}
	}
	return copied
}

// probed is what one probe is for.
type probed struct {
	backend string
	encap   Encap
	vip     netip.Addr
	check   string
}

// tunnelProblem is why probes through tunnels cannot be as they are configured.
type tunnelProblem struct{ field, text, cure string }

// tunnelProbes lists the probes of all views, each once, and gives them ports.
func (b *builder) tunnelProbes(views []PoolView) ([]TunnelProbe, *tunnelProblem) {
	found := map[probed]*TunnelProbe{}
	for i := range views {
		b.addProbes(found, &views[i])
		if limit := b.probesMax(); len(found) > limit {
			return nil, &tunnelProblem{
				"health_checks", fmt.Sprintf("make more than %d probes through tunnels, one for each VIP of each backend and check", limit),
				"give fewer services such checks, and the others `via: direct`",
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(found), func(x, y probed) int {
		return cmp.Or(cmp.Compare(x.backend, y.backend), cmp.Compare(x.encap, y.encap), x.vip.Compare(y.vip), cmp.Compare(x.check, y.check))
	})
	ports, problem := b.probePorts(keys)
	if problem != nil {
		return nil, problem
	}
	probes := make([]TunnelProbe, len(keys))
	for i, key := range keys {
		probes[i] = *found[key]
		probes[i].From = netip.AddrPortFrom(b.machineAddress(key.vip), ports[i])
	}
	return probes, nil
}

// probesMax is lower while some checks go through tunnels by default only: a config
// must not make a hundred times as many probes because of an upgrade.
func (b *builder) probesMax() int {
	if slices.ContainsFunc(b.config.HealthChecks, func(c HealthCheck) bool { return c.Via == ViaAuto }) {
		return tunnelProbesAutoMax
	}
	return tunnelProbesMax
}

func (b *builder) addProbes(found map[probed]*TunnelProbe, view *PoolView) {
	for _, name := range view.HealthChecks {
		if c := b.config.HealthCheckNamed(name); c == nil || c.Via == ViaDirect {
			continue
		}
		for _, backend := range view.Backends {
			for _, vip := range view.VIPs {
				key := probed{backend.Name, view.Encap, vip, name}
				if found[key] == nil {
					found[key] = &TunnelProbe{Backend: backend.Backend, Encap: view.Encap, VIP: vip, Check: name}
				}
				found[key].Views = append(found[key].Views, view.Name)
			}
		}
	}
}

// portUse is what a port stands for: a tunnel, and which of the checks that would
// else have both ends of their connections in common.
type portUse struct {
	backend string
	encap   Encap
	index   int
}

// probePorts gives each of the sorted probes a port. Those to different VIPs share
// one. A port depends on the backend's name, so that it stays while others come
// and go, unless two have the same.
func (b *builder) probePorts(keys []probed) ([]uint16, *tunnelProblem) {
	uses := make([]portUse, len(keys))
	for i, key := range keys {
		uses[i] = portUse{backend: key.backend, encap: key.encap}
		if i > 0 && keys[i-1].backend == key.backend && keys[i-1].encap == key.encap && keys[i-1].vip == key.vip {
			uses[i].index = uses[i-1].index + 1
		}
	}
	reserved := b.config.Machine.ProbePorts
	size := int(reserved.Last) - int(reserved.First) + 1
	assigned, taken := map[portUse]uint16{}, map[uint16]bool{}
	ports := make([]uint16, len(keys))
	for i, use := range uses {
		if _, known := assigned[use]; !known && len(taken) < size {
			port := reserved.First + uint16(hashOf(use)%uint64(size))
			for taken[port] {
				port = reserved.First + uint16((int(port-reserved.First)+1)%size)
			}
			assigned[use], taken[port] = port, true
		}
		ports[i] = assigned[use]
	}
	if needed := countDistinct(uses); needed > size {
		return nil, &tunnelProblem{
			"machine.probe_ports", fmt.Sprintf("has %d ports (%s), and checks through tunnels need %d, one for each backend, encapsulation and check", size, reserved, needed),
			"give a larger range",
		}
	}
	return ports, nil
}

func hashOf(use portUse) uint64 {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%s\x00%s\x00%d", use.backend, use.encap, use.index)
	return hash.Sum64()
}

func countDistinct(uses []portUse) int {
	distinct := map[portUse]bool{}
	for _, use := range uses {
		distinct[use] = true
	}
	return len(distinct)
}
