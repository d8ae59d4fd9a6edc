package config

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func tunnelled(t *testing.T, backends int) *Config {
	t.Helper()
	var list []string
	for i := range backends {
		list = append(list, fmt.Sprintf("{name: b%d, address: 10.1.%d.%d}", i, i/250, i%250+1))
	}
	text := `
machine: {addresses: [10.0.0.1, "2001:db8:1::1"]}
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}, {address: "2001:db8::10", ports: [80], protocol: tcp}], pools: [web]}
- {name: web-tls, vips: [{address: 203.0.113.10, ports: [443], protocol: tcp}, {address: "2001:db8::10", ports: [443], protocol: tcp}], pools: [web]}
- {name: other, vips: [{address: 203.0.113.20, ports: [80], protocol: tcp}], pools: [web, plain]}
- {name: gue, vips: [{address: 203.0.113.10, ports: [81], protocol: tcp}], pools: [web], encap: gue}
- {name: direct, vips: [{address: 203.0.113.30, ports: [80], protocol: tcp}], pools: [plain]}
pools:
- {name: web, health_checks: [t, u, d], backends: [` + strings.Join(list, ", ") + `]}
- {name: plain, health_checks: [d], backends: [{name: p, address: 10.2.0.1}]}
health_checks:
- {name: t, tcp: {port: 80}, via: tunnel}
- {name: u, tcp: {port: 81}, via: tunnel}
- {name: d, tcp: {port: 80}, via: direct}
`
	c, err := Parse([]Source{{Name: "c.yaml", Data: []byte(text)}}, groupReadable)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func Test_services_of_one_tunnel_and_its_vips_share_a_group(t *testing.T) {
	c := tunnelled(t, 2)
	groups := map[string][]string{}
	for _, s := range c.Services {
		groups[s.Group] = append(groups[s.Group], s.Name)
	}
	want := map[string][]string{
		"web  via gre to 203.0.113.10,2001:db8::10": {"web", "web-tls"},
		"plain web  via gre to 203.0.113.20":        {"other"},
		"web  via gue to 203.0.113.10":              {"gue"},
		"plain":                                     {"direct"},
	}
	if fmt.Sprint(groups) != fmt.Sprint(want) {
		t.Errorf("groups %v, want %v", groups, want)
	}
	for _, m := range c.Services[2].Members {
		want := "web via gre to 203.0.113.20"
		if m.Backend.Name == "p" {
			want = "plain"
		}
		if !slices.Equal(m.Pools, []string{want}) {
			t.Errorf("%s is in %v, want %s", m.Backend.Name, m.Pools, want)
		}
	}
}

func Test_a_port_stands_for_one_backend_and_encapsulation(t *testing.T) {
	c := tunnelled(t, 300)
	// For each backend: gre to three VIPs and gue to one, by two checks.
	if len(c.TunnelProbes) != 300*(3+1)*2 {
		t.Fatalf("%d probes", len(c.TunnelProbes))
	}
	type tunnel struct {
		backend string
		encap   Encap
	}
	ends := map[string]bool{}
	tunnels := map[uint16]tunnel{}
	for _, p := range c.TunnelProbes {
		if p.From.Addr().Is4() != p.VIP.Is4() {
			t.Fatalf("%s is probed from %s", p.VIP, p.From)
		}
		if port := p.From.Port(); port < 20000 || port > 32767 {
			t.Fatalf("port %d is not reserved", port)
		}
		both := fmt.Sprint(p.From, p.VIP)
		if ends[both] {
			t.Fatalf("two probes of %s from %s", p.VIP, p.From)
		}
		ends[both] = true
		this := tunnel{p.Backend.Name, p.Encap}
		if other, known := tunnels[p.From.Port()]; known && other != this {
			t.Fatalf("port %d is that of %v and %v", p.From.Port(), this, other)
		}
		tunnels[p.From.Port()] = this
	}
	if len(tunnels) != 300*2*2 {
		t.Errorf("%d ports: those of several VIPs share one", len(tunnels))
	}
}

func Test_checks_go_through_the_tunnel_by_default_where_they_can(t *testing.T) {
	c, err := Parse([]Source{{Name: "c.yaml", Data: []byte(`
machine: {addresses: [10.0.0.1]}
prefix_groups: [{name: a, prefixes: [198.51.100.0/24]}]
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}, {address: "2001:db8::10", ports: [80], protocol: tcp}], pools: [web]}
- {name: suffix, vips: [{prefix_group: a, suffix: 0.0.0.10, ports: [80], protocol: tcp}], pools: [web]}
- {name: six, vips: [{address: "2001:db8::20", ports: [80], protocol: tcp}], pools: [other]}
pools:
- {name: web, health_checks: [t, ping], backends: [{address: 10.1.0.11}]}
- {name: other, health_checks: [t], backends: [{address: 10.1.0.12}]}
health_checks: [{name: t, tcp: {port: 80}}, {name: ping, icmp: {}}]
`)}}, groupReadable)
	if err != nil {
		t.Fatal(err)
	}
	if c.HealthCheckNamed("t").Via != ViaAuto || c.HealthCheckNamed("ping").Via != ViaDirect {
		t.Errorf("t goes %s, ping %s", c.HealthCheckNamed("t").Via, c.HealthCheckNamed("ping").Via)
	}
	if len(c.TunnelProbes) != 1 || c.TunnelProbes[0].VIP.String() != "203.0.113.10" {
		t.Errorf("probes %+v", c.TunnelProbes)
	}
	if tunnel, direct := c.ServicesOfCheck("t"); fmt.Sprint(tunnel, direct) != "[web] [suffix six]" {
		t.Errorf("t goes through the tunnel for %v, directly for %v", tunnel, direct)
	}
}

func Test_a_config_that_asks_for_no_tunnel_is_not_refused_for_its_probes(t *testing.T) {
	c, err := Parse([]Source{{Name: "c.yaml", Data: []byte(strings.ReplaceAll(manyProbes, ", via: tunnel", ""))}}, groupReadable)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.TunnelProbes)+len(c.PoolViews) != 0 || c.HealthChecks[0].Via != ViaDirect {
		t.Errorf("%d probes, the check goes %s", len(c.TunnelProbes), c.HealthChecks[0].Via)
	}
	const want = "health_checks: make more than 4096 probes through tunnels, one for each VIP of each backend and check, so checks without `via` go to the backends' own addresses"
	if !strings.Contains(fmt.Sprint(c.Warnings), want) {
		t.Errorf("warnings %v", c.Warnings)
	}
}

