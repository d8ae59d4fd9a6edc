package hosts

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/guideway/guideway/lab/topology"
)

// What is written for people too: the config of each load balancer is the one
// that a real machine would have. Backends and their weights change during
// events; everything else stays.

// machineConfig of one load balancer. Weights hold the backends that are in
// the config; one of weight 0 drains.
func machineConfig(network topology.Network, self topology.Node, weights map[string]uint32, settings topology.Settings) string {
	return ownConfig(network, self, settings) + sharedConfig(network, self, weights, settings)
}

// ownConfig is what differs between machines, but for their peers.
func ownConfig(network topology.Network, self topology.Node, settings topology.Settings) string {
	text := fmt.Sprintf(`# Written by guideway-lab for %s.
machine: {name: %s, addresses: [%s, "%s"]}
%sforwarder: {interfaces: [{name: eth0, driver: %s}], steering: %s, connections_max: %d}
metrics: {listen: %q}
`, self.Name, self.Name, self.Address(0), self.Address(1),
		announcing(network, self), cmp.Or(settings.Driver, "af_xdp"), cmp.Or(settings.Steering, "rss"), cmp.Or(settings.ConnectionsMax, defaultConnectionsMax), controllerMetrics)
	if agrees(network, settings) {
		text += fmt.Sprintf("etcd: {cluster: %s, endpoints: [\"http://%s:%d\"]}\n", network.Clusters()[self.Cluster].Name, self.Gateway(0), etcdPort)
	}
	return text
}

// sharedConfig is the rest, which etcd has where it runs.
func sharedConfig(network topology.Network, self topology.Node, weights map[string]uint32, settings topology.Settings) string {
	own := network.Clusters()[self.Cluster]
	var b strings.Builder
	fmt.Fprintf(&b, "cluster: {name: %s, secret_file: %q, prefixes: [%s]}\n", own.Name, "../"+secretFile, quotedPrefixes(own.Prefixes))
	b.WriteString("agents: {}\n")
	if settings.TunnelMTU != 0 {
		fmt.Fprintf(&b, "tunnel: {mtu: %d}\n", settings.TunnelMTU)
	}
	if agrees(network, settings) {
		b.WriteString(peersConfig(own, topology.Node{})) // each machine leaves itself out
	} else {
		b.WriteString(peersConfig(own, self))
	}
	b.WriteString(encapsulatorsConfig(network, self, settings))
	b.WriteString(servicesConfig(network, self, settings))
	b.WriteString("pools:\n")
	tcpFamily := 0
	if settings.TCPOverIPv6 {
		tcpFamily = 1
	}
	http, echo, tunnelChecks := "http-ok", "tcp-echo", ""
	if settings.TunnelChecks {
		http, echo = "http-ok, http-tunnel", "tcp-echo, tcp-tunnel"
		tunnelChecks = tunnelChecksConfig()
	}
	b.WriteString(poolConfig(own, weights, "web", http, tcpFamily))
	b.WriteString(poolConfig(own, weights, "echo", echo, tcpFamily))
	// The same servers by their IPv6 addresses: these tunnels are IPv6.
	b.WriteString(poolConfig(own, weights, "echo-v6", echo, 1))
	fmt.Fprintf(&b, `health_checks:
- {name: http-ok, via: direct, http: {port: %d, path: /healthz, host: web.example, status: [200]}, interval: 750ms, timeout: 700ms, rise: 2, fall: 3}
- {name: tcp-echo, via: direct, tcp: {port: %d}, interval: 750ms, timeout: 700ms, rise: 2, fall: 3}
`, topology.HTTPPort, topology.EchoPort)
	b.WriteString(tunnelChecks)
	return b.String()
}

func tunnelChecksConfig() string {
	return fmt.Sprintf(`- {name: http-tunnel, http: {port: %d, path: /healthz}, via: tunnel, interval: 500ms, timeout: 400ms, rise: 2, fall: 3}
- {name: tcp-tunnel, tcp: {port: %d}, via: tunnel, interval: 500ms, timeout: 400ms, rise: 2, fall: 3}
`, topology.HTTPPort, topology.EchoPort)
}

