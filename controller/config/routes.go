package config

// The prefixes that may be announced, with their communities.

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Route is a prefix that may be announced while at least one of its services
// has a backend (or keeps its route).
type Route struct {
	Prefix netip.Prefix
	// Names of this machine's services on it, sorted.
	Services []string
	// BGP's and those of all its services, sorted, each once.
	Communities      []Community
	LargeCommunities []LargeCommunity
}

// Routes lists the routes of this machine's services, in order of
// prefix: a host route for each exact VIP, and for each VIP in a prefix group
// the own prefixes (or a host route where the suffix fills the host bits). With
// `announce: aggregate` those of cluster.prefixes in their place. Only what is
// inside cluster.prefixes counts; without those, everything.
func (c *Config) Routes() []Route {
	byPrefix := map[netip.Prefix]*Route{}
	for _, service := range c.ServicesHere() {
		for _, vip := range service.VIPs {
			for _, prefix := range announced(c, service.Announce, vip) {
				route := byPrefix[prefix]
				if route == nil {
					route = &Route{Prefix: prefix}
					byPrefix[prefix] = route
				}
				route.Services = append(route.Services, service.Name)
				route.Communities = append(route.Communities, service.Communities...)
				route.LargeCommunities = append(route.LargeCommunities, service.LargeCommunities...)
			}
		}
	}
	routes := make([]Route, 0, len(byPrefix))
	for _, route := range byPrefix {
		if c.BGP != nil {
			route.Communities = append(route.Communities, c.BGP.Communities...)
			route.LargeCommunities = append(route.LargeCommunities, c.BGP.LargeCommunities...)
		}
		slices.Sort(route.Services)
		slices.Sort(route.Communities)
		slices.SortFunc(route.LargeCommunities, func(a, b LargeCommunity) int {
			return cmp.Or(cmp.Compare(a.Global, b.Global), cmp.Compare(a.Local1, b.Local1), cmp.Compare(a.Local2, b.Local2))
		})
		route.Services, route.Communities = slices.Compact(route.Services), slices.Compact(route.Communities)
		route.LargeCommunities = slices.Compact(route.LargeCommunities)
		routes = append(routes, *route)
	}
	slices.SortFunc(routes, func(a, b Route) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	return routes
}

// announced for a VIP.
func announced(c *Config, announce Announce, vip VIP) []netip.Prefix {
	own := ownPrefixes(c, vip)
	if announce == AnnounceAggregate {
		for i, prefix := range own {
			own[i] = aggregateOf(c.Cluster.Prefixes, prefix)
		}
	}
	return own
}

// aggregateOf is the longest of the cluster's prefixes that holds all of one.
func aggregateOf(prefixes []netip.Prefix, prefix netip.Prefix) netip.Prefix {
	aggregate := prefix
	found := false
	for _, ours := range prefixes {
		if ours.Overlaps(prefix) && ours.Bits() <= prefix.Bits() && (!found || ours.Bits() > aggregate.Bits()) {
			aggregate, found = ours, true
		}
	}
	return aggregate
}

func ownPrefixes(c *Config, vip VIP) []netip.Prefix {
	if vip.Address.IsValid() {
		return ownHost(c, vip.Address)
	}
	var own []netip.Prefix
	for _, group := range c.PrefixGroups {
		if group.Name != vip.PrefixGroup {
			continue
		}
		for _, prefix := range group.Prefixes {
			if prefix.Addr().Is4() == vip.Suffix.Is4() {
				own = append(own, ownIn(c, vip, prefix)...)
			}
		}
	}
	return own
}

func ownHost(c *Config, address netip.Addr) []netip.Prefix {
	if !c.Cluster.Owns(address) {
		return nil
	}
	return []netip.Prefix{netip.PrefixFrom(address, address.BitLen())}
}

// ownIn are the routes for a suffix in one prefix of its group.
func ownIn(c *Config, vip VIP, prefix netip.Prefix) []netip.Prefix {
	left := prefix.Addr().BitLen() - prefix.Bits()
	if vip.SuffixBits == 0 || vip.SuffixBits == left {
		return ownHost(c, WithSuffix(prefix, vip.Suffix))
	}
	if len(c.Cluster.Prefixes) == 0 {
		return []netip.Prefix{prefix}
	}
	var own []netip.Prefix
	for _, ours := range c.Cluster.Prefixes {
		switch {
		case !ours.Overlaps(prefix):
		case ours.Bits() <= prefix.Bits():
			own = append(own, prefix)
		default: // the group's prefix is shared with others: announce our part
			own = append(own, ours)
		}
	}
	return own
}

// WithSuffix joins the prefix's bits and the suffix's, which do not overlap.
func WithSuffix(prefix netip.Prefix, suffix netip.Addr) netip.Addr {
	joined := prefix.Addr().AsSlice()
	for i, low := range suffix.AsSlice() {
		joined[i] |= low
	}
	address, _ := netip.AddrFromSlice(joined)
	return address
}

// checkRoutes holds the routes of this machine against what routers take.
func (b *builder) checkRoutes() {
	if b.config.BGP == nil {
		return
	}
	routes := b.config.Routes()
	if most := b.config.BGP.RoutesMax; most > 0 && len(routes) > most {
		b.errorf("bgp.routes_max", "is %d, and this machine's services have %d routes (the first beyond it is %s): give fewer VIPs, or raise it together with the limit of each router", most, len(routes), routes[most].Prefix)
	}
	for _, route := range routes {
		if n := max(len(route.Communities), len(route.LargeCommunities)); n > communitiesMax {
			b.errorf("services", "%d services, %s among them, share the route %s, which so has %d communities of one kind; at most %d fit into a BGP message: give them fewer, or the services addresses of their own", len(route.Services), route.Services[0], route.Prefix, n, communitiesMax)
		}
	}
}

// checkAggregates: a prefix that is announced attracts the packets of all VIPs in
// it, and a machine serves those of its own shard alone.
func (b *builder) checkAggregates() {
	var held map[netip.Prefix][]aggregated
	refused := map[netip.Prefix]bool{}
	for i, service := range b.config.Services {
		if service.Announce != AnnounceAggregate {
			continue
		}
		field := fmt.Sprintf("services[%d].announce", i)
		if len(b.config.Cluster.Prefixes) == 0 {
			b.errorf(field, "is aggregate, which announces cluster.prefixes, and there are none: list the cluster's prefixes there, or remove it")
			continue
		}
		if held == nil {
			held = b.heldPrefixes()
		}
		for _, vip := range service.VIPs {
			for _, prefix := range announced(b.config, AnnounceAggregate, vip) {
				at := slices.IndexFunc(held[prefix], func(a aggregated) bool { return a.shard != service.Shard })
				if at < 0 || refused[prefix] {
					continue
				}
				refused[prefix] = true
				other := held[prefix][at]
				b.errorf(field, "announces %s, which also holds the VIP %s of service %q of shard %q: machines of shard %q would attract its packets, and do not serve it; give each shard prefixes of its own in cluster.prefixes, or remove `announce: aggregate`", prefix, other.vip, other.service, other.shard, service.Shard)
			}
		}
	}
}

// aggregated is a VIP in a prefix, the first of its shard.
type aggregated struct{ shard, service, vip string }

// heldPrefixes: for each of the cluster's prefixes a VIP of each shard in it.
func (b *builder) heldPrefixes() map[netip.Prefix][]aggregated {
	held := map[netip.Prefix][]aggregated{}
	for _, service := range b.config.Services {
		for _, vip := range service.VIPs {
			for _, prefix := range ownPrefixes(b.config, vip) {
				for _, ours := range b.config.Cluster.Prefixes {
					known := slices.ContainsFunc(held[ours], func(a aggregated) bool { return a.shard == service.Shard })
					if ours.Overlaps(prefix) && !known {
						held[ours] = append(held[ours], aggregated{service.Shard, service.Name, vip.String()})
					}
				}
			}
		}
	}
	return held
}
