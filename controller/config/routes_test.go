package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func Test_announced_are_own_addresses_and_for_short_suffixes_own_prefixes(t *testing.T) {
	const services = `
machine: {addresses: [10.0.0.1]}
prefix_groups: [{name: g, prefixes: [203.0.113.0/24, 198.51.100.0/24, 192.0.2.0/23, "2001:db8:a::/64"]}]
services:
- {name: exact, vips: [{address: 203.0.113.10, protocol: tcp}, {address: 198.51.100.10, protocol: tcp}], pools: [p]}
- {name: same, vips: [{address: 203.0.113.10, protocol: udp}], pools: [p], fragments: false}
- {name: host, vips: [{prefix_group: g, suffix: 0.0.0.20, protocol: tcp}], pools: [p]}
- {name: short, vips: [{prefix_group: g, suffix: 0.0.0.5/4, protocol: tcp}], pools: [p]}
- {name: six, vips: [{prefix_group: g, suffix: "::7", protocol: tcp}], pools: [p]}
- {name: elsewhere, shard: other, vips: [{address: 203.0.113.99, protocol: tcp}], pools: [p]}
pools: [{name: p, backends: [{address: 10.1.0.1}]}]
`
	for _, one := range []struct {
		what, own string
		wanted    []string
	}{
		{"without own prefixes everything", "", []string{
			"192.0.2.0/23 [short]", "192.0.2.20/32 [host]", "198.51.100.0/24 [short]", "198.51.100.10/32 [exact]",
			"198.51.100.20/32 [host]", "203.0.113.0/24 [short]", "203.0.113.10/32 [exact same]", "203.0.113.20/32 [host]",
			"2001:db8:a::7/128 [six]",
		}},
		{"else only what is inside", "cluster: {prefixes: [203.0.113.0/24, 192.0.2.0/24]}", []string{
			// The group's /23 is only half ours.
			"192.0.2.0/24 [short]", "192.0.2.20/32 [host]",
			"203.0.113.0/24 [short]", "203.0.113.10/32 [exact same]", "203.0.113.20/32 [host]",
		}},
	} {
		t.Run(one.what, func(t *testing.T) {
			var got []string
			for _, route := range parseText(t, services+one.own).Routes() {
				got = append(got, fmt.Sprintf("%s %v", route.Prefix, route.Services))
			}
			if !slices.Equal(got, one.wanted) {
				t.Errorf("routes are\n%s\nwanted\n%s", strings.Join(got, "\n"), strings.Join(one.wanted, "\n"))
			}
		})
	}
}

func Test_a_service_may_announce_the_clusters_prefixes_in_place_of_its_addresses(t *testing.T) {
	c := parseText(t, `
cluster: {prefixes: [203.0.113.0/24, 203.0.113.128/25, "2001:db8:a::/64"]}
machine: {addresses: [10.0.0.1]}
prefix_groups: [{name: g, prefixes: [203.0.113.0/26, 198.51.100.0/24]}]
services:
- {name: web, vips: [{address: 203.0.113.10}, {address: "2001:db8:a::10"}, {address: 198.51.100.1}], pools: [p], announce: aggregate, communities: ["64512:1"]}
- {name: more, vips: [{address: 203.0.113.11}, {address: 203.0.113.130}], pools: [p], announce: aggregate, communities: ["64512:2"]}
- {name: suffix, vips: [{prefix_group: g, suffix: 0.0.0.5/4, protocol: tcp}], pools: [p], announce: aggregate}
- {name: alone, vips: [{address: 203.0.113.12}], pools: [p]}
pools: [{name: p, backends: [{address: 10.1.0.1}]}]
`)
	var got []string
	for _, route := range c.Routes() {
		got = append(got, fmt.Sprintf("%s %v %v", route.Prefix, route.Services, route.Communities))
	}
	want := []string{
		"203.0.113.0/24 [more suffix web] [64512:1 64512:2]",
		"203.0.113.12/32 [alone] []",
		// Of prefixes in one another the longest.
		"203.0.113.128/25 [more] [64512:2]",
		"2001:db8:a::/64 [web] [64512:1]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("routes are\n%s\nwanted\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func Test_a_suffix_joins_its_prefix(t *testing.T) {
	got := WithSuffix(netip.MustParsePrefix("2001:db8:a::/64"), netip.MustParseAddr("::1:2"))
	if wanted := netip.MustParseAddr("2001:db8:a::1:2"); got != wanted {
		t.Errorf("address is %s, wanted %s", got, wanted)
	}
}

func Test_a_route_has_the_communities_of_bgp_and_of_all_its_services(t *testing.T) {
	c := parseText(t, `
machine: {addresses: [10.0.0.1]}
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [p], communities: ["64512:2", "64512:1"], large_communities: ["1:2:3"]}
- {name: dns, vips: [{address: 203.0.113.10, ports: [53], protocol: udp}, {address: 203.0.113.11}], pools: [p], communities: ["64512:2", "64512:9"]}
pools: [{name: p, backends: [{address: 10.1.0.1}]}]
bgp: {asn: 64512, neighbors: [{address: 10.0.0.254, asn: 64513}], communities: ["64512:100"], large_communities: ["64512:0:4294967295"]}
`)
	var got []string
	for _, route := range c.Routes() {
		got = append(got, fmt.Sprintf("%s %v %v", route.Prefix, route.Communities, route.LargeCommunities))
	}
	want := []string{
		"203.0.113.10/32 [64512:1 64512:2 64512:9 64512:100] [1:2:3 64512:0:4294967295]",
		"203.0.113.11/32 [64512:2 64512:9 64512:100] [64512:0:4294967295]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("routes are\n%s\nwanted\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
