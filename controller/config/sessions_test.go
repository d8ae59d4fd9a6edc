package config

import (
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

func TestWhichSessionsAConfigEnds(t *testing.T) {
	const text = `
machine: {name: lb-1, addresses: [10.0.0.1]}
cluster: {prefixes: [203.0.113.0/24]}
pools: [{name: web, backends: [{name: web-1, address: 10.1.0.11}]}]
services: [{name: web, vips: [{address: 203.0.113.10, protocol: tcp, ports: [80]}], pools: [web]}]
bgp: {asn: 64512, neighbors: [{address: 10.0.0.254, asn: 64513, med: 1}, {address: 10.0.0.253, asn: 64513}]}
`
	parsed := func(text string) *Config {
		c, err := Parse([]Source{{Name: "a.yaml", Data: []byte(text)}}, func(string) ([]byte, fs.FileMode, error) { return []byte("secret"), 0o600, nil })
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	const both = "10.0.0.254 false: %[1]s; 10.0.0.253 false: %[1]s"
	for what, c := range map[string]struct{ from, to, want string }{
		"nothing":             {"", "", ""},
		"what routes carry":   {"med: 1", "med: 7, prepend: 2", ""},
		"a community":         {"bgp: {", `bgp: {communities: ["64512:1"], `, ""},
		"the router's AS":     {"asn: 64513, med", "asn: 64514, med", "10.0.0.254 false: asn: 64513 to 64514"},
		"the own AS":          {"asn: 64512", "asn: 64599", fmt.Sprintf(both, "bgp.asn: 64512 to 64599")},
		"router_id":           {"asn: 64512", "asn: 64512, router_id: 10.0.0.9", fmt.Sprintf(both, "bgp.router_id: 10.0.0.1 to 10.0.0.9")},
		"ttl_security":        {"med: 1", "med: 1, ttl_security: true", "10.0.0.254 false: ttl_security: false to true"},
		"a password":          {"med: 1", "med: 1, password_file: /p", "10.0.0.254 false: password_file: none to /p"},
		"bfd":                 {"med: 1", "med: 1, bfd: {interval: 200ms}", "10.0.0.254 false: bfd.interval: none to 200ms, bfd.multiplier: none to 3"},
		"hold_time":           {"med: 1", "med: 1, hold_time: 30s", "10.0.0.254 false: hold_time: 9s to 30s"},
		"source, multihop":    {"med: 1", "med: 1, source: 10.0.0.1, multihop: 2", "10.0.0.254 false: multihop: 0 to 2, source: none to 10.0.0.1"},
		"a neighbor less":     {"{address: 10.0.0.254, asn: 64513, med: 1}, ", "", "10.0.0.254 true: the neighbor is removed"},
		"a neighbor more":     {"bgp: {asn: 64512, neighbors: [", "bgp: {asn: 64512, neighbors: [{address: 10.0.0.252, asn: 1}, ", ""},
		"another order":       {"{address: 10.0.0.254, asn: 64513, med: 1}, {address: 10.0.0.253, asn: 64513}", "{address: 10.0.0.253, asn: 64513}, {address: 10.0.0.254, asn: 64513, med: 1}", ""},
		"no BGP":              {text[strings.Index(text, "bgp:"):], "", "10.0.0.254 true: bgp is removed; 10.0.0.253 true: bgp is removed"},
		"a default spelt out": {"med: 1", "med: 1, hold_time: 9s", ""},
	} {
		var got []string
		for _, end := range SessionEnds(parsed(text), parsed(strings.Replace(text, c.from, c.to, 1))) {
			got = append(got, fmt.Sprintf("%s %v: %s", end.Neighbor.Address, end.Removed, end.Reason))
		}
		if strings.Join(got, "; ") != c.want {
			t.Errorf("%s: %q, want %q", what, strings.Join(got, "; "), c.want)
		}
	}
}