// Checks of 300 backends through the tunnel to 300 VIPs.
var manyProbes = func() string {
	var services, backends []string
	for i := range 300 {
		services = append(services, fmt.Sprintf("- {name: s%d, vips: [{address: 203.0.%d.%d, ports: [80], protocol: tcp}], pools: [web]}", i, i/250, i%250+1))
		backends = append(backends, fmt.Sprintf("{name: b%d, address: 10.1.%d.%d}", i, i/250, i%250+1))
	}
	return "machine: {addresses: [10.0.0.1]}\nservices:\n" + strings.Join(services, "\n") +
		"\npools: [{name: web, health_checks: [t], backends: [" + strings.Join(backends, ", ") + "]}]\n" +
		"health_checks: [{name: t, tcp: {port: 80}, via: tunnel}]\n"
}()

func Test_more_probes_than_the_limit_are_refused(t *testing.T) {
	_, err := Parse([]Source{{Name: "c.yaml", Data: []byte(manyProbes)}}, groupReadable)
	if err == nil || !strings.Contains(err.Error(), "health_checks: make more than 65000 probes through tunnels") {
		t.Errorf("300 VIPs of 300 backends: %v", err)
	}
}

// Else each change of a pool would restart the probes of all its backends.
func Test_most_ports_stay_while_backends_come(t *testing.T) {
	ports := func(backends int) map[string]uint16 {
		found := map[string]uint16{}
		for _, p := range tunnelled(t, backends).TunnelProbes {
			found[fmt.Sprint(p.Backend.Name, p.Encap, p.VIP, p.Check)] = p.From.Port()
		}
		return found
	}
	before, after := ports(200), ports(201)
	moved := 0
	for probe, port := range before {
		if after[probe] != port {
			moved++
		}
	}
	if moved > len(before)/50 {
		t.Errorf("%d of %d ports moved", moved, len(before))
	}
	if again := ports(200); fmt.Sprint(again) != fmt.Sprint(before) {
		t.Error("the same config gives other ports")
	}
}
