package scenarios_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/flood"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Two clusters: lb-1 with be-1 and be-2; lb-2 and lb-3 with be-3 and be-4.
func TestTwoClusters(t *testing.T) {
	o := options(t, "clusters")
	o.TwoClusters, o.LoadBalancers, o.Backends, o.Spares, o.Queues = true, 3, 4, 0, 1
	running := up(t, o)
	host, err := running.Network.AddHost(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	sources, err := running.Network.AddClientAddresses(t.Context(), 1, 8)
	if err != nil {
		t.Fatal(err)
	}
	checkServedBy(t, running, "be-1", "be-2")
	checkAtRest(t, running)
	t.Run("tunnels of untrusted senders are dropped", func(t *testing.T) {
		untrustedTunnelsAreDropped(t, running, host, "lb-2")
	})
	t.Run("a cluster without backends", func(t *testing.T) {
		t.Cleanup(func() { restore(t, running) })
		killBackends(t, running, "lb-1", 0, 1)
		t.Run("is served by the other", func(t *testing.T) { servedByTheOther(t, running) })
		t.Run("its fragments may be redirected there", func(t *testing.T) { spilledFragmentsArriveWhole(t, running, sources) })
		checkAtRest(t, running)
		for _, vip := range topology.EchoVIPs {
			t.Run("a trace shows the way over both to "+vip.String(), func(t *testing.T) {
				tracesCrossClusters(t, running, vip, sources)
			})
		}
		t.Run("and nothing is spilled twice", func(t *testing.T) {
			killBackends(t, running, "lb-2", 2, 3)
			killBackends(t, running, "lb-3")
			nothingIsSpilledTwice(t, running, host)
		})
	})
	checkServedBy(t, running, "be-1", "be-2")
	checkAccounted(t, running)
}

// Two clusters of two machines each: lb-1 and lb-2 with be-1 and be-2, lb-3 and
// lb-4 with be-3 and be-4. A fragment may come to any machine of either.
func TestTwoClustersOfTwoMachines(t *testing.T) {
	o := options(t, "clusters-of-two")
	o.TwoClusters, o.LoadBalancers, o.Backends, o.Spares, o.Queues = true, 4, 4, 0, 1
	running := up(t, o)
	sources, err := running.Network.AddClientAddresses(t.Context(), 1, 8)
	if err != nil {
		t.Fatal(err)
	}
	waitPeers(t, running)
	waitSpills(t, running, "lb-1", false)
	t.Cleanup(func() { restore(t, running) })
	killBackends(t, running, "lb-1", 0, 1)
	killBackends(t, running, "lb-2")
	t.Run("every fragment finds its way to the other cluster", func(t *testing.T) { redirectedFragmentsAreSpilled(t, running, sources) })
	checkAtRest(t, running)
	t.Run("a cluster that does not answer is told", func(t *testing.T) {
		for _, name := range []string{"lb-3", "lb-4"} {
			if _, err := running.KillLoadBalancer(name); err != nil {
				t.Fatal(err)
			}
		}
		waitSpills(t, running, "lb-1", true)
	})
	checkAccounted(t, running)
}

// redirectedFragmentsAreSpilled: of the first cluster's machines one is in
// charge of each client's fragments, and then one of the second's.
func redirectedFragmentsAreSpilled(t *testing.T, running *hosts.Lab, sources []netip.Addr) {
	t.Helper()
	before := map[string]map[string]float64{}
	for _, name := range running.LoadBalancers() {
		before[name] = metricsOf(t, running, name)
	}
	served := askFragmented(t, running, sources, 4)
	if served["be-3"]+served["be-4"] != len(sources)*4 {
		t.Errorf("served by %v", served)
	}
	redirected := map[bool]float64{}
	for _, name := range running.LoadBalancers() {
		after, first := metricsOf(t, running, name), name == "lb-1" || name == "lb-2"
		redirected[first] += grew(t, before[name], after, `guideway_fragments_total{action="redirected"}`)
		if dropped := grew(t, before[name], after, `guideway_drop_packets_total{reason="no_backend"}`); dropped != 0 {
			t.Errorf("%s dropped %v fragments for lack of a backend", name, dropped)
		}
	}
	if redirected[true] == 0 || redirected[false] == 0 {
		t.Errorf("fragments redirected in the first cluster: %v, in the second: %v", redirected[true], redirected[false])
	}
	t.Logf("served by %v; %v fragments redirected in the first cluster, %v in the second", served, redirected[true], redirected[false])
}

// waitSpills: the machine finds the other cluster, over both families, down or
// not.
func waitSpills(t *testing.T, running *hosts.Lab, machine string, down bool) {
	t.Helper()
	answers := "answers through the tunnel"
	eventually(t, fileLimit, fmt.Sprintf("%s finds the other cluster down: %v", machine, down), func() error {
		plan, err := running.Plan(t.Context(), machine)
		if err != nil {
			return err
		}
		for _, service := range plan.GetServices() {
			for _, spill := range service.GetSpill() {
				if spill.GetDown() != down {
					return fmt.Errorf("%s spills to %s, which is down: %v", service.GetName(), spill.GetPrefix(), spill.GetDown())
				}
			}
		}
		shown, err := on(t, running, machine, "show", "peers")
		if err != nil {
			return err
		}
		if known := strings.Count(shown, answers); known != map[bool]int{false: 4, true: 2}[down] {
			return fmt.Errorf("%s says\n%s", machine, shown)
		}
		return nil
	})
}

// killBackends by number, and wait until the machine has none left.
func killBackends(t *testing.T, running *hosts.Lab, machine string, indices ...int) {
	t.Helper()
	for _, index := range indices {
		if err := running.KillBackend(t.Context(), index); err != nil {
			t.Fatal(err)
		}
	}
	plan, err := running.Plan(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range plan.GetServices() {
		for _, member := range plan.Members()[service.GetGroup()] {
			waitState(t, running, machine, service.GetName(), member.GetBackend(), planv1.BackendState_BACKEND_STATE_DOWN)
		}
	}
}

// checkServedBy exactly these backends, over both families.
func checkServedBy(t *testing.T, running *hosts.Lab, want ...string) {
	t.Helper()
	for _, vip := range topology.WebVIPs {
		served := map[string]int{}
		for range 30 {
			backend, err := get(t, running, vip)
			if err != nil {
				t.Fatalf("http://%s: %v", vip, err)
			}
			served[backend]++
		}
		if len(served) != 2 || served[want[0]] == 0 || served[want[1]] == 0 {
			t.Errorf("http://%s was served by %v, not by %v", vip, served, want)
		}
	}
}

func servedByTheOther(t *testing.T, running *hosts.Lab) {
	t.Helper()
	before, others := metricsOf(t, running, "lb-1"), metrics(t, running)
	checkServedBy(t, running, "be-3", "be-4")
	for _, vip := range topology.EchoVIPs {
		c := converse(t, running, vip)
		if err := c.transfer(200_000, fileLimit); err != nil {
			t.Errorf("a file to %s by %s: %v", vip, c.backend, err)
		}
	}
	// The last packets are on their way still, or between two counters.
	eventually(t, fileLimit, "the others send on what lb-1 spilled", func() error {
		after := metricsOf(t, running, "lb-1")
		spilled := grew(t, before, after, "guideway_spilled_packets_total")
		sent := grew(t, others, metrics(t, running), `guideway_frames_total{verdict="sent"}`)
		if own := grew(t, before, after, `guideway_frames_total{verdict="sent"}`); spilled < 60*4 || sent != spilled || own != 0 {
			return fmt.Errorf("lb-1 spilled %v packets and sent %v to backends, the others %v", spilled, own, sent)
		}
		return nil
	})
}

func spilledFragmentsArriveWhole(t *testing.T, running *hosts.Lab, sources []netip.Addr) {
	t.Helper()
	waitPeers(t, running)
	before, first := metrics(t, running), metricsOf(t, running, "lb-1")
	served := askFragmented(t, running, sources, 4)
	after := metrics(t, running)
	if served["be-3"]+served["be-4"] != len(sources)*4 {
		t.Errorf("served by %v", served)
	}
	if spilled := grew(t, first, metricsOf(t, running, "lb-1"), "guideway_spilled_packets_total"); spilled < float64(len(sources)*4*6) {
		t.Errorf("%v fragments were spilled", spilled)
	}
	// Sixteen clients, each of which has its machine in charge by hash.
	redirected := grew(t, before, after, `guideway_fragments_total{action="redirected"}`)
	if redirected == 0 {
		t.Error("no spilled fragment was redirected")
	}
	t.Logf("served by %v, %v fragments redirected", served, redirected)
}

// tracesCrossClusters: packets by lb-1 and one of the others; a fragment by
// the machine in charge of it, too.
func tracesCrossClusters(t *testing.T, running *hosts.Lab, vip netip.Addr, sources []netip.Addr) {
	t.Helper()
	for _, packet := range traceVIP(t, running, vip, "--count", "8", "--port", fmt.Sprint(topology.EchoPort)).Packets {
		hops := packet.Hops
		if len(hops) != 2 || hops[0].Machine != "lb-1" || hops[0].Verdict != "redirected" || hops[1].Machine == "lb-1" ||
			hops[1].Verdict != "sent" || hops[1].Budget != 2 {
			t.Errorf("a packet's way: %s", pathOf(packet))
		}
	}
	ways := map[string]int{}
	for _, source := range sources {
		if source.Is4() != vip.Is4() {
			continue
		}
		result := traceVIP(t, running, vip, "--fragment", "--protocol", "udp", "--port", fmt.Sprint(topology.EchoPort), "--src", source.String())
		ways[pathOf(result.Packets[0])]++
	}
	const spilled = "lb-1 slow, lb-1 redirected, "
	for found := range ways {
		switch strings.TrimPrefix(found, spilled) {
		case "lb-2 slow, lb-2 sent", "lb-3 slow, lb-3 sent",
			"lb-2 redirected, lb-3 slow, lb-3 sent", "lb-3 redirected, lb-2 slow, lb-2 sent":
		default:
			t.Errorf("a fragment's way: %s", found)
		}
	}
	t.Logf("fragments' ways: %v", ways)
}

const spilledTwice = 40

// nothingIsSpilledTwice: both clusters have no backend, and each names the
// other.
func nothingIsSpilledTwice(t *testing.T, running *hosts.Lab, host *topology.Host) {
	t.Helper()
	const noBackend = `guideway_drop_packets_total{reason="no_backend"}`
	spilled := func() map[string]map[string]float64 {
		all := map[string]map[string]float64{}
		for _, name := range running.LoadBalancers() {
			all[name] = metricsOf(t, running, name)
		}
		return all
	}
	for family, vip := range topology.WebVIPs {
		before := spilled()
		sendAs(t, host, spilledTwice, func(i int) []byte {
			return flood.Packet(flood.SYN, netip.AddrPortFrom(host.Addresses()[family], uint16(20_000+i)), netip.AddrPortFrom(vip, topology.HTTPPort))
		})
		eventually(t, fileLimit, "the other cluster drops them", func() error {
			after, dropped := spilled(), 0.0
			for _, name := range running.LoadBalancers() {
				grown := func(sample string) float64 { return grew(t, before[name], after[name], sample) }
				want := 0.0
				if name == "lb-1" {
					want = spilledTwice
				} else {
					dropped += grown(noBackend)
				}
				if got := grown("guideway_spilled_packets_total"); got != want {
					return fmt.Errorf("%s spilled %v, not %v", name, got, want)
				}
			}
			if dropped != spilledTwice {
				return fmt.Errorf("%v of %d were dropped for lack of a backend", dropped, spilledTwice)
			}
			return nil
		})
	}
}

// sendAs the host `count` packets, no faster than two cores can forward.
func sendAs(t *testing.T, host *topology.Host, count int, packet func(i int) []byte) {
	t.Helper()
	err := topology.Inside(host.Namespace(), func() error {
		socket, err := flood.Open()
		if err != nil {
			return err
		}
		defer socket.Close()
		for i := range count {
			if err := socket.Send(packet(i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// untrustedTunnelsAreDropped: a host that is neither peer nor encapsulator tunnels
// packets to a machine's own addresses, and to a VIP.
func untrustedTunnelsAreDropped(t *testing.T, running *hosts.Lab, host *topology.Host, machine string) {
	t.Helper()
	const each = 25
	own, err := running.Network.Addresses(machine)
	if err != nil {
		t.Fatal(err)
	}
	for family, outer := range host.Addresses() {
		// To a VIP, GRE of others is a client's packet, which no service has.
		reasons := map[netip.Addr]string{own[family]: "untrusted_tunnel_source", topology.WebVIPs[family]: "no_service"}
		for to, reason := range reasons {
			before := metrics(t, running)
			sendAs(t, host, each, func(i int) []byte {
				inner := flood.Packet(flood.SYN, netip.AddrPortFrom(host.Addresses()[i%2], uint16(30_000+i)), netip.AddrPortFrom(topology.WebVIPs[i%2], topology.HTTPPort))
				return flood.GRE(outer, to, uint8(i%3), inner)
			})
			eventually(t, fileLimit, fmt.Sprintf("%d tunnelled packets to %s are dropped", each, to), func() error {
				after := metrics(t, running)
				if dropped := grew(t, before, after, fmt.Sprintf("guideway_drop_packets_total{reason=%q}", reason)); dropped != each {
					return fmt.Errorf("%v were", dropped)
				}
				if sent := grew(t, before, after, `guideway_frames_total{verdict="sent"}`); sent != 0 {
					return fmt.Errorf("%v were sent on", sent)
				}
				return nil
			})
		}
	}
}
