package scenarios_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// Every encapsulation, from forwarder to agent. TCP goes in tunnels of IPv4,
// UDP in tunnels of IPv6, and each VIP has an address of either family: so all
// four combinations of inner and outer are there.
func TestEncapsulations(t *testing.T) {
	needLab(t)
	for _, name := range []string{"tcpdump", "tshark"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("captures need %s: tools/install-deps.sh lab installs it", name)
		}
	}
	running := up(t, options(t, "encap"))
	files, stop := record(t, running, "-Q", "out")
	done := map[string]bool{}
	for _, encap := range encaps {
		t.Run(encap, func(t *testing.T) {
			everythingIn(t, running, encap)
			done[encap] = true
		})
	}
	stop()
	checkDecodes(t, files, done)
	checkAtRest(t, running)
}

var encaps = []string{"gre", "ipip", "gue", "geneve"}

func everythingIn(t *testing.T, running *hosts.Lab, encap string) {
	t.Helper()
	if err := running.Reconfigure(t.Context(), func(s *topology.Settings) { s.Encap = encap }); err != nil {
		t.Fatal(err)
	}
	waitQuiet(t, running) // the last connection's end went in other tunnels
	if err := running.Network.FilterRouter(t.Context(), countTunnels(t, running)); err != nil {
		t.Fatal(err)
	}
	forwarders, agents := metrics(t, running), agentMetrics(t, running)
	for _, vip := range topology.EchoVIPs {
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
	waitQuiet(t, running)
	onWire, err := running.Network.RouterCounters(t.Context())
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
	for _, kind := range encaps {
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
// as a packet filter sees them. Those between load balancers are probes.
func countTunnels(t *testing.T, running *hosts.Lab) string {
	t.Helper()
	var probes strings.Builder
	for _, name := range running.LoadBalancers() {
		addresses, err := running.Network.Addresses(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&probes, "\tip daddr %s return\n\tip6 daddr %s return\n", addresses[0], addresses[1])
	}
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
` + probes.String() + `
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
	for _, kind := range encaps {
		count := onWire[kind+"_"+inner+"_"+outer]
		if (count >= 20) != (kind == encap) {
			t.Errorf("%d packets of IPv%s went in %s over IPv%s", count, inner, kind, outer)
		}
	}
}

// record at the router what passes on the way to the backends, until the returned function is
// called; by tcpdump with these arguments, too. A file for each backend, in their order; with
// a ring of them these are the beginnings of their names. What passes after it returned is
// recorded.
func record(t *testing.T, running *hosts.Lab, args ...string) (files []string, stop func()) {
	t.Helper()
	directory := t.TempDir()
	var recorders []*exec.Cmd
	for _, backend := range running.Backends() {
		file := filepath.Join(directory, backend+".pcap")
		recorder := exec.Command("ip", append([]string{"netns", "exec", running.Network.Router, "tcpdump", "-i", backend, "-Z", "root", "-U", "-w", file}, args...)...)
		if err := recorder.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = recorder.Process.Kill() }) // of one that was ended: nothing to do
		files, recorders = append(files, file), append(recorders, recorder)
	}
	for _, file := range files {
		// It makes the file once its socket is open.
		eventually(t, 10*time.Second, "tcpdump listens", func() error {
			if found, _ := filepath.Glob(file + "*"); len(found) > 0 {
				return nil
			}
			return fmt.Errorf("no file %s", file)
		})
	}
	return files, func() {
		for _, recorder := range recorders {
			if err := errors.Join(recorder.Process.Signal(os.Interrupt), recorder.Wait()); err != nil {
				t.Errorf("tcpdump: %v", err)
			}
		}
	}
}

// checkDecodes: tshark, which shares no code with us, finds every tunnel that
// there was, and no fault in any packet in one.
func checkDecodes(t *testing.T, files []string, done map[string]bool) {
	t.Helper()
	found := map[string]int{}
	for _, file := range files {
		for _, packet := range tshark(t, file) {
			if packet.encap == "" {
				continue
			}
			found[packet.encap]++
			// What a client says of data that it got twice, on a busy machine, is
			// no fault of the packet that says so.
			if packet.severity >= severityWarning && strings.TrimSpace(packet.complaint) != "D-SACK Sequence" {
				t.Errorf("%s: frame %s, %s: %s", filepath.Base(file), packet.number, packet.protocols, packet.complaint)
			}
		}
	}
	for encap := range done {
		if found[encap] < 80 {
			t.Errorf("tshark finds %d packets in %s", found[encap], encap)
		}
	}
	if len(done) == 0 {
		t.Error("nothing was sent in any tunnel")
	}
}

// decoded packet, by tshark.
type decoded struct {
	number, protocols, complaint string
	// encap is empty for a packet that is in no tunnel.
	encap    string
	severity int
}

// severityWarning as tshark numbers them; errors are higher.
const severityWarning = 0x600000

// kernelsZero is a complaint about a client's checksum, of one packet in 65,536: Linux writes a
// sum of zero as 0xffff, which is the same number (skb_checksum_help), for TCP as for UDP.
const kernelsZero = "TCP Checksum 0xffff instead of 0x0000 (see RFC 1624)"

// inTunnel: how tshark writes the layers of each kind.
var inTunnel = []struct{ encap, layers string }{
	{"gre", ":gre:"}, {"gue", ":gue:"}, {"geneve", ":geneve:"}, {"ipip", ":ip:ip:"}, {"ipip", ":ip:ipv6:"}, {"ipip", ":ipv6:ip:"}, {"ipip", ":ipv6:ipv6:"},
}

// tshark decodes a capture; the dissector for GUE is the golden packets'.
func tshark(t *testing.T, file string) []decoded {
	t.Helper()
	// From 4.4 on it loads no script for root, as whom a user namespace does not count.
	command := exec.CommandContext(t.Context(), "unshare", "--user", "tshark", "-n", "-r", file,
		"-X", "lua_script:../../forwarder/tests/golden/gue.lua",
		"-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-o", "udp.ignore_ipv6_zero_checksum:TRUE",
		// Else it takes random bytes on that port for something that they are not.
		"-d", fmt.Sprintf("tcp.port==%d,echo", topology.EchoPort), "-d", fmt.Sprintf("udp.port==%d,echo", topology.EchoPort),
		// Only one direction is there.
		"-o", "tcp.analyze_sequence_numbers:FALSE",
		"-T", "fields", "-e", "frame.number", "-e", "frame.protocols", "-e", "_ws.expert.severity", "-e", "_ws.expert.message", "-e", "frame.comment")
	var errs bytes.Buffer
	command.Stderr = &errs
	out, err := command.Output()
	if err != nil {
		t.Fatalf("tshark %s: %v: %s", file, err, errs.String())
	}
	var packets []decoded
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimRight(line, "\n"), "\t")
		packet := decoded{number: fields[0], protocols: fields[1], complaint: strings.Join(fields[3:], " ")}
		for _, kind := range inTunnel {
			if packet.encap == "" && strings.Contains(packet.protocols, kind.layers) {
				packet.encap = kind.encap
			}
		}
		for _, severity := range strings.Split(fields[2], ",") {
			value, _ := strconv.Atoi(severity) // none: zero
			packet.severity = max(packet.severity, value)
		}
		if fields[3] == kernelsZero {
			packet.severity = 0
		}
		packets = append(packets, packet)
	}
	return packets
}
