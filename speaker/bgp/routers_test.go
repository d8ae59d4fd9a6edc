package bgp

// What holds with every router we know.

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/config"
)

// router is one at the other end of our only session.
type router interface {
	// learned is what it knows of a prefix; zero: nothing.
	learned(prefix string) learned
	// explain why it may know less.
	explain(prefix string) string
	bfdIsUp() bool
}

type learned struct{ path, nextHop, med, localPref, communities, large string }

// side is the router's side of the session.
type side struct {
	local, neighbor     string
	asn                 uint32
	password            string
	ttlSecurity, bfd    bool
	multihop            int
	withExtendedNextHop bool
	// The router is.
	waits bool
}

func over4() side { return side{local: "192.0.2.254", neighbor: "192.0.2.1", asn: 64513} }

func (s side) neighbors() []Neighbor {
	return []Neighbor{{Address: netip.MustParseAddr(s.local), ASN: s.asn, HoldTime: 9 * time.Second, Password: s.password, TTLSecurity: s.ttlSecurity}}
}

// withEachRouter runs a test with BIRD, and in `make nightly` with FRR, too.
func withEachRouter(t *testing.T, s side, test func(t *testing.T, n *namespace, r router)) {
	t.Run("BIRD", func(t *testing.T) {
		n := newNamespace(t)
		test(t, n, startBirdFor(t, n, s))
	})
	if os.Getenv("GUIDEWAY_NIGHTLY") == "" {
		return
	}
	t.Run("FRR", func(t *testing.T) {
		if why := whyNoFRR(); why != "" {
			t.Skip("FRR test: " + why)
		}
		n := newNamespace(t)
		test(t, n, startFRR(t, n, s))
	})
}

func startBirdFor(t *testing.T, n *namespace, s side) *bird {
	var extra []string
	if s.password != "" {
		extra = append(extra, fmt.Sprintf("password %q;", s.password))
	}
	if s.ttlSecurity {
		extra = append(extra, "ttl security on;")
	}
	if s.bfd {
		extra = append(extra, "bfd yes;")
	}
	if s.multihop > 0 {
		extra = append(extra, fmt.Sprintf("multihop %d;", s.multihop))
	}
	if s.waits {
		extra = append(extra, "passive yes;")
	}
	channel := ""
	if s.withExtendedNextHop {
		channel = "extended next hop on;"
	}
	return startBird(t, n, fmt.Sprintf(birdConfig, s.local, s.asn, s.neighbor, strings.Join(extra, " "), channel))
}

func (b *bird) bfdIsUp() bool { return strings.Contains(b.birdc("show", "bfd", "sessions"), " Up ") }

func (b *bird) explain(string) string { return b.birdc("show", "protocols", "all") }

func (b *bird) learned(prefix string) learned {
	values := map[string]string{}
	for line := range strings.Lines(b.route(prefix)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			values[key] = strings.TrimSpace(value)
		}
	}
	communities := strings.NewReplacer("(", "", ")", "", ", ", ":", ",", ":")
	nextHop, _, _ := strings.Cut(values["BGP.next_hop"], " ")
	return learned{
		path: values["BGP.as_path"], nextHop: nextHop, med: values["BGP.med"], localPref: values["BGP.local_pref"],
		communities: communities.Replace(values["BGP.community"]), large: communities.Replace(values["BGP.large_community"]),
	}
}

// knows waits until the router has exactly this of the prefix.
func knows(t *testing.T, r router, prefix string, want learned) {
	t.Helper()
	var got learned
	deadline := time.Now().Add(20 * time.Second)
	for got = r.learned(prefix); got != want && time.Now().Before(deadline); got = r.learned(prefix) {
		time.Sleep(10 * time.Millisecond)
	}
	if got != want {
		t.Fatalf("the router knows of %s\n%+v, want\n%+v\n%s", prefix, got, want, r.explain(prefix))
	}
}

func TestRoutesOfBothFamiliesOverASessionOfEither(t *testing.T) {
	over6 := side{local: "2001:db8:0:1::fe", neighbor: "2001:db8:0:1::1", asn: 64513}
	for name, s := range map[string]side{"IPv4": over4(), "IPv6": over6} {
		t.Run(name, func(t *testing.T) {
			withEachRouter(t, s, func(t *testing.T, _ *namespace, r router) {
				speaker, want := newSpeaker(t), wanted(route4, route6)
				want.Neighbors = s.neighbors()
				set(t, speaker, want)
				knows(t, r, "203.0.113.10/32", learned{path: "64512", nextHop: "192.0.2.1", localPref: "100", communities: "64512:100"})
				knows(t, r, "2001:db8:a::10/128", learned{path: "64512", nextHop: "2001:db8:0:1::1", localPref: "100"})

				want.Routes = want.Routes[1:]
				set(t, speaker, want)
				knows(t, r, "203.0.113.10/32", learned{})
				if r.learned("2001:db8:a::10/128") == (learned{}) {
					t.Error("the other route was withdrawn, too")
				}
			})
		})
	}
}

