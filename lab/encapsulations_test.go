package lab_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab"
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
	wire := record(t, running)
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
	checkDecodes(t, wire(), encap)
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

// record what leaves for the backends, until the returned function is called,
// which gives the captures' files.
func record(t *testing.T, running *lab.Lab) (stop func() []string) {
	t.Helper()
	directory := t.TempDir()
	var files []string
	var recorders []*exec.Cmd
	for _, backend := range running.Backends() {
		file := filepath.Join(directory, backend+".pcap")
		recorder := exec.Command("ip", "netns", "exec", running.RouterNamespace(), "tcpdump", "-i", backend, "-Q", "out", "-U", "-w", file)
		if err := recorder.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = recorder.Process.Kill() }) // of one that was ended: nothing to do
		files, recorders = append(files, file), append(recorders, recorder)
	}
	for _, file := range files {
		eventually(t, 10*time.Second, "tcpdump listens", func() error {
			_, err := os.Stat(file)
			return err
		})
	}
	return func() []string {
		t.Helper()
		for _, recorder := range recorders {
			if err := errors.Join(recorder.Process.Signal(os.Interrupt), recorder.Wait()); err != nil {
				t.Errorf("tcpdump: %v", err)
			}
		}
		return files
	}
}

// checkDecodes: tshark, which shares no code with us, finds the tunnels, and
// no fault in any packet on the wire.
func checkDecodes(t *testing.T, files []string, encap string) {
	t.Helper()
	// What each is called there; the dissector for GUE is the golden packets'.
	tunnel := map[string]string{"gre": "gre", "ipip": "ip.proto == 4 || ip.proto == 41 || ipv6.nxt == 4 || ipv6.nxt == 41", "gue": "gue", "geneve": "geneve"}[encap]
	tunnelled := 0
	for _, file := range files {
		tunnelled += len(tshark(t, file, fmt.Sprintf("(%s) && (tcp.port == %[2]d || udp.port == %[2]d)", tunnel, lab.EchoPort)))
		// As tshark numbers severities: warnings and errors.
		for _, complaint := range tshark(t, file, fmt.Sprintf("(%s) && (_ws.malformed || _ws.expert.severity >= 0x600000)", tunnel)) {
			t.Errorf("%s: %s", filepath.Base(file), complaint)
		}
	}
	if tunnelled < 80 {
		t.Errorf("tshark finds %d packets in %s", tunnelled, encap)
	}
}

// tshark lists the packets of a capture that a filter finds.
func tshark(t *testing.T, file, filter string) []string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "tshark", "-n", "-r", file, "-Y", filter,
		"-X", "lua_script:../forwarder/tests/golden/gue.lua",
		"-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-o", "udp.ignore_ipv6_zero_checksum:TRUE",
		// Else it takes random bytes on that port for something that they are not.
		"-d", fmt.Sprintf("tcp.port==%d,echo", lab.EchoPort), "-d", fmt.Sprintf("udp.port==%d,echo", lab.EchoPort),
		// Only one direction is there.
		"-o", "tcp.analyze_sequence_numbers:FALSE",
		"-T", "fields", "-e", "frame.number", "-e", "frame.protocols", "-e", "_ws.expert.message")
	var errs bytes.Buffer
	command.Stderr = &errs
	out, err := command.Output()
	if err != nil {
		t.Fatalf("tshark %s: %v: %s", file, err, errs.String())
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}
