package config

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// check looks at the whole: what no single field shows.
func (b *builder) check() {
	b.checkEtcd()
	b.checkLimits()
	b.checkFilter()
	b.checkAggregates()
	b.checkRoutes()
	b.checkTunnelMTU()
	b.checkTables()
	b.checkBuckets()
	b.checkSources()
	b.checkQUICLB()
	b.checkMultipathTCP()
	b.checkJoinPorts()
	b.checkSecondChances()
	b.checkL2()
	b.checkAgents()
	b.checkOverlaps()
	b.checkBackendVIPs()
	b.warnUnused()
	b.warnServices()
}

func (b *builder) checkLimits() {
	type group struct{ shard, name string }
	seen := map[group]bool{}
	services, members, matches := map[string]int{}, map[string]int{}, map[string]int{}
	for i, service := range b.config.Services {
		path := fmt.Sprintf("services[%d]", i)
		services[service.Shard]++
		more := 0
		if one := (group{service.Shard, service.Group}); !seen[one] {
			seen[one] = true
			more = len(service.Members)
		}
		members[service.Shard] += more
		if services[service.Shard] == servicesMax+1 {
			b.errorf(path, "is service %d of shard %q, and a machine serves at most %d: spread services over shards", servicesMax+1, service.Shard, servicesMax)
		}
		if n := members[service.Shard]; n > membersMax && n-more <= membersMax {
			b.errorf(path+".pools", "with this service the sets of pools that services of shard %q have hold %d backends, counted in each set; at most %d fit into a plan: use fewer different sets, or spread services over shards", service.Shard, n, membersMax)
		}
		ports := matchesOf(service)
		if n := matches[service.Shard]; n <= matchesMax && n+ports > matchesMax {
			b.errorf(path+".vips", "with this service the services of shard %q have %d port ranges together, TCP and UDP counted apart; a forwarder holds at most %d: spread services over shards", service.Shard, n+ports, matchesMax)
		}
		matches[service.Shard] += ports
	}
	b.checkTableBytes()
	if n := len(b.config.Backends); n > backendsMax {
		b.errorf("pools", "hold %d different backends, and at most %d can be told apart: spread them over clusters", n, backendsMax)
	}
}

func matchesOf(service Service) int {
	n := 0
	for _, vip := range service.VIPs {
		n += 2 * max(1, len(vip.Ports))
		if service.JoinPorts != 0 {
			n += len(service.Members)
		}
	}
	return n
}

// checkTableBytes adds up the tables of a shard. Services that name the same
// pools and size share one.
func (b *builder) checkTableBytes() {
	type table struct {
		shard, group string
		size         uint32
	}
	seen, bytes := map[table]bool{}, map[string]int{}
	for i, service := range b.config.Services {
		one := table{service.Shard, service.Group, service.TableSize}
		if seen[one] {
			continue
		}
		seen[one] = true
		before := bytes[service.Shard]
		bytes[service.Shard] += 2 * int(service.TableSize)
		if before <= tableBytesMax && bytes[service.Shard] > tableBytesMax {
			b.errorf(fmt.Sprintf("services[%d].table_size", i), "with this table those of shard %q take more than the forwarder's %d bytes: use smaller tables, fewer different pools, or spread services over shards", service.Shard, tableBytesMax)
		}
	}
}

// checkTunnelMTU refuses one with which no tunnel carries IPv6. How much a service's own
// needs the forwarder knows, which refuses the plan by the service's name.
func (b *builder) checkTunnelMTU() {
	const least = ipv6BytesMin + ipv4HeaderBytes
	if b.config.Tunnel.MTU == 0 || b.config.Tunnel.MTU >= least {
		return
	}
	for _, service := range b.config.Services {
		if slices.ContainsFunc(service.VIPs, VIP.isIPv6) {
			b.errorf("tunnel.mtu", "is %d, and service %q has IPv6 VIPs, whose packets may have %d bytes: give %d or more, with room for the outer headers", b.config.Tunnel.MTU, service.Name, ipv6BytesMin, least)
			return
		}
	}
}

func (v VIP) isIPv6() bool {
	return v.Address.Is6() || v.Suffix.Is6()
}

func (b *builder) checkTables() {
	for i, service := range b.config.Services {
		field := fmt.Sprintf("services[%d].table_size", i)
		size := service.TableSize
		switch {
		case service.Mode == ModeStateless: // selects by buckets
		case !isPrime(size):
			b.errorf(field, "is %d, which is not a prime: give %d", size, nextPrime(size))
		case int(size) < len(service.Members):
			b.errorf(field, "is %d, smaller than the service's %d backends: give %d", size, len(service.Members),
				tableSizeFor(len(service.Members)))
		default:
			b.warnShares(field, service)
		}
	}
}