// A machine without an IPv4 address (RFC 8950).
func TestAnIPv4RouteWithAnIPv6NextHop(t *testing.T) {
	s := side{local: "2001:db8:0:1::fe", neighbor: "2001:db8:0:1::1", asn: 64513, withExtendedNextHop: true}
	withEachRouter(t, s, func(t *testing.T, _ *namespace, r router) {
		speaker, route := newSpeaker(t), route4
		route.NextHop = route6.NextHop
		want := wanted(route, route6)
		want.Neighbors = s.neighbors()
		set(t, speaker, want)
		knows(t, r, "203.0.113.10/32", learned{path: "64512", nextHop: "2001:db8:0:1::1", localPref: "100", communities: "64512:100"})
		knows(t, r, "2001:db8:a::10/128", learned{path: "64512", nextHop: "2001:db8:0:1::1", localPref: "100"})
	})
}

func TestANeighborsAttributesChangeWithoutAnEndOfItsSession(t *testing.T) {
	withEachRouter(t, over4(), func(t *testing.T, _ *namespace, r router) {
		speaker, route := newSpeaker(t), route4
		route.LargeCommunities = []config.LargeCommunity{{Global: 64512, Local1: 1, Local2: 4294967295}, {Global: 64512, Local1: 2, Local2: 3}}
		want := wanted(route)
		want.Neighbors = over4().neighbors()
		want.Neighbors[0].Attributes = Attributes{MED: 4294967295, WithMED: true, Prepend: 2}
		set(t, speaker, want)
		told := learned{path: "64512 64512 64512", nextHop: "192.0.2.1", med: "4294967295", localPref: "100", communities: "64512:100", large: "64512:1:4294967295 64512:2:3"}
		knows(t, r, "203.0.113.10/32", told)
		since := speaker.States()[0].Since

		want.Neighbors[0].Attributes = Attributes{MED: 7, WithMED: true}
		set(t, speaker, want)
		told.path, told.med = "64512", "7"
		knows(t, r, "203.0.113.10/32", told)

		want.Routes[0].GracefulShutdown = true
		set(t, speaker, want)
		told.communities = "64512:100 65535:0"
		if _, acts := r.(*frr); acts {
			told.localPref = "0" // by itself, as RFC 8326 section 4.3 says; BIRD needs a filter
		}
		knows(t, r, "203.0.113.10/32", told)

		want.Neighbors[0].Attributes, want.Routes[0].Communities, want.Routes[0].GracefulShutdown = Attributes{}, nil, false
		set(t, speaker, want)
		knows(t, r, "203.0.113.10/32", learned{path: "64512", nextHop: "192.0.2.1", localPref: "100", large: told.large})
		if now := speaker.States()[0]; now.Since != since {
			t.Errorf("the session ended: %+v", now)
		}
	})
}

// In the own AS no number is prepended: the router would take its own for a loop.
func TestRoutesOfASlowMachineAreWorse(t *testing.T) {
	for name, c := range map[string]struct {
		asn  uint32
		want learned
	}{
		"another AS": {64513, learned{path: "64512 64512", nextHop: "192.0.2.1", med: "1000", localPref: "100", communities: "64512:100"}},
		"the own AS": {64512, learned{nextHop: "192.0.2.1", med: "1000", localPref: "100", communities: "64512:100"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := over4()
			s.asn = c.asn
			withEachRouter(t, s, func(t *testing.T, _ *namespace, r router) {
				speaker, want := newSpeaker(t), wanted(route4)
				want.Neighbors = s.neighbors()
				set(t, speaker, want)
				eventually(t, 20*time.Second, "the route is there", func() bool { return r.learned("203.0.113.10/32") != (learned{}) })
				since := speaker.States()[0].Since
				want.Neighbors = s.neighbors()
				want.Neighbors[0].Attributes = Attributes{}.Worse(c.asn == want.Identity.ASN)
				set(t, speaker, want)
				knows(t, r, "203.0.113.10/32", c.want)
				if now := speaker.States()[0]; now.Since != since {
					t.Errorf("the session ended: %+v", now)
				}
			})
		})
	}
}

func TestLocalPreferenceInsideTheAS(t *testing.T) {
	s := over4()
	s.asn = 64512
	withEachRouter(t, s, func(t *testing.T, _ *namespace, r router) {
		speaker, want := newSpeaker(t), wanted(route4)
		want.Neighbors = s.neighbors()
		want.Neighbors[0].Attributes = Attributes{LocalPref: 300, MED: 0, WithMED: true}
		set(t, speaker, want)
		knows(t, r, "203.0.113.10/32", learned{nextHop: "192.0.2.1", med: "0", localPref: "300", communities: "64512:100"})
	})
}

