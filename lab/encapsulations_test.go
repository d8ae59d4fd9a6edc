package lab_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/guideway/guideway/lab"
)

// Every encapsulation, from forwarder to agent. TCP goes in tunnels of IPv4,
// UDP in tunnels of IPv6, and each VIP has an address of either family: so all
// four combinations of inner and outer are there.
func TestEncapsulations(t *testing.T) {
	running := up(t, options(t, "encap"))
	for _, encap := range []string{"gre", "ipip", "gue", "geneve"} {
		t.Run(encap, func(t *testing.T) { everythingIn(t, running, encap) })
	}
	checkAtRest(t, running)
}

func everythingIn(t *testing.T, running *lab.Lab, encap string) {
	t.Helper()
	if err := running.Reconfigure(t.Context(), func(s *lab.Settings) { s.Encap = encap }); err != nil {
		t.Fatal(err)
	}
	if err := running.FilterRouter(t.Context(), countTunnels()); err != nil {
		t.Fatal(err)
	}
	forwarders, agents := metrics(t, running), agentMetrics(t, running)
	for _, vip := range lab.EchoVIPs {
		c := converse(t, running, vip)
		// Full packets both ways: the largest that have to fit the fabric.
		if err := c.transfer(200_000, fileLimit); err != nil {
			t.Errorf("a file to %s: %v", vip, err)
		}
		_ = c.Close()
		for range 20 {
			if _, err := askDatagram(t, running, netip.Addr{}, vip, 1200); err != nil {
				t.Errorf("a datagram to %s: %v", vip, err)
			}
		}
	}
	onWire, err := running.RouterCounters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, inner := range []string{"4", "6"} {
		for _, outer := range []string{"4", "6"} {
			checkTunnelled(t, onWire, encap, inner, outer)
		}
	}
	sent := grew(t, forwarders, metrics(t, running), `guideway_frames_total{verdict="sent"}`)
	after := agentMetrics(t, running)
	for _, kind := range []string{"gre", "ipip", "gue", "geneve"} {
		opened := grew(t, agents, after, fmt.Sprintf("guideway_agent_decapsulated_packets_total{encap=%q}", kind))
		want := 0.0
		if kind == encap {
			want = sent
		}
		if opened != want {
			t.Errorf("forwarders sent %v packets, agents took %v out of %s", sent, opened, kind)
		}
	}
}

// countTunnels on their way to backends: by kind, and by both families as far
// as a packet filter sees them.
func countTunnels() string {
	return `
counter ipip_4_4 {}
counter ipip_6_4 {}
counter ipip_4_6 {}
counter ipip_6_6 {}
counter gre_4_4 {}
counter gre_6_4 {}
counter gre_4_6 {}
counter gre_6_6 {}
counter gue_4_4 {}
counter gue_6_4 {}
counter gue_4_6 {}
counter gue_6_6 {}
counter geneve_4_4 {}
counter geneve_6_4 {}
counter geneve_4_6 {}
counter geneve_6_6 {}
chain forward {
	type filter hook forward priority filter;
	ip protocol 4 counter name ipip_4_4
	ip protocol 41 counter name ipip_6_4
	ip6 nexthdr 4 counter name ipip_4_6
	ip6 nexthdr 41 counter name ipip_6_6
	ip protocol gre @th,16,16 0x0800 counter name gre_4_4
	ip protocol gre @th,16,16 0x86dd counter name gre_6_4
	ip6 nexthdr gre @th,16,16 0x0800 counter name gre_4_6
	ip6 nexthdr gre @th,16,16 0x86dd counter name gre_6_6
	meta nfproto ipv4 udp dport 6080 @th,72,8 4 counter name gue_4_4
	meta nfproto ipv4 udp dport 6080 @th,72,8 41 counter name gue_6_4
	meta nfproto ipv6 udp dport 6080 @th,72,8 4 counter name gue_4_6
	meta nfproto ipv6 udp dport 6080 @th,72,8 41 counter name gue_6_6
	meta nfproto ipv4 udp dport 6081 @th,80,16 0x0800 counter name geneve_4_4
	meta nfproto ipv4 udp dport 6081 @th,80,16 0x86dd counter name geneve_6_4
	meta nfproto ipv6 udp dport 6081 @th,80,16 0x0800 counter name geneve_4_6
	meta nfproto ipv6 udp dport 6081 @th,80,16 0x86dd counter name geneve_6_6
}`
}

// checkTunnelled: packets of these families were in that tunnel, and in no
// other.
func checkTunnelled(t *testing.T, onWire map[string]uint64, encap, inner, outer string) {
	t.Helper()
	for _, kind := range []string{"gre", "ipip", "gue", "geneve"} {
		count := onWire[kind+"_"+inner+"_"+outer]
		if (count >= 20) != (kind == encap) {
			t.Errorf("%d packets of IPv%s went in %s over IPv%s", count, inner, kind, outer)
		}
	}
}
