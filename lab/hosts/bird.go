package hosts

import (
	"context"
	"fmt"
	"strings"

	"github.com/guideway/guideway/lab/topology"
)

// bird is BIRD in the router's namespace, with files of its own.
type bird struct{ lab *Lab }

func (b bird) daemons() []string { return []string{"bird"} }

func (b bird) start() error {
	lab, router := b.lab, b.lab.router()
	config := lab.path(router, "bird.conf")
	if err := writeWhole(config, []byte(birdConfig(lab.Network, lab.path(router, "bird-routes.log"))), 0o644); err != nil {
		return err
	}
	return lab.start(router, "bird", "bird", "-f", "-c", config, "-s", b.socket(), "-P", lab.path(router, "bird.pid"))
}

func (b bird) socket() string { return b.lab.path(b.lab.router(), "bird.ctl") }

func (b bird) show() [][2]string {
	return routerRoutes(b.lab, "bird", "birdc -s "+b.socket()+" show route all")
}

func (b bird) reset(ctx context.Context, n topology.Node) error {
	return topology.Run(ctx, "", "birdc", "-s", b.socket(), "restart", birdName(n))
}

// birdName of the session's protocol: BIRD's names have no dashes.
func birdName(n topology.Node) string { return strings.ReplaceAll(n.Name, "-", "_") }

// birdConfig: a router as an operator would set it up for Guideway.
func birdConfig(network topology.Network, log string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `# Written by guideway-lab.
log %q all;
router id 10.10.255.254;

protocol device {}

# merge paths: equal routes become one multipath route of the kernel (ECMP).
protocol kernel { ipv4 { import none; export where source = RTS_BGP; }; merge paths yes; }
protocol kernel { ipv6 { import none; export where source = RTS_BGP; }; merge paths yes; }

# Finds a machine that hangs; one whose controller dies closes its session at
# once. Slower than one would have it on real machines, because here two cores
# play all of them.
protocol bfd { interface "*" { min rx interval 200 ms; min tx interval 200 ms; multiplier 5; }; }

# GRACEFUL_SHUTDOWN (RFC 8326): every other path is better.
function from_machine() {
	if (65535, 0) ~ bgp_community then bgp_local_pref = 0;
	accept;
}

template bgp machine {
	local as %d;
	passive yes;
	bfd yes;
	hold time 9;
	error wait time 1, 1;
	ipv4 { import filter { if net ~ [ %s ] then from_machine(); reject; }; export none; };
	ipv6 { import filter { if net ~ [ %s ] then from_machine(); reject; }; export none; };
}
`, log, topology.ASNRouter, vipRoutes(network, 32), vipRoutes(network, 128))
	for _, n := range network.LoadBalancers {
		fmt.Fprintf(&b, "protocol bgp %s from machine { neighbor %s as %d; source address %s; }\n",
			birdName(n), n.Address(0), topology.ASNMachines, n.Gateway(0))
	}
	return b.String()
}

// vipRoutes are the VIP prefixes of one family and the addresses in them, as BIRD
// writes them.
func vipRoutes(network topology.Network, bits int) string {
	var items []string
	for _, prefix := range network.VIPPrefixes() {
		if prefix.Addr().BitLen() == bits {
			items = append(items, prefix.String(), fmt.Sprintf("%s{%d,%d}", prefix, bits, bits))
		}
	}
	return strings.Join(items, ", ")
}
