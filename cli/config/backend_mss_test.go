package config

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/looptest"
)

// What timestamps take of each segment.
const timestampBytes = 12

// The rules of printed scripts, in a namespace: clients send no more than what fits into tunnels
// through the interface's 1500 bytes, or those of the config, to VIPs; to other addresses all.
func TestVIPsAnnounceAnMSSThatFitsIntoTunnels(t *testing.T) {
	looptest.InNamespace(t, "link set lo up", "link add eth0 type veth peer name far", "addr add 127.0.0.2/8 dev lo",
		"addr add 203.0.113.10/32 dev lo", "addr add 2001:db8:f::10/128 dev lo nodad")
	for _, c := range []struct {
		encap, more, option string
		want4, want6        int
	}{
		{"geneve", "", "", 1364, 1344},
		{"geneve", "tunnel: {mtu: 1400}", "", 1264, 1244},
		{"gre", "", "--plain", 1436, 1416},
		{"gue", "", "--plain", 1428, 1408},
	} {
		runRules(t, c.encap, c.more, c.option)
		for address, want := range map[string]int{"203.0.113.10": c.want4, "2001:db8:f::10": c.want6} {
			if got := mssTo(t, address); got != want-timestampBytes {
				t.Errorf("%s %s: of %s %d, want %d", c.encap, c.more, address, got, want-timestampBytes)
			}
		}
		if got := mssTo(t, "127.0.0.2"); got < 10_000 {
			t.Errorf("%s: of an address that is no VIP %d", c.encap, got)
		}
	}
}

// runRules of nftables that the script has for one backend.
func runRules(t *testing.T, encap, more, option string) {
	t.Helper()
	arguments := []string{"config", "backend", "web-1", configFileOf(t, "machine: {addresses: [10.0.0.1]}\n"+more+`
services: [{name: web, vips: [{address: 203.0.113.10}, {address: "2001:db8:f::10"}], pools: [web], encap: `+encap+`}]
pools: [{name: web, backends: [{name: web-1, address: 10.1.0.11}]}]
`)}
	script, _, err := guideway(t, append(arguments, strings.Fields(option)...)...)
	if err != nil {
		t.Fatal(err)
	}
	_, rules, found := strings.Cut(script, "# Answers to SYNs ask")
	if !found {
		_, rules, _ = strings.Cut(script, "# Tunnels of load balancers alone")
	}
	rules, _, found = strings.Cut(rules, "\nEND\n")
	if !found {
		t.Fatalf("no rules in %s", script)
	}
	if said, err := exec.Command("sh", "-ec", "# "+rules+"\nEND\n").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%s", err, said, rules)
	}
}

// mssTo is what a connection to the address sends at most in a segment.
func mssTo(t *testing.T, address string) (mss int) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	raw, err := client.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { mss, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return mss
}
