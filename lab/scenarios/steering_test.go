package scenarios_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/flood"
)

const steeredWorkers = 3

// One thread that steers for three workers, and what it is for: traffic that
// arrives in one tunnel, and floods of one five-tuple.
func TestSoftwareSteering(t *testing.T) {
	o := optionsAlone(t, "steering")
	o.LoadBalancers, o.Spares, o.Steering, o.Workers = 1, 0, "software", steeredWorkers
	// Host 1 is an encapsulator, host 2 is not.
	o.Encapsulators = []string{"10.40.1.1/32", "2001:db8:40:1::1/128"}
	running := up(t, o)
	var hosts []*topology.Host
	for number := 1; number <= 2; number++ {
		host, err := running.Network.AddHost(t.Context(), number)
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, host)
	}
	for family, name := range []string{"IPv4", "IPv6"} {
		t.Run("an encapsulator in front, by "+name, func(t *testing.T) {
			encapsulatorInFront(t, running, hosts[0], family)
		})
	}
	t.Run("tunnels of untrusted senders are dropped", func(t *testing.T) {
		untrustedTunnelsAreDropped(t, running, hosts[1], "lb-1")
	})
	t.Run("a flood of one five-tuple goes round the workers", func(t *testing.T) {
		floodGoesRound(t, running, hosts[1])
	})
	t.Run("a hanging thread withdraws the routes", func(t *testing.T) {
		aHangingThreadWithdrawsTheRoutes(t, running, "lb-1", "slow-path", "steering", "worker-0")
	})
	checkAtRest(t, running)
}

// encapsulatorInFront: all clients' packets come in one tunnel, of that outer
// family, and are spread by what is in it.
func encapsulatorInFront(t *testing.T, running *hosts.Lab, host *topology.Host, family int) {
	t.Helper()
	own, err := running.Network.Addresses("lb-1")
	if err != nil {
		t.Fatal(err)
	}
	encapsulator, err := running.Encapsulate(t.Context(), host, host.Addresses()[family], own[family])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := encapsulator.Stop(); err != nil {
			t.Error(err)
		}
	})
	block := 7 + family
	sources := routeThrough(t, running, host, block)

	received := metricsOf(t, running, "lb-1")
	workers := map[uint32]int{}
	for _, source := range sources {
		c := converseFrom(t, running, source, vipFor(source))
		if err := c.transfer(100_000, fileLimit); err != nil {
			t.Errorf("a file from %s by %s: %v", source, c.backend, err)
		}
		entries, err := running.Tracked(t.Context(), "lb-1", tcp, c.client(), c.server())
		if err != nil || len(entries) != 1 {
			t.Errorf("the connection from %s is tracked at %v (%v)", source, entries, err)
			continue
		}
		workers[entries[0].GetWorker()]++
	}
	// 32 flows, three workers: one has none once in 140,000 runs.
	if len(workers) != steeredWorkers {
		t.Errorf("connections are at workers %v", workers)
	}
	eventually(t, 5*time.Second, "each packet of the encapsulator is sent on", func() error {
		sent := grew(t, received, metricsOf(t, running, "lb-1"), `guideway_frames_total{verdict="sent"}`)
		if wrapped := encapsulator.Sent(); wrapped < 32*70 || sent != float64(wrapped) {
			return fmt.Errorf("the encapsulator sent %d packets, the load balancer %v", wrapped, sent)
		}
		return nil
	})
}

func vipFor(source netip.Addr) netip.Addr {
	if source.Is4() {
		return topology.EchoVIPs[0]
	}
	return topology.EchoVIPs[1]
}

// routeThrough the host what a block of client addresses sends to VIPs.
func routeThrough(t *testing.T, running *hosts.Lab, host *topology.Host, block int) []netip.Addr {
	t.Helper()
	sources, err := running.Network.AddClientAddresses(t.Context(), block, 16)
	if err != nil {
		t.Fatal(err)
	}
	mark, err := running.Network.RouteToHost(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Network.FilterRouter(t.Context(), fmt.Sprintf(`chain prerouting {
	type filter hook prerouting priority mangle;
	ip saddr 10.10.%[1]d.0/24 ip daddr %[2]s meta mark set %[4]d;
	ip6 saddr 2001:db8:10::%[1]x:0/112 ip6 daddr %[3]s meta mark set %[4]d;
}`, block, topology.VIPPrefix4, topology.VIPPrefix6, mark)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := running.Network.FilterRouter(cleanUp(t), ""); err != nil {
			t.Error(err)
		}
	})
	return sources
}

// floodGoesRound: where the flow's worker is full the others help, and
// remember nothing of it.
func floodGoesRound(t *testing.T, running *hosts.Lab, host *topology.Host) {
	t.Helper()
	c := converse(t, running, topology.EchoVIPs[0])
	source := netip.AddrPortFrom(host.Addresses()[0], 4242)
	packet := flood.Packet(flood.ACK, source, netip.AddrPortFrom(topology.WebVIPs[0], topology.HTTPPort))
	before := metricsOf(t, running, "lb-1")
	var after map[string]float64
	eventually(t, 30*time.Second, "packets of one flow go to other workers", func() error {
		sendAs(t, host, 50_000, func(int) []byte { return packet })
		after = metricsOf(t, running, "lb-1")
		if misdirected := grew(t, before, after, "guideway_misdirected_packets_total"); misdirected < 100 {
			return fmt.Errorf("%v did", misdirected)
		}
		return nil
	})
	t.Logf("%v misdirected, %v dropped where all were full", grew(t, before, after, "guideway_misdirected_packets_total"),
		grew(t, before, after, `guideway_drop_packets_total{reason="worker_full"}`))
	entries, err := running.Tracked(t.Context(), "lb-1", tcp, source, netip.AddrPortFrom(topology.WebVIPs[0], topology.HTTPPort))
	if err != nil || len(entries) != 1 {
		t.Errorf("the flow is remembered by %v (%v)", entries, err)
	}
	if err := c.transfer(100_000, fileLimit); err != nil {
		t.Errorf("another connection, after the flood: %v", err)
	}
}
