package compile

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/guideway/guideway/controller/config"
)

// Route is a prefix that may be announced while at least one of its services
// has a backend (or keeps its route).
type Route struct {
	Prefix netip.Prefix
	// Names of this machine's services on it, sorted.
	Services []string
}

// Announceable lists the routes of this machine's services, in order of
// prefix: a host route for each exact VIP, and for each VIP in a prefix group
// the own prefixes (or a host route where the suffix fills the host bits).
// Only what is inside cluster.prefixes counts; without those, everything.
func Announceable(c *config.Config) []Route {
	services := map[netip.Prefix][]string{}
	for _, service := range c.ServicesHere() {
		for _, vip := range service.VIPs {
			for _, prefix := range ownPrefixes(c, vip) {
				services[prefix] = append(services[prefix], service.Name)
			}
		}
	}
	routes := make([]Route, 0, len(services))
	for prefix, names := range services {
		slices.Sort(names)
		routes = append(routes, Route{Prefix: prefix, Services: slices.Compact(names)})
	}
	slices.SortFunc(routes, func(a, b Route) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
	return routes
}

func ownPrefixes(c *config.Config, vip config.VIP) []netip.Prefix {
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

func ownHost(c *config.Config, address netip.Addr) []netip.Prefix {
	if !c.Cluster.Owns(address) {
		return nil
	}
	return []netip.Prefix{netip.PrefixFrom(address, address.BitLen())}
}

// ownIn are the routes for a suffix in one prefix of its group.
func ownIn(c *config.Config, vip config.VIP, prefix netip.Prefix) []netip.Prefix {
	left := prefix.Addr().BitLen() - prefix.Bits()
	if vip.SuffixBits == 0 || vip.SuffixBits == left {
		return ownHost(c, withSuffix(prefix, vip.Suffix))
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

// withSuffix joins the prefix's bits and the suffix's, which do not overlap.
func withSuffix(prefix netip.Prefix, suffix netip.Addr) netip.Addr {
	joined := prefix.Addr().AsSlice()
	for i, low := range suffix.AsSlice() {
		joined[i] |= low
	}
	address, _ := netip.AddrFromSlice(joined)
	return address
}