// warnShares warns how uneven a small table makes the shares: a backend's
// number of entries is rounded to a whole one, so it is wrong by up to one of
// as many as the lightest backend has.
func (b *builder) warnShares(field string, service Service) {
	active, total, least := 0, 0.0, 0.0
	for _, member := range service.Members {
		if member.Weight == 0 || member.IsBackup {
			continue
		}
		weight := float64(member.Weight)
		if active == 0 || weight < least {
			least = weight
		}
		active++
		total += weight
	}
	if active == 0 {
		return
	}
	entries := float64(service.TableSize) * least / total
	if entries >= tableEntriesPerBackend {
		return
	}
	wanted := tableSizeFor(int(total/least) + 1)
	b.warnf(field, "%d entries leave %.0f for the lightest of %d backends, so its share may be wrong by %.1f %%; with %d by %.1f %%",
		service.TableSize, entries, active, shareError(entries), wanted, shareError(float64(wanted)*least/total))
}

func shareError(entries float64) float64 { return min(100, 100/entries) }

// tableSizeFor is the size that n equal backends should have.
func tableSizeFor(n int) uint32 {
	return nextPrime(uint32(min(n*tableEntriesPerBackend, tableSizeMax)))
}

// isPrime tries divisors: there are some 400 for the largest table, and
// thousands of services may each name one.
func isPrime(n uint32) bool {
	if n < 2 || n%2 == 0 {
		return n == 2
	}
	for d := uint64(3); d*d <= uint64(n); d += 2 {
		if uint64(n)%d == 0 {
			return false
		}
	}
	return true
}

func nextPrime(n uint32) uint32 {
	for ; !isPrime(n); n++ {
	}
	return n
}

// claim is one thing that a VIP matches: which address or suffix, which
// protocol, which ports. Two of the same target and protocol must not overlap;
// of different ones, the match order decides.
type claim struct {
	target   string
	protocol string
	ports    PortRange
	vip      string
	order    int
}

func (b *builder) checkOverlaps() {
	claims := map[string][]claim{}
	order := 0
	add := func(shard, target, path string, one claim) {
		one.target, one.vip, one.order = target, path, order
		key := shard + " " + target + " " + one.protocol
		claims[key] = append(claims[key], one)
	}
	for i, service := range b.config.Services {
		joins := map[string]bool{}
		for j, vip := range service.VIPs {
			order++
			path := fmt.Sprintf("services[%d].vips[%d]", i, j)
			for _, target := range b.targets(vip) {
				for _, one := range claimsOf(vip) {
					add(service.Shard, target, path, one)
				}
				if service.JoinPorts != 0 && vip.Protocol != ProtocolUDP && !joins[target] {
					joins[target] = true
					add(service.Shard, target, fmt.Sprintf("services[%d].mptcp.join_ports", i), joinPortClaim(&service))
				}
			}
		}
	}
	// In a fixed order, so that the same config always gets the same errors.
	for _, key := range slices.Sorted(maps.Keys(claims)) {
		b.checkClaims(claims[key])
	}
}

// checkClaims reports each VIP that overlaps an earlier one of the file.
func (b *builder) checkClaims(claims []claim) {
	slices.SortFunc(claims, func(x, y claim) int {
		return cmp.Or(cmp.Compare(x.ports.First, y.ports.First), cmp.Compare(x.order, y.order))
	})
	widest := claims[0]
	for _, next := range claims[1:] {
		if next.ports.First > widest.ports.Last {
			widest = next
			continue
		}
		first, second := widest, next
		if first.order > second.order {
			first, second = second, first
		}
		both := PortRange{next.ports.First, min(next.ports.Last, widest.ports.Last)}
		b.errorf(second.vip, "overlaps %s (line %d): both want %s; remove it from one",
			first.vip, b.document.position(first.vip).line, second.describe(both))
		if next.ports.Last > widest.ports.Last {
			widest = next
		}
	}
}

func (c claim) describe(ports PortRange) string {
	if ports.Last == 0 {
		return fmt.Sprintf("%s of %s", c.protocol, c.target)
	}
	return fmt.Sprintf("%s %s of %s", c.protocol, ports, c.target)
}

// targets are the keys under which a VIP is found: its address, or its suffix
// in each length of prefix, because `0.0.0.10` and `0.0.0.10/8` are the same
// in a /24.
func (b *builder) targets(vip VIP) []string {
	if vip.Address.IsValid() {
		return []string{vip.Address.String()}
	}
	group := b.groupNamed(vip.PrefixGroup)
	if group == nil || !vip.Suffix.IsValid() {
		return nil
	}
	var targets []string
	for _, prefix := range group.Prefixes {
		if prefix.Addr().Is4() != vip.Suffix.Is4() {
			continue
		}
		bits := or(vip.SuffixBits, prefix.Addr().BitLen()-prefix.Bits())
		targets = append(targets, fmt.Sprintf("suffix %s/%d in %s", vip.Suffix, bits, prefix))
	}
	return targets
}

