package bgp

// The router connects, we listen.

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// passiveOver4 is a session that the router opens.
func passiveOver4() side {
	s := over4()
	s.passive = true
	return s
}

var toldRoute4 = learned{path: "64512", nextHop: "192.0.2.1", localPref: "100", communities: "64512:100"}

// accepted says how many established connections come to our BGP port, and how
// many go from us to another's.
func accepted(t *testing.T) (accepted, opened int) {
	t.Helper()
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) < 4 || f[3] != "01" {
				continue
			}
			if strings.HasSuffix(f[1], ":00B3") {
				accepted++
			}
			if strings.HasSuffix(f[2], ":00B3") {
				opened++
			}
		}
	}
	return accepted, opened
}

func TestThePassiveNeighborsRouterConnects(t *testing.T) {
	over6 := side{local: "2001:db8:0:1::fe", neighbor: "2001:db8:0:1::1", asn: 64513, passive: true}
	secured := passiveOver4()
	secured.password, secured.ttlSecurity = "a-secret", true
	secured6 := over6
	secured6.password, secured6.ttlSecurity = "a-secret", true
	withBFD := passiveOver4()
	withBFD.bfd = true
	for name, s := range map[string]side{"IPv4": passiveOver4(), "IPv6": over6, "password and TTL security": secured, "the same over IPv6": secured6, "BFD": withBFD} {
		t.Run(name, func(t *testing.T) {
			withEachRouter(t, s, func(t *testing.T, n *namespace, r router) {
				speaker, want := newSpeaker(t), wanted(route4)
				want.Neighbors = s.neighbors()
				if s.bfd {
					want.Neighbors[0].BFD = BFD{Interval: 100 * time.Millisecond, Multiplier: 3}
				}
				set(t, speaker, want)
				knows(t, r, "203.0.113.10/32", toldRoute4)
				if in, out := accepted(t); in != 1 || out != 0 {
					t.Errorf("%d connections came in, %d went out", in, out)
				}
				if s.bfd {
					eventually(t, 20*time.Second, "BFD is up", r.bfdIsUp)
				}

				// The router's end of it, and back.
				since := speaker.States()[0].Since
				n.inside("ss", "--kill", "--tcp", "dport", "=", "179")
				eventually(t, 15*time.Second, "the session ended and is back", func() bool {
					now := speaker.States()[0]
					return now.Since.After(since) && now.Established()
				})
				knows(t, r, "203.0.113.10/32", toldRoute4)
				since = speaker.States()[0].Since
				time.Sleep(2 * time.Second)
				if now := speaker.States()[0]; !now.Established() || now.Since != since {
					t.Errorf("it did not last: %+v", now)
				}

				want.Routes = nil
				set(t, speaker, want)
				knows(t, r, "203.0.113.10/32", learned{})
			})
		})
	}
}

func TestAPassiveNeighborWithoutTheRightPasswordIsNotHeard(t *testing.T) {
	withEachRouter(t, passiveOver4(), func(t *testing.T, _ *namespace, r router) {
		speaker, want := newSpeaker(t), wanted(route4)
		want.Neighbors = passiveOver4().neighbors()
		want.Neighbors[0].Password = "a-secret" // the router has none
		set(t, speaker, want)
		time.Sleep(4 * time.Second)
		if state := speaker.States()[0]; state.Established() || !strings.Contains(state.Reason, "waits for the router") {
			t.Errorf("the session without a password is %+v", state)
		}
		want.Neighbors[0].Password = ""
		set(t, speaker, want)
		knows(t, r, "203.0.113.10/32", toldRoute4)
	})
}

func TestAPassiveNeighborBeyondTheLinkIsNotHeard(t *testing.T) {
	s := passiveOver4()
	s.ttlSecurity = true
	withEachRouter(t, s, func(t *testing.T, n *namespace, r router) {
		n.inside("nft", "add table ip far; add chain ip far out { type filter hook output priority 0; }; add rule ip far out tcp dport 179 ip ttl set 254")
		speaker, want := newSpeaker(t), wanted(route4)
		want.Neighbors = s.neighbors()
		set(t, speaker, want)
		time.Sleep(4 * time.Second)
		if in, _ := accepted(t); in != 0 || speaker.States()[0].Established() {
			t.Errorf("%d connections from beyond the link, session %+v", in, speaker.States()[0])
		}
		n.inside("nft", "delete", "table", "ip", "far")
		knows(t, r, "203.0.113.10/32", toldRoute4)
	})
}

// A session comes to the address that is its source.
func TestAPassiveNeighborHasToConnectToTheSource(t *testing.T) {
	s := passiveOver4()
	s.neighbor = "192.0.2.7"
	withEachRouter(t, s, func(t *testing.T, _ *namespace, r router) {
		run(t, "ip", "addr", "add", "192.0.2.7/24", "dev", "gw-lb")
		speaker, want := newSpeaker(t), wanted(route4)
		want.Neighbors = s.neighbors()
		want.Neighbors[0].Source = netip.MustParseAddr("192.0.2.1")
		set(t, speaker, want)
		time.Sleep(3 * time.Second)
		if state := speaker.States()[0]; state.Established() {
			t.Errorf("the session came to another address than its source: %+v", state)
		}
		want.Neighbors[0].Source = netip.MustParseAddr("192.0.2.7")
		set(t, speaker, want)
		knows(t, r, "203.0.113.10/32", toldRoute4)
	})
}