func peersConfig(own topology.Cluster, self topology.Node) string {
	var b strings.Builder
	for _, n := range own.LoadBalancers {
		if n.Name != self.Name {
			fmt.Fprintf(&b, "- {name: %s, addresses: [%s, \"%s\"]}\n", n.Name, n.Address(0), n.Address(1))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "peers:\n" + b.String()
}

// encapsulatorsConfig: those of the settings, and the other cluster's load
// balancers, which spill to this one.
func encapsulatorsConfig(network topology.Network, self topology.Node, settings topology.Settings) string {
	var items []string
	for _, prefix := range settings.Encapsulators {
		items = append(items, fmt.Sprintf("%q", prefix))
	}
	for _, n := range network.LoadBalancers {
		if n.Cluster != self.Cluster {
			items = append(items, fmt.Sprintf("%s/32, \"%s/128\"", n.Address(0), n.Address(1)))
		}
	}
	if len(items) == 0 {
		return ""
	}
	return fmt.Sprintf("encapsulators: [%s]\n", strings.Join(items, ", "))
}

func servicesConfig(network topology.Network, self topology.Node, settings topology.Settings) string {
	tail := ", encap: " + cmp.Or(settings.Encap, "gre")
	if settings.Stateless {
		tail += ", mode: stateless"
	}
	if settings.Announce != "" {
		tail += ", announce: " + settings.Announce
	}
	groups, vips := "", vipsConfig
	if network.TwoClusters {
		// A VIP of either cluster is known to both: what one spills, the other
		// finds by its suffix.
		groups = fmt.Sprintf("prefix_groups: [{name: all, prefixes: [%s]}]\n", quotedPrefixes(network.VIPPrefixes()))
		vips = suffixesConfig
		var spills []string
		for _, prefix := range network.Clusters()[1-self.Cluster].Prefixes {
			spills = append(spills, fmt.Sprintf("{prefix_group: all, prefix: %q}", prefix))
		}
		tail += fmt.Sprintf(", spill: [%s]", strings.Join(spills, ", "))
	}
	tcp := tail
	if settings.SecondChance {
		tcp += ", second_chance: true"
	}
	echo := tcp
	switch {
	case settings.Multipath:
		echo += ", mptcp: {}"
	case settings.JoinPorts != 0:
		echo += fmt.Sprintf(", mptcp: {join_ports: %d}", settings.JoinPorts)
	}
	return groups + fmt.Sprintf(`services:
- {name: web, vips: [%s], pools: [web]%s}
- {name: echo, vips: [%s], pools: [echo]%s}
- {name: echo-udp, vips: [%s], pools: [echo-v6], fragments: true%s}
`, vips(topology.WebVIPs, topology.HTTPPort, "tcp"), tcp, vips(topology.EchoVIPs, topology.EchoPort, "tcp"), echo, vips(topology.EchoVIPs, topology.EchoPort, "udp"), tail)
}

func quotedPrefixes(prefixes []netip.Prefix) string {
	var items []string
	for _, prefix := range prefixes {
		items = append(items, fmt.Sprintf("%q", prefix))
	}
	return strings.Join(items, ", ")
}

func vipsConfig(vips []netip.Addr, port int, protocol string) string {
	var items []string
	for _, vip := range vips {
		items = append(items, fmt.Sprintf("{address: \"%s\", ports: [%d], protocol: %s}", vip, port, protocol))
	}
	return strings.Join(items, ", ")
}

// suffixesConfig: the same VIPs in every prefix of the group.
func suffixesConfig(vips []netip.Addr, port int, protocol string) string {
	var items []string
	for _, vip := range vips {
		nowhere := netip.PrefixFrom(netip.IPv4Unspecified(), topology.VIPPrefix4.Bits())
		if vip.Is6() {
			nowhere = netip.PrefixFrom(netip.IPv6Unspecified(), topology.VIPPrefix6.Bits())
		}
		items = append(items, fmt.Sprintf("{prefix_group: all, suffix: \"%s\", ports: [%d], protocol: %s}", topology.SameSuffix(nowhere, vip), port, protocol))
	}
	return strings.Join(items, ", ")
}

// poolConfig of the backends by their addresses of one family.
func poolConfig(own topology.Cluster, weights map[string]uint32, pool, check string, family int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "- name: %s\n  health_checks: [%s]\n  backends:\n", pool, check)
	for _, n := range own.Backends {
		weight, named := weights[n.Name]
		if !named {
			continue
		}
		fmt.Fprintf(&b, "  - {name: %s, address: \"%s\", weight: %d}\n", backendName(n, family), n.Address(family), weight)
	}
	return b.String()
}

// controllerMetrics is where a controller serves its own, inside its namespace.
const controllerMetrics = "127.0.0.1:9470"

// speakerMetrics is where a speaker serves its own.
const speakerMetrics = "127.0.0.1:9474"

// Room for what scenarios track.
const defaultConnectionsMax = 200_000

const nameSuffixIPv6 = "-v6"

// backendName: one name has one address, so a server's two addresses have two.
func backendName(n topology.Node, family int) string {
	if family == 1 {
		return n.Name + nameSuffixIPv6
	}
	return n.Name
}

// hostPort as programs take it on their command line.
func hostPort(address netip.Addr, port uint16) string {
	return netip.AddrPortFrom(address, port).String()
}
