package scenarios_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/tracer"
	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// traceVIP runs `guideway trace` where the clients are.
func traceVIP(t *testing.T, running *hosts.Lab, vip netip.Addr, args ...string) tracer.Result {
	t.Helper()
	args = append([]string{"trace", "--vip", vip.String(), "--secret-file", running.SecretFile(), "-o", "json"}, args...)
	out, err := guideway(t, running, running.Network.Client.Namespace, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var result tracer.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if len(result.Packets) == 0 || result.Answered() != len(result.Packets) || result.Strange != 0 {
		t.Fatalf("%d of %d packets were reported on, %d strange datagrams: %s", result.Answered(), len(result.Packets), result.Strange, out)
	}
	return result
}

// pathOf a traced packet: machine and verdict of each hop.
func pathOf(packet tracer.Traced) string {
	var hops []string
	for _, hop := range packet.Hops {
		hops = append(hops, hop.Machine+" "+hop.Verdict)
	}
	return strings.Join(hops, ", ")
}

// marksShowTheWay of packets over both machines.
func marksShowTheWay(t *testing.T, running *hosts.Lab, vip netip.Addr) {
	t.Helper()
	before := metrics(t, running)
	result := traceVIP(t, running, vip, "--count", "24")
	machines := map[string]int{}
	for _, packet := range result.Packets {
		if len(packet.Hops) != 1 || packet.Hops[0].Verdict != "sent" || !strings.HasPrefix(packet.Hops[0].Backend, "be-") || packet.Hops[0].Slot == nil {
			t.Errorf("the packet's way: %+v", packet.Hops)
			continue
		}
		machines[packet.Hops[0].Machine]++
	}
	// All 24 at one of two machines: once in 2^23 runs.
	if len(machines) != len(running.Running()) {
		t.Errorf("machines reported %v", machines)
	}
	after := metrics(t, running)
	if reports := grew(t, before, after, `guideway_originated_packets_total{kind="report"}`); reports != 24 {
		t.Errorf("%v reports", reports)
	}
	if inserted := grew(t, before, after, "guideway_connections_inserts_total"); inserted != 0 {
		t.Errorf("%v connections came of marked packets", inserted)
	}
}

// fragmentsShowTheirWay: to the machine in charge, and on its slow path.
func fragmentsShowTheirWay(t *testing.T, running *hosts.Lab, vip netip.Addr, sources []netip.Addr) {
	t.Helper()
	waitPeers(t, running)
	own, handed := 0, 0
	for _, source := range sources {
		if source.Is4() != vip.Is4() {
			continue
		}
		result := traceVIP(t, running, vip, "--fragment", "--protocol", "udp", "--port", fmt.Sprint(topology.EchoPort),
			"--src", source.String(), "--count", "3")
		for _, packet := range result.Packets {
			switch hops := packet.Hops; {
			case len(hops) == 2 && hops[0].Machine == hops[1].Machine && hops[0].Verdict == "slow" && hops[1].Verdict == "sent":
				own++
			case len(hops) == 3 && hops[0].Machine != hops[1].Machine && hops[0].Verdict == "redirected" &&
				hops[1].Machine == hops[2].Machine && hops[1].Verdict == "slow" && hops[2].Verdict == "sent" && hops[2].Budget == 3:
				handed++
			default:
				t.Errorf("a fragment's way from %s: %s", source, pathOf(packet))
			}
		}
	}
	if own == 0 || handed == 0 {
		t.Errorf("%d first fragments were at the machine in charge, %d came to it", own, handed)
	}
}

// floodOfMarksGetsFewReports: a worker makes 100 a second, by any key.
func floodOfMarksGetsFewReports(t *testing.T, running *hosts.Lab, vip netip.Addr) {
	t.Helper()
	const count, perSecond = 1_000, 100
	m := marks{running: running, vip: vip, key: clusterKey(t, running)}
	var packets [][]byte
	for i := range count {
		packets = append(packets, m.packet(uint64(time.Now().UnixNano())<<16|uint64(i), time.Now()))
	}
	before, begun := metrics(t, running), time.Now()
	m.send(t, packets...)
	reports := reportsSince(t, running, before, count)
	// One flow, so one worker; a second that has begun counts.
	most := perSecond * (2 + time.Since(begun).Seconds())
	// Some of this second's may be spent already.
	if reports < perSecond/2 || reports > most {
		t.Errorf("%v reports on %d marks, of at most %.0f", reports, count, most)
	}
}

// worthlessMarksGetNothing: forged, stale and replayed ones.
func worthlessMarksGetNothing(t *testing.T, running *hosts.Lab, vip netip.Addr) {
	t.Helper()
	t.Run("forged", func(t *testing.T) {
		forged := filepath.Join(t.TempDir(), "other.key")
		if err := os.WriteFile(forged, []byte("this is some other cluster's secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		before := metrics(t, running)
		out, err := guideway(t, running, running.Network.Client.Namespace, "trace", "--vip", vip.String(), "--secret-file", forged, "--count", "4", "--timeout", "500ms")
		if err == nil || !strings.Contains(err.Error(), "another secret") {
			t.Errorf("%s, %v", out, err)
		}
		noReports(t, running, before, 4)
	})
	m := marks{running: running, vip: vip, key: clusterKey(t, running)}
	t.Run("stale", func(t *testing.T) {
		before := metrics(t, running)
		m.send(t, m.packet(1, time.Now().Add(-time.Minute)), m.packet(2, time.Now().Add(time.Minute)))
		noReports(t, running, before, 2)
	})
	t.Run("replayed", func(t *testing.T) {
		before := metrics(t, running)
		packet := m.packet(uint64(time.Now().UnixNano()), time.Now())
		m.send(t, packet)
		if reports := reportsSince(t, running, before, 1); reports != 1 {
			t.Fatalf("%v reports on the mark itself", reports)
		}
		before = metrics(t, running)
		m.send(t, packet, packet, packet)
		noReports(t, running, before, 3)
	})
}

func clusterKey(t *testing.T, running *hosts.Lab) tracer.Key {
	t.Helper()
	secret, err := os.ReadFile(running.SecretFile())
	if err != nil {
		t.Fatal(err)
	}
	key, err := tracer.NewKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// marks made by hand.
type marks struct {
	running *hosts.Lab
	vip     netip.Addr
	key     tracer.Key
}

func (m marks) packet(nonce uint64, at time.Time) []byte {
	source := netip.MustParseAddr("10.10.0.1")
	if m.vip.Is6() {
		source = netip.MustParseAddr("2001:db8:10::1")
	}
	flow := tracer.Flow{Protocol: tracer.TCP, Source: netip.AddrPortFrom(source, 40_000), Destination: netip.AddrPortFrom(m.vip, topology.HTTPPort)}
	mark := tracer.Mark{Receiver: netip.AddrPortFrom(source, 9), Nonce: nonce, Time: at}
	return tracer.Packet{Flow: flow, ID: 7, Mark: m.key.Sign(mark, flow)}.Bytes()[0]
}

func (m marks) send(t *testing.T, packets ...[]byte) {
	t.Helper()
	err := topology.Inside(m.running.Network.Client.Namespace, func() error {
		link, err := tracer.Open(m.vip, netip.AddrPortFrom(m.vip, 0))
		if err != nil {
			return err
		}
		defer link.Close()
		for _, packet := range packets {
			if err := link.Send(packet); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// reportsSince then, once `packets` more have been sent to backends.
func reportsSince(t *testing.T, running *hosts.Lab, before map[string]float64, packets float64) float64 {
	t.Helper()
	var after map[string]float64
	eventually(t, 5*time.Second, "marked packets are forwarded", func() error {
		after = metrics(t, running)
		if sent := grew(t, before, after, `guideway_frames_total{verdict="sent"}`); sent < packets {
			return fmt.Errorf("%v of %v", sent, packets)
		}
		return nil
	})
	return grew(t, before, after, `guideway_originated_packets_total{kind="report"}`)
}

// noReports, though the packets were forwarded like all others.
func noReports(t *testing.T, running *hosts.Lab, before map[string]float64, packets float64) {
	t.Helper()
	if reports := reportsSince(t, running, before, packets); reports != 0 {
		t.Errorf("%v reports on worthless marks", reports)
	}
}