// answers says whether our BGP port answers a connection from there.
func (n *namespace) answers(source string) bool {
	n.output("ip", "address", "add", source+"/24", "dev", "gw-router") // it may have it
	return strings.Contains(n.output("env", dialMark+"="+source, os.Args[0]), "answered")
}

// dialOnly is what this program does in a router's namespace.
func dialOnly(source string) {
	dialer := net.Dialer{Timeout: 500 * time.Millisecond, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(source), 0))}
	if conn, err := dialer.Dial("tcp", "192.0.2.1:179"); err == nil {
		_ = conn.Close()
		fmt.Println("answered")
	}
}

const dialMark = "GUIDEWAY_TEST_DIAL_FROM"

const twoSessions = birdConfig + `
protocol bgp second {
	local 192.0.2.253 as 64513;
	neighbor 192.0.2.2 as 64512; # BIRD has one session with an address
	connect delay time 1; connect retry time 1; error wait time 1, 1;
	ipv4 { import all; export none; };
}
`

// oneOfEach kind of neighbor, the first one ours to connect to.
func oneOfEach(t *testing.T) (n *namespace, r *bird, want Desired) {
	n = newNamespace(t)
	n.inside("ip", "addr", "add", "192.0.2.253/24", "dev", "gw-router")
	r = startBird(t, n, fmt.Sprintf(twoSessions, "192.0.2.254", 64513, "192.0.2.1", "passive yes; error wait time 1, 1;", ""))
	want = wanted(route4)
	passive := want.Neighbors[0]
	passive.Address, passive.Passive = netip.MustParseAddr("192.0.2.253"), true
	run(t, "ip", "address", "add", "192.0.2.2/24", "dev", "gw-lb")
	want.Neighbors = append(want.Neighbors, passive)
	return n, r, want
}

func (b *bird) isUp(session string) bool {
	return strings.Contains(b.birdc("show", "protocols", session), "Established")
}

func TestOnlyPassiveNeighborsAreAnswered(t *testing.T) {
	n, r, want := oneOfEach(t)
	speaker, both := newSpeaker(t), want.Neighbors
	want.Neighbors = both[:1]
	set(t, speaker, want)
	eventually(t, 15*time.Second, "the first session is there", func() bool { return r.isUp("lb") })
	if n.answers("192.0.2.254") {
		t.Error("the port is open without a passive neighbor")
	}
	want.Neighbors = both
	set(t, speaker, want)
	eventually(t, 15*time.Second, "both sessions are there", func() bool { return r.isUp("lb") && r.isUp("second") })
	for source, want := range map[string]bool{"192.0.2.253": true, "192.0.2.254": false, "192.0.2.200": false} {
		if got := n.answers(source); got != want {
			t.Errorf("%s is answered: %v", source, got)
		}
	}
	since := speaker.States()[1].Since // of .254
	want.Neighbors = both[:1]
	set(t, speaker, want)
	eventually(t, 5*time.Second, "the second session ended", func() bool { return !r.isUp("second") })
	if n.answers("192.0.2.253") {
		t.Error("a former passive neighbor is answered")
	}
	if states := speaker.States(); len(states) != 1 || !states[0].Established() || states[0].Since != since {
		t.Errorf("the other session did not go on: %+v", states)
	}
}

func TestAPortInUseKeepsPassiveNeighborsDownAlone(t *testing.T) {
	_, r, want := oneOfEach(t)
	other, err := net.Listen("tcp4", ":179")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	speaker := newSpeaker(t)
	says := func(wanted ...string) {
		t.Helper()
		err := speaker.Set(t.Context(), want)
		for _, text := range wanted {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("said %v, not %q", err, text)
			}
		}
	}
	says(PortTaken, fmt.Sprint("process ", os.Getpid()), "user root", "stop that program")
	eventually(t, 15*time.Second, "the other session is there", func() bool { return r.isUp("lb") })
	if reason := speaker.States()[0].Reason; !strings.Contains(reason, PortTaken) { // of .253
		t.Errorf("the passive neighbor's reason is %q", reason)
	}
	says(PortTaken)
	_ = other.Close()
	says("is free now", "systemctl restart guideway-speaker")
	if !r.isUp("lb") {
		t.Error("the other session ended")
	}
	r.birdc("disable", "lb") // nothing to lose any more
	eventually(t, 5*time.Second, "no session is there", func() bool { return !speaker.States()[1].Established() })
	set(t, speaker, want)
	eventually(t, 15*time.Second, "the passive session is there", func() bool { return r.isUp("second") })
}
