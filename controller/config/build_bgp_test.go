package config

import (
	"strings"
	"testing"
)

const ofOther, ofOurs = "{address: 10.0.0.254, asn: 64513%s}", "{address: 10.0.0.254, asn: 64512%s}"

func bgpWith(neighbor, more, rest string) string {
	return small + "bgp: {asn: 64512, neighbors: [" + strings.Replace(neighbor, "%s", more, 1) + "]" + rest + "}\n"
}

func Test_what_a_neighbor_cannot_be_is_refused_with_the_cure(t *testing.T) {
	for _, one := range []struct{ neighbor, more, rest, says string }{
		{ofOther, ", local_pref: 200", "", "bgp.neighbors[0].local_pref: is for routers of our own AS (64512), and this one is of AS 64513"},
		{ofOurs, ", local_pref: 0", "", "local_pref"},
		{ofOurs, ", prepend: 1", "", "takes a path with its own number for a loop and refuses it: use local_pref"},
		{ofOther, ", prepend: 17", "", "prepend"},
		{ofOurs, ", multihop: 2", "", "sessions have no limit of hops: remove it"},
		{ofOther, ", multihop: 2, ttl_security: true", "", "beside ttl_security"},
		{ofOther, ", multihop: 2, bfd: {}", "", "beside bfd, which works on one link only"},
		{ofOther, ", multihop: 1", "", "multihop"},
		{ofOther, ", source: \"2001:db8::1\"", "", "of another family than the router's address 10.0.0.254"},
		{ofOther, ", source: eth0", "", "bgp.neighbors[0].source"},
		{ofOther, ", med: -1", "", "med"},
		{ofOther, "", ", router_id: \"2001:db8::1\"", "bgp.router_id: is \"2001:db8::1\": give an IPv4 address"},
		{ofOther, "", ", router_id: 0.0.0.0", "other than 0.0.0.0"},
		{ofOther, "", ", communities: [\"64512:65536\"]", "bgp.communities[0]: is \"64512:65536\": give two numbers"},
		{ofOther, "", ", communities: [\"64512:1:2\"]", "for `large_communities`"},
		{ofOther, "", ", large_communities: [\"64512:1\"]", "bgp.large_communities[0]: is \"64512:1\": give three numbers"},
	} {
		_, err := Parse([]Source{{Name: "t", Data: []byte(bgpWith(one.neighbor, one.more, one.rest))}}, noFiles)
		if err == nil || !strings.Contains(err.Error(), one.says) {
			t.Errorf("%s%s: %v, wanted %q", one.more, one.rest, err, one.says)
		}
	}
}

func Test_a_neighbors_options_are_read(t *testing.T) {
	n := parseText(t, bgpWith(ofOther, ", source: 10.0.0.9, multihop: 255, med: 0, prepend: 16", ", router_id: 192.0.2.77")).BGP
	if got := n.Neighbors[0]; got.Source.String() != "10.0.0.9" || got.Multihop != 255 || got.MED == nil || *got.MED != 0 || got.Prepend != 16 || got.LocalPref != 0 {
		t.Errorf("neighbor is %+v", got)
	}
	if n.RouterID.String() != "192.0.2.77" {
		t.Errorf("router id is %s", n.RouterID)
	}
	if got := parseText(t, bgpWith(ofOurs, "", "")).BGP.Neighbors[0]; got.LocalPref != 100 || got.MED != nil {
		t.Errorf("defaults of a neighbor of our AS: %+v", got)
	}
}

// The own prefixes alone count, and only this machine's shard.
func Test_more_routes_than_routers_take_are_refused(t *testing.T) {
	text := `
machine: {addresses: [10.0.0.1]}
cluster: {prefixes: [203.0.113.0/24]}
services:
- {name: web, vips: [{address: 203.0.113.10}, {address: 203.0.113.11}, {address: 198.51.100.1}], pools: [p]}
- {name: other, shard: b, vips: [{address: 203.0.113.12}], pools: [p]}
pools: [{name: p, backends: [{address: 10.1.0.1}]}]
bgp: {asn: 64512, neighbors: [{address: 10.0.0.254, asn: 64513}], routes_max: `
	if got := parseText(t, text+"2}").BGP.RoutesMax; got != 2 {
		t.Errorf("routes_max is %d", got)
	}
	_, err := Parse([]Source{{Name: "t", Data: []byte(text + "1}")}}, noFiles)
	if err == nil || !strings.Contains(err.Error(), "bgp.routes_max: is 1, and this machine's services have 2 routes (the first beyond it is 203.0.113.11/32)") {
		t.Errorf("said %v", err)
	}
}
