package config

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// The rules that are printed, loaded by nft between a client and a server whose VIP they name:
// the client sends segments that fit the tunnel.
func TestPrintedRulesLowerTheSegmentsThatClientsSend(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: loads nftables rules in a namespace")
	}
	script, _, err := guideway(t, "config", "backend", "web-1", configFileOf(t, `
machine: {addresses: [10.0.0.1]}
services: [{name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}, {address: "2001:db8::10", ports: [80], protocol: tcp}], pools: [web]}]
pools: [{name: web, backends: [{name: web-1, address: 10.1.0.11}]}]
`), "--plain")
	if err != nil {
		t.Fatal(err)
	}
	_, rules, _ := strings.Cut(script, "nft -f - <<'END'\n")
	rules, _, found := strings.Cut(rules, "\nEND\n")
	if !found {
		t.Fatalf("no rules in\n%s", script)
	}
	client, server := newPair(t)
	in(t, server, rules, "nft", "-f", "-")
	in(t, server, rules, "nft", "-f", "-") // again
	listen(t, server)
	// Timestamps take 12 bytes of what is left of 1500 by 24 of the tunnel, the IP header, and TCP's.
	for vip, want := range map[string]string{"203.0.113.10": " mss:1424 ", "[2001:db8::10]": " mss:1404 "} {
		connection := exec.CommandContext(t.Context(), "ip", "netns", "exec", client, "socat", "-u", "TCP:"+vip+":80", "-")
		if err := connection.Start(); err != nil {
			t.Fatal(err)
		}
		shown := ""
		for deadline := time.Now().Add(10 * time.Second); !strings.Contains(shown, want); {
			if time.Now().After(deadline) {
				t.Errorf("a connection to %s has\n%s\nwant%s", vip, shown, want)
				break
			}
			time.Sleep(20 * time.Millisecond)
			shown = in(t, client, "", "ss", "-tinH", "dst", vip)
		}
		_ = connection.Process.Kill()
		_ = connection.Wait()
	}
}

// A server without a tunnel needs neither the end of one nor an agent: its VIPs, after the sysctls
// that keep it from answering ARP for them.
func TestABackendWithoutTunnelsGetsItsVIPsAndNoMore(t *testing.T) {
	file := configFileOf(t, `
machine: {addresses: [10.0.0.1]}
services:
- {name: web, vips: [{address: 203.0.113.10}], pools: [web], encap: l2}
- {name: two, vips: [{address: 203.0.113.20}], pools: [two], encap: l2}
- {name: gre, vips: [{address: 203.0.113.21}], pools: [two]}
pools:
- {name: web, backends: [{name: web-1, address: 10.0.0.11}]}
- {name: two, backends: [{name: two-1, address: 10.0.0.12}]}
`)
	script, _, err := guideway(t, "config", "backend", "web-1", file)
	_, commands, _ := strings.Cut(script, "set -e\n")
	want := `
# The VIPs, for no ARP to answer and no other packet to leave from.
sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
ip address replace 203.0.113.10/32 dev lo

# Clients' packets come as they are (encap: l2): there is no tunnel to open.
# End.
`
	if err != nil || commands != want {
		t.Errorf("%v\n%s\nwant\n%s", err, commands, want)
	}
	script, _, err = guideway(t, "config", "backend", "two-1", file)
	if err != nil || !strings.Contains(script, "guideway-agent --check") {
		t.Errorf("one of whose services has a tunnel: %v\n%s", err, script)
	}
	script, _, err = guideway(t, "config", "backend", "two-1", file, "--plain")
	if err != nil || !strings.Contains(script, "type gre ") || strings.Contains(script, "type ipip") {
		t.Errorf("the same without an agent: %v\n%s", err, script)
	}
}

// newPair of namespaces, the server's with VIPs.
func newPair(t *testing.T) (client, server string) {
	t.Helper()
	client, server = fmt.Sprintf("gw-test-plain-%d.client", os.Getpid()), fmt.Sprintf("gw-test-plain-%d.server", os.Getpid())
	for _, name := range []string{client, server} {
		run(t, "ip", "netns", "add", name)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	}
	run(t, "ip", "link", "add", "eth0", "netns", client, "type", "veth", "peer", "name", "eth0", "netns", server)
	for name, commands := range map[string][]string{
		client: {"address add 192.0.2.1/24 dev eth0", "address add 2001:db8:1::1/64 dev eth0 nodad", "link set eth0 up", "route add 203.0.113.10 via 192.0.2.2", "-6 route add 2001:db8::10 via 2001:db8:1::2"},
		server: {"address add 192.0.2.2/24 dev eth0", "address add 2001:db8:1::2/64 dev eth0 nodad", "link set eth0 up", "link set lo up", "address add 203.0.113.10/32 dev lo", "address add 2001:db8::10/128 dev lo nodad"},
	} {
		for _, command := range commands {
			run(t, append([]string{"ip", "-n", name}, strings.Fields(command)...)...)
		}
	}
	return client, server
}

func listen(t *testing.T, server string) {
	t.Helper()
	listener := exec.CommandContext(t.Context(), "ip", "netns", "exec", server, "socat", "TCP6-LISTEN:80,fork,reuseaddr,ipv6only=0", "PIPE")
	if err := listener.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Wait() }) // its context has ended
	for deadline := time.Now().Add(10 * time.Second); in(t, server, "", "ss", "-tlnH", "sport", "80") == ""; {
		if time.Now().After(deadline) {
			t.Fatal("socat does not listen")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// in a namespace.
func in(t *testing.T, namespace, stdin string, command ...string) string {
	t.Helper()
	return runWith(t, stdin, append([]string{"ip", "netns", "exec", namespace}, command...)...)
}

func run(t *testing.T, command ...string) { t.Helper(); runWith(t, "", command...) }

func runWith(t *testing.T, stdin string, command ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	var stderr bytes.Buffer
	c.Stdin, c.Stderr = strings.NewReader(stdin), &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", command, err, stderr.String())
	}
	return string(out)
}