// claimsOf expands protocol and ports as the match order distinguishes them:
// (protocol, port), (protocol, all ports), (any protocol).
func claimsOf(vip VIP) []claim {
	if len(vip.Ports) == 0 {
		return []claim{{protocol: "all ports, protocol " + or(string(vip.Protocol), "any")}}
	}
	protocols := []string{string(vip.Protocol)}
	if vip.Protocol == ProtocolAny {
		protocols = []string{string(ProtocolTCP), string(ProtocolUDP)}
	}
	var claims []claim
	for _, protocol := range protocols {
		for _, ports := range vip.Ports {
			claims = append(claims, claim{protocol: protocol + " port", ports: ports})
		}
	}
	return claims
}

// checkBackendVIPs refuses a backend whose address is a VIP: what is tunnelled
// to it would come back to the load balancers.
func (b *builder) checkBackendVIPs() {
	vips := map[netip.Addr]string{}
	for i, service := range b.config.Services {
		for j, vip := range service.VIPs {
			if vip.Address.IsValid() {
				vips[vip.Address] = fmt.Sprintf("services[%d].vips[%d]", i, j)
			}
		}
	}
	for i, pool := range b.schema.GetPools() {
		for j, backend := range b.backendsOf(pool) {
			address, err := netip.ParseAddr(backend.GetAddress())
			if vip, ok := vips[address]; ok && err == nil {
				b.errorf(fmt.Sprintf("pools[%d].backends[%d].address", i, j), "%s is also a VIP (%s): tunnelled packets would come back; give the server's own address", address, vip)
			}
		}
	}
}

func (b *builder) warnUnused() {
	pools, checks := map[string]bool{}, map[string]bool{}
	for _, service := range b.config.Services {
		for _, name := range slices.Concat(service.Pools, service.BackupPools) {
			pools[name] = true
		}
	}
	for _, pool := range b.config.Pools {
		for _, name := range pool.Pools {
			pools[name] = true
		}
		for _, name := range pool.HealthChecks {
			checks[name] = true
		}
	}
	for i, pool := range b.config.Pools {
		if !pools[pool.Name] {
			b.warnf(fmt.Sprintf("pools[%d]", i), "pool %q is used by no service and no pool", pool.Name)
		}
	}
	for i, check := range b.config.HealthChecks {
		if !checks[check.Name] {
			b.warnf(fmt.Sprintf("health_checks[%d]", i), "health check %q is used by no pool", check.Name)
		}
	}
}

func (b *builder) warnServices() {
	here := 0
	for i, service := range b.config.Services {
		path := fmt.Sprintf("services[%d]", i)
		if service.Shard == b.config.Machine.Shard {
			here++
		}
		if service.Fragments == FragmentsAuto && servesUDP(service) && len(b.config.Peers) > 0 {
			b.warnf(path+".fragments", "is not given, and the service takes UDP: beside peers, datagrams larger than the MTU, which come in fragments, are dropped; say `fragments: true` to bring them together at one machine, or `fragments: false` if clients send none")
		}
		if service.Unmatched == UnmatchedPass {
			b.warnf(path+".unmatched", "is pass: with net.ipv4.ip_forward on, the kernel sends such packets back to the router, in a loop; turn it off")
		}
		b.warnNotAnnounced(path, service)
		b.warnWeights(path, service)
	}
	if here == 0 && len(b.config.Services) > 0 {
		b.warnf("machine.shard", "is %q, and no service has this shard: this machine serves nothing", b.config.Machine.Shard)
	}
}

func (b *builder) warnWeights(path string, service Service) {
	takes := func(m Member) bool { return m.Weight > 0 }
	if len(service.Members) > 0 && !slices.ContainsFunc(service.Members, takes) {
		b.warnf(path+".pools", "all of its %d backends have weight 0, which drains them: no new connection is taken; give one a weight of 1 or more", len(service.Members))
	}
}

func servesUDP(service Service) bool {
	return slices.ContainsFunc(service.VIPs, func(vip VIP) bool { return vip.Protocol != ProtocolTCP })
}

func (b *builder) warnNotAnnounced(path string, service Service) {
	if b.config.BGP == nil || len(b.config.Cluster.Prefixes) == 0 {
		return
	}
	for i, vip := range service.VIPs {
		if vip.Address.IsValid() && !b.config.Cluster.Owns(vip.Address) {
			b.warnf(fmt.Sprintf("%s.vips[%d].address", path, i), "%s is in none of cluster.prefixes: it is served, but not announced", vip.Address)
		}
	}
}

// Owns says whether an address is the cluster's own, and so announced.
func (c Cluster) Owns(address netip.Addr) bool {
	return len(c.Prefixes) == 0 ||
		slices.ContainsFunc(c.Prefixes, func(p netip.Prefix) bool { return p.Contains(address) })
}
