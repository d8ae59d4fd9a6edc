package config

// The contents of the forwarder's XDP filter, which matches destinations: one entry for
// each address or prefix of a VIP.

import (
	"fmt"
	"net/netip"
	"strings"
)

// filterPrefixes of the services of a shard, of one family each.
type filterPrefixes struct{ v4, v6 map[netip.Prefix]bool }

func newFilterPrefixes() filterPrefixes {
	return filterPrefixes{map[netip.Prefix]bool{}, map[netip.Prefix]bool{}}
}

func (f filterPrefixes) add(prefix netip.Prefix) {
	if prefix.Addr().Is4() {
		f.v4[prefix] = true
	} else {
		f.v6[prefix] = true
	}
}

func (f filterPrefixes) addService(c *Config, service *Service) {
	for _, vip := range service.VIPs {
		if vip.Address.IsValid() {
			f.add(netip.PrefixFrom(vip.Address, vip.Address.BitLen()))
			continue
		}
		for i := range c.PrefixGroups {
			if c.PrefixGroups[i].Name != vip.PrefixGroup {
				continue
			}
			for _, prefix := range c.PrefixGroups[i].Prefixes {
				f.add(prefix)
			}
		}
	}
}

// full names the families that have too many entries, as `65537 of IPv4`.
func (f filterPrefixes) full() string {
	var families []string
	for _, family := range []struct {
		name     string
		prefixes map[netip.Prefix]bool
	}{{"IPv4", f.v4}, {"IPv6", f.v6}} {
		if len(family.prefixes) > filterPrefixesMax {
			families = append(families, fmt.Sprintf("%d of %s", len(family.prefixes), family.name))
		}
	}
	return strings.Join(families, " and ")
}

// checkFilter refuses a config that no forwarder's filter holds.
func (b *builder) checkFilter() {
	shards := map[string]filterPrefixes{}
	for i := range b.config.Services {
		service := &b.config.Services[i]
		prefixes, known := shards[service.Shard]
		if !known {
			prefixes = newFilterPrefixes()
			shards[service.Shard] = prefixes
		}
		before := prefixes.full()
		prefixes.addService(b.config, service)
		if full := prefixes.full(); before == "" && full != "" {
			b.errorf(fmt.Sprintf("services[%d].vips", i),
				"with this service the VIPs of shard %q have %s, and the forwarder's XDP filter holds %d of each family: give neighbouring addresses as one prefix (prefix_groups, of which each prefix counts once), or spread services over shards",
				service.Shard, full, filterPrefixesMax)
		}
	}
}

// CheckChange returns why a forwarder that serves one config cannot change to
// another in one step; nil: it can.
func CheckChange(from, to *Config) error {
	if from == nil {
		return nil
	}
	both := newFilterPrefixes()
	for _, c := range []*Config{from, to} {
		for i := range c.Services {
			if c.Services[i].Shard == c.Machine.Shard {
				both.addService(c, &c.Services[i])
			}
		}
	}
	if full := both.full(); full != "" {
		return fmt.Errorf("services: the VIPs that are served now and those of the new config are %s together, and the forwarder's XDP filter holds %d of each family, also while it changes from one to the other: load a config without the VIPs that go first, and then the new one",
			full, filterPrefixesMax)
	}
	return nil
}
