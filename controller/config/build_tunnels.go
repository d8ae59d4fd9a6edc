package config

// Health checks through the tunnels: which backends are probed for which VIPs,
// from which ports, and for which services that counts.

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

// tunnelViews gives the services here that have pools with checks through the
// tunnel views of these pools: what passes for one VIP may fail for another.
func (b *builder) tunnelViews() {
	views := map[string]PoolView{}
	members := map[string][]Member{}
	for i := range b.config.Services {
		service := &b.config.Services[i]
		if service.Shard != b.config.Machine.Shard {
			continue
		}
		pools := b.tunnelChecked(service)
		if len(pools) == 0 {
			continue
		}
		vips := b.tunnelVIPs(i, service)
		if len(vips) == 0 {
			continue
		}
		suffix := fmt.Sprintf("via %s to %s", service.Encap, joined(vips))
		named := map[string]string{}
		for _, pool := range pools {
			view := PoolView{Pool: *pool, Of: pool.Name, VIPs: vips, Encap: service.Encap}
			view.Name = pool.Name + " " + suffix
			views[view.Name], named[pool.Name] = view, view.Name
		}
		service.Group += "  " + suffix
		if members[service.Group] == nil {
			members[service.Group] = renamed(service.Members, named)
		}
		service.Members = members[service.Group]
	}
	for _, name := range slices.Sorted(maps.Keys(views)) {
		b.config.PoolViews = append(b.config.PoolViews, views[name])
	}
	b.config.TunnelProbes = b.tunnelProbes()
}

// tunnelChecked are the pools of the service that have checks through the tunnel.
func (b *builder) tunnelChecked(service *Service) []*Pool {
	var pools []*Pool
	seen := map[string]bool{}
	for _, member := range service.Members {
		for _, name := range member.Pools {
			if pool := b.config.PoolNamed(name); !seen[name] && pool != nil && slices.ContainsFunc(pool.HealthChecks, b.isTunnelled) {
				pools = append(pools, pool)
			}
			seen[name] = true
		}
	}
	return pools
}

func (b *builder) isTunnelled(check string) bool {
	c := b.config.HealthCheckNamed(check)
	return c != nil && c.Via == ViaTunnel
}

// tunnelVIPs are the service's VIPs that can be probed, each once, in order.
func (b *builder) tunnelVIPs(index int, service *Service) []netip.Addr {
	var vips []netip.Addr
	for j, vip := range service.VIPs {
		field := fmt.Sprintf("services[%d].vips[%d]", index, j)
		switch {
		case !vip.Address.IsValid():
			b.warnf(field, "is in prefixes, and checks with `via: tunnel` do not probe it: name an address of it as a VIP of its own, or use a check with `via: direct` too")
		case !b.machineAddress(vip.Address).IsValid():
			b.errorf(field+".address", "is %s, and machine.addresses has no %s address to probe it from through the tunnel: add one, or use checks with `via: direct`",
				vip.Address, family(vip.Address))
		default:
			vips = append(vips, vip.Address)
		}
	}
	slices.SortFunc(vips, netip.Addr.Compare)
	return slices.Compact(vips)
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

// renamed gives members the names of views in place of their pools'.
func renamed(members []Member, views map[string]string) []Member {
	copied := slices.Clone(members)
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

// tunnelProbes lists the probes of all views, each once, and gives them ports.
func (b *builder) tunnelProbes() []TunnelProbe {
	found := map[probed]*TunnelProbe{}
	for i := range b.config.PoolViews {
		addProbes(found, &b.config.PoolViews[i], b.isTunnelled)
		if len(found) > tunnelProbesMax {
			b.errorf("health_checks", "with `via: tunnel` make more than %d probes, one for each VIP of each backend and check: give fewer services such checks, and the others `via: direct`", tunnelProbesMax)
			return nil
		}
	}
	keys := slices.SortedFunc(maps.Keys(found), func(x, y probed) int {
		return cmp.Or(cmp.Compare(x.backend, y.backend), cmp.Compare(x.encap, y.encap), x.vip.Compare(y.vip), cmp.Compare(x.check, y.check))
	})
	ports := b.probePorts(keys)
	probes := make([]TunnelProbe, len(keys))
	for i, key := range keys {
		probes[i] = *found[key]
		probes[i].From = netip.AddrPortFrom(b.machineAddress(key.vip), ports[i])
	}
	return probes
}

func addProbes(found map[probed]*TunnelProbe, view *PoolView, isTunnelled func(check string) bool) {
	for _, name := range view.HealthChecks {
		if !isTunnelled(name) {
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
func (b *builder) probePorts(keys []probed) []uint16 {
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
		b.errorf("machine.probe_ports", "has %d ports (%s), and checks with `via: tunnel` need %d, one for each backend, encapsulation and check: give a larger range", size, reserved, needed)
	}
	return ports
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
