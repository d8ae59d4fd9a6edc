package lab

import (
	"fmt"
	"net/netip"
	"strings"
)

// What is written for people too: the config of each load balancer is the one
// that a real machine would have. Backends and their weights change during
// events; everything else stays.

// machineConfig of one load balancer. Weights hold the backends that are in
// the config; one of weight 0 drains.
func machineConfig(l layout, self node, weights map[string]uint32) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Written by guideway lab for %[1]s.
cluster: {name: lab, prefixes: [%[2]s, "%[3]s"]}
machine: {name: %[1]s, addresses: [%[4]s, "%[5]s"]}
`, self.Name, VIPPrefix4, VIPPrefix6, self.address(0), self.address(1))
	b.WriteString(peersConfig(l, self))
	fmt.Fprintf(&b, `services:
- {name: web, vips: [%s], pools: [web]}
- {name: echo, vips: [%s], pools: [echo]}
# The same servers by their IPv6 addresses: these tunnels are IPv6.
- {name: echo-udp, vips: [%s], pools: [echo-v6], fragments: false}
`, vipsConfig(WebVIPs, HTTPPort, "tcp"), vipsConfig(EchoVIPs, EchoPort, "tcp"), vipsConfig(EchoVIPs, EchoPort, "udp"))
	b.WriteString("pools:\n")
	b.WriteString(poolConfig(l, weights, "web", "http-ok", 0))
	b.WriteString(poolConfig(l, weights, "echo", "tcp-echo", 0))
	b.WriteString(poolConfig(l, weights, "echo-v6", "tcp-echo", 1))
	fmt.Fprintf(&b, `health_checks:
- {name: http-ok, http: {port: %d, path: /healthz, host: web.example, status: [200]}, interval: 750ms, timeout: 700ms, rise: 2, fall: 3}
- {name: tcp-echo, tcp: {port: %d}, interval: 750ms, timeout: 700ms, rise: 2, fall: 3}
`, HTTPPort, EchoPort)
	fmt.Fprintf(&b, `bgp: {asn: %d, neighbors: [{address: %s, asn: %d, hold_time: 9s, bfd: {interval: 200ms, multiplier: 5}}]}
forwarder: {interfaces: [{name: eth0, driver: af_xdp}], steering: rss, connections_max: 200000}
metrics: {listen: "127.0.0.1:9470"}
`, ASNMachines, self.gateway(0), ASNRouter)
	return b.String()
}

func peersConfig(l layout, self node) string {
	var b strings.Builder
	for _, n := range l.LoadBalancers {
		if n.Name != self.Name {
			fmt.Fprintf(&b, "- {name: %s, addresses: [%s, \"%s\"]}\n", n.Name, n.address(0), n.address(1))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "peers:\n" + b.String()
}

func vipsConfig(vips []netip.Addr, port int, protocol string) string {
	var items []string
	for _, vip := range vips {
		items = append(items, fmt.Sprintf("{address: \"%s\", ports: [%d], protocol: %s}", vip, port, protocol))
	}
	return strings.Join(items, ", ")
}

// poolConfig of the backends by their addresses of one family.
func poolConfig(l layout, weights map[string]uint32, pool, check string, family int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "- name: %s\n  health_checks: [%s]\n  backends:\n", pool, check)
	for _, n := range l.Backends {
		weight, named := weights[n.Name]
		if !named {
			continue
		}
		fmt.Fprintf(&b, "  - {name: %s, address: \"%s\", weight: %d}\n", backendName(n, family), n.address(family), weight)
	}
	return b.String()
}

// backendName: one name has one address, so a server's two addresses have two.
func backendName(n node, family int) string {
	if family == 1 {
		return n.Name + "-v6"
	}
	return n.Name
}

// hostPort as programs take it on their command line.
func hostPort(address netip.Addr, port uint16) string {
	return netip.AddrPortFrom(address, port).String()
}