func TestTheSessionComesFromItsSource(t *testing.T) {
	s := over4()
	s.neighbor = "192.0.2.7"
	withEachRouter(t, s, func(t *testing.T, _ *namespace, r router) {
		speaker, want := newSpeaker(t), wanted(route4)
		want.Neighbors = s.neighbors()
		want.Neighbors[0].Source = netip.MustParseAddr("192.0.2.7")
		set(t, speaker, want)
		if reason := speaker.States()[0].Reason; !strings.Contains(reason, "no address 192.0.2.7") {
			t.Errorf("reason is %q", reason)
		}
		run(t, "ip", "addr", "add", "192.0.2.7/24", "dev", "gw-lb")
		knows(t, r, "203.0.113.10/32", learned{path: "64512", nextHop: "192.0.2.1", localPref: "100", communities: "64512:100"})
	})
}

// The router lets only packets through that could come from a hop further.
func TestMultihopPacketsLiveLongerThanOneLink(t *testing.T) {
	s := over4()
	s.multihop = 3
	withEachRouter(t, s, func(t *testing.T, n *namespace, r router) {
		n.inside("nft", "add table ip far; add chain ip far in { type filter hook input priority 0; }; add rule ip far in tcp dport 179 ip ttl 1 counter drop")
		speaker, want := newSpeaker(t), wanted(route4)
		want.Neighbors = s.neighbors()
		set(t, speaker, want)
		eventually(t, 15*time.Second, "packets of a session on one link are dropped", func() bool {
			return strings.Contains(n.output("nft", "list", "ruleset"), "packets ") && !strings.Contains(n.output("nft", "list", "ruleset"), "packets 0 ")
		})
		want.Neighbors[0].Multihop = 3
		set(t, speaker, want)
		knows(t, r, "203.0.113.10/32", learned{path: "64512", nextHop: "192.0.2.1", localPref: "100", communities: "64512:100"})
	})
}

func TestPasswordAndTTLSecurityTogether(t *testing.T) {
	s := over4()
	s.password, s.ttlSecurity = "a-secret", true
	withEachRouter(t, s, func(t *testing.T, _ *namespace, r router) {
		speaker, want := newSpeaker(t), wanted(route4)
		want.Neighbors = s.neighbors()
		set(t, speaker, want)
		knows(t, r, "203.0.113.10/32", learned{path: "64512", nextHop: "192.0.2.1", localPref: "100", communities: "64512:100"})
		want.Neighbors[0].Password = "another"
		set(t, speaker, want)
		knows(t, r, "203.0.113.10/32", learned{})
		want.Neighbors[0].Password = "a-secret"
		set(t, speaker, want)
		knows(t, r, "203.0.113.10/32", learned{path: "64512", nextHop: "192.0.2.1", localPref: "100", communities: "64512:100"})
		if err := speaker.Stop(); err != nil {
			t.Fatal(err)
		}
		knows(t, r, "203.0.113.10/32", learned{})
	})
}

func TestTheRouterSeesOurBFDEnd(t *testing.T) {
	s := over4()
	s.bfd = true
	withEachRouter(t, s, func(t *testing.T, n *namespace, r router) {
		speaker, want := newSpeaker(t), wanted(route4)
		want.Neighbors = s.neighbors()
		want.Neighbors[0].HoldTime = 0
		want.Neighbors[0].BFD = BFD{Interval: 100 * time.Millisecond, Multiplier: 3}
		set(t, speaker, want)
		eventually(t, 20*time.Second, "BFD and the route are there", func() bool {
			return r.bfdIsUp() && r.learned("203.0.113.10/32") != (learned{})
		})
		// Our packets are lost; the link stays up.
		n.inside("nft", "add table netdev lost; add chain netdev lost in { type filter hook ingress device gw-router priority 0; policy drop; }")
		began := time.Now()
		eventually(t, 2*time.Second, "the route is gone", func() bool { return r.learned("203.0.113.10/32") == (learned{}) })
		t.Logf("withdrawn after %v", time.Since(began))
	})
}

// FRR knows BFD's interface by the session only, and sets its side of BFD up afresh
// once that is established: to a side of ours that began before, BFD went down.
func TestASessionWithBFDBeginsOnce(t *testing.T) {
	for name, s := range map[string]side{"it connects": over4(), "it is passive": {local: over4().local, neighbor: over4().neighbor, asn: over4().asn, waits: true}} {
		s.bfd = true
		t.Run(name, func(t *testing.T) {
			withEachRouter(t, s, func(t *testing.T, _ *namespace, r router) {
				speaker, want := newSpeaker(t), wanted(route4)
				// Expires before a packet that comes once a second, and on a busy machine not by itself.
				want.Neighbors[0].BFD = BFD{Interval: 300 * time.Millisecond, Multiplier: 3}
				set(t, speaker, want)
				eventually(t, 20*time.Second, "the session is up", func() bool { return speaker.States()[0].Established() })
				since := speaker.States()[0].Since
				eventually(t, 20*time.Second, "BFD is up at both", func() bool { return r.bfdIsUp() && speaker.States()[0].BFDUp })
				// Longer than BFD takes to miss packets that come once a second.
				time.Sleep(4 * time.Second)
				if now := speaker.States()[0]; !now.Established() || now.Since != since || !r.bfdIsUp() {
					t.Errorf("it began at %v and is now %+v", since, now)
				}
			})
		})
	}
}
