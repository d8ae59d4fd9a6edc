package bgp

// Against a real router, BIRD.

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
)

// bird is BIRD in its namespace.
type bird struct {
	*namespace
	ctl string
}

const birdConfig = `
router id 192.0.2.254;
protocol device { scan time 1; }
protocol bfd { interface "gw-*" { interval 100 ms; multiplier 3; }; }
ipv4 table announced4;
protocol static { ipv4; route 198.51.100.0/24 blackhole; }
protocol bgp lb {
	local %s as %d;
	neighbor %s as 64512;
	%s
	ipv4 { import all; export all; %s };
	ipv6 { import all; export none; };
}
`

func startRouter(t *testing.T, extra string) *bird {
	t.Helper()
	return startBird(t, newNamespace(t), fmt.Sprintf(birdConfig, "192.0.2.254", 64513, "192.0.2.1", extra, ""))
}

func startBird(t *testing.T, n *namespace, config string) *bird {
	t.Helper()
	file := filepath.Join(t.TempDir(), "bird.conf")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &bird{n, filepath.Join(t.TempDir(), "bird.ctl")}
	n.start("bird", "-f", "-c", file, "-s", b.ctl)
	eventually(t, 5*time.Second, "BIRD answers", func() bool {
		_, err := exec.Command("birdc", "-s", b.ctl, "show", "status").Output()
		return err == nil
	})
	return b
}

func (b *bird) birdc(args ...string) string {
	out, _ := exec.Command("birdc", append([]string{"-s", b.ctl}, args...)...).CombinedOutput()
	return string(out)
}

func (b *bird) route(prefix string) string { return b.birdc("show", "route", "all", "for", prefix) }

func wanted(extra ...brain.Route) Desired {
	return Desired{
		Identity:  Identity{ASN: 64512, RouterID: netip.MustParseAddr("192.0.2.1")},
		Neighbors: []Neighbor{{Address: netip.MustParseAddr("192.0.2.254"), ASN: 64513, HoldTime: 9 * time.Second}},
		Routes:    extra,
	}
}

var (
	route4 = brain.Route{Prefix: netip.MustParsePrefix("203.0.113.10/32"), NextHop: netip.MustParseAddr("192.0.2.1"), Communities: []config.Community{64512<<16 | 100}}
	route6 = brain.Route{Prefix: netip.MustParsePrefix("2001:db8:a::10/128"), NextHop: netip.MustParseAddr("2001:db8:0:1::1")}
)

func newSpeaker(t *testing.T) *Speaker {
	file, err := os.Create(filepath.Join(t.TempDir(), "speaker.log"))
	if err != nil {
		t.Fatal(err)
	}
	s := New(slog.New(slog.NewTextHandler(file, &slog.HandlerOptions{Level: slog.LevelDebug})), func(NeighborState) {})
	t.Cleanup(func() {
		if t.Failed() {
			said, _ := os.ReadFile(file.Name())
			t.Logf("our side: %+v\n%s", s.States(), said)
		}
		s.Stop()
		file.Close()
	})
	return s
}

func set(t *testing.T, s *Speaker, want Desired) {
	t.Helper()
	if err := s.Set(context.Background(), want); err != nil {
		t.Fatal(err)
	}
}

func TestBirdLearnsAndForgetsRoutesOfBothFamiliesOverOneSession(t *testing.T) {
	r := startRouter(t, "")
	s := newSpeaker(t)
	set(t, s, wanted(route4, route6))
	eventually(t, 15*time.Second, "BIRD has both routes", func() bool {
		return strings.Contains(r.route("203.0.113.10"), "via 192.0.2.1") && strings.Contains(r.route("2001:db8:a::10"), "via 2001:db8:0:1::1")
	})
	if states := s.States(); len(states) != 1 || !states[0].Established() {
		t.Errorf("states %v, want one established session", states)
	}
	if got := r.route("203.0.113.10"); !strings.Contains(got, "(64512,100)") {
		t.Errorf("the community is missing:\n%s", got)
	}

	leaving := route4
	leaving.GracefulShutdown = true
	set(t, s, wanted(leaving, route6))
	eventually(t, 2*time.Second, "the route carries GRACEFUL_SHUTDOWN", func() bool {
		return strings.Contains(r.route("203.0.113.10"), "(65535,0)")
	})

	set(t, s, wanted(route6))
	eventually(t, 2*time.Second, "BIRD forgets the withdrawn route only", func() bool {
		return !strings.Contains(r.route("203.0.113.10"), "via") && strings.Contains(r.route("2001:db8:a::10"), "via")
	})
}

func TestRoutesOfNeighborsAreRefused(t *testing.T) {
	r := startRouter(t, "")
	s := newSpeaker(t)
	set(t, s, wanted(route4))
	eventually(t, 15*time.Second, "the session is up and BIRD exported its route", func() bool {
		return strings.Contains(r.birdc("show", "protocols", "all", "lb"), "1 imported, 1 exported")
	})
	// What BIRD sent is in GoBGP's Adj-RIB-In; the global table must not have it.
	var prefixes []string
	request := apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: bgp.RF_IPv4_UC}
	if err := s.server.ListPath(request, func(prefix bgp.NLRI, _ []*apiutil.Path) { prefixes = append(prefixes, prefix.String()) }); err != nil {
		t.Fatal(err)
	}
	if want := []string{"203.0.113.10/32"}; !slices.Equal(prefixes, want) {
		t.Errorf("the global table has %v, want our own %v", prefixes, want)
	}
}

func TestAPlannedStopEndsTheSessionAtOnce(t *testing.T) {
	r := startRouter(t, "")
	s := newSpeaker(t)
	set(t, s, wanted(route4))
	eventually(t, 15*time.Second, "BIRD has the route", func() bool { return strings.Contains(r.route("203.0.113.10"), "via") })
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Second, "the route is gone", func() bool { return !strings.Contains(r.route("203.0.113.10"), "via") })
}

func TestAWrongPasswordKeepsTheSessionDownAndTheRightOneBringsItUp(t *testing.T) {
	r := startRouter(t, `password "secret";`)
	s := newSpeaker(t)
	want := wanted(route4)
	want.Neighbors[0].Password = "secret"
	set(t, s, want)
	eventually(t, 15*time.Second, "BIRD has the route", func() bool { return strings.Contains(r.route("203.0.113.10"), "via") })
	want.Neighbors[0].Password = "wrong"
	set(t, s, want)
	eventually(t, 15*time.Second, "the session ended", func() bool {
		states := s.States()
		return len(states) == 1 && !states[0].Established() && !strings.Contains(r.route("203.0.113.10"), "via")
	})
}

func TestBFDEndsTheSessionOfASilentRouter(t *testing.T) {
	r := startRouter(t, "bfd yes;")
	s := newSpeaker(t)
	want := wanted(route4)
	want.Neighbors[0].BFD = BFD{Interval: 100 * time.Millisecond, Multiplier: 3}
	set(t, s, want)
	eventually(t, 20*time.Second, "BFD is up", func() bool { return strings.Contains(r.birdc("show", "bfd", "sessions"), " Up ") })
	eventually(t, 5*time.Second, "the session is up", func() bool { return s.States()[0].Established() })
	r.inside("ip", "link", "set", "gw-router", "down")
	eventually(t, 3*time.Second, "we notice, long before the hold time", func() bool { return !s.States()[0].Established() })
	if reason := s.States()[0].Reason; reason == "" || reason == "not connected yet" {
		t.Errorf("reason %q does not say why the session ended", reason)
	}
}

func TestBFDPacketsWithAnotherTTLDoNotCount(t *testing.T) {
	r := startRouter(t, "bfd yes;")
	s := newSpeaker(t)
	want := wanted(route4)
	want.Neighbors[0].BFD = BFD{Interval: 100 * time.Millisecond, Multiplier: 3}
	set(t, s, want)
	eventually(t, 20*time.Second, "BFD and the session are up", func() bool {
		return strings.Contains(r.birdc("show", "bfd", "sessions"), " Up ") && s.States()[0].Established()
	})
	since := s.States()[0].Since
	r.inside("nft", "add table ip far; add chain ip far out { type filter hook output priority 0; }; add rule ip far out udp dport 3784 ip ttl set 254")
	eventually(t, 3*time.Second, "the session ended", func() bool { return s.States()[0].Since.After(since) })
}

func TestWithTTLSecurityOnlyARouterThatSends255IsHeard(t *testing.T) {
	r := startRouter(t, "ttl security on;")
	s := newSpeaker(t)
	want := wanted(route4)
	want.Neighbors[0].TTLSecurity = true
	set(t, s, want)
	eventually(t, 15*time.Second, "BIRD has the route", func() bool { return strings.Contains(r.route("203.0.113.10"), "via") })
	r.inside("nft", "add table ip far; add chain ip far out { type filter hook output priority 0; }; add rule ip far out tcp sport 179 ip ttl set 254; add rule ip far out tcp dport 179 ip ttl set 254")
	eventually(t, 15*time.Second, "the session ended with its hold time", func() bool { return !s.States()[0].Established() })
}

// A session that ended is set up again, whichever side ended it, and lasts: GoBGP
// keeps a reset that BFD requested while there was no session, and would spend
// it on the next one, whose end makes BFD ask again.
func TestASessionThatEndedComesBackAndLasts(t *testing.T) {
	for name, end := range map[string]func(r *bird){
		"the router restarts it": func(r *bird) { r.birdc("restart", "lb") },
		"the link was down": func(r *bird) {
			r.inside("ip", "link", "set", "gw-router", "down")
			time.Sleep(2 * time.Second)
			r.inside("ip", "link", "set", "gw-router", "up")
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := startRouter(t, "bfd yes; passive yes;")
			s := newSpeaker(t)
			want := wanted(route4)
			// Above what a process may wait for a processor beside other tests.
			want.Neighbors[0].BFD = BFD{Interval: 300 * time.Millisecond, Multiplier: 5}
			set(t, s, want)
			isUp := func() bool {
				return s.States()[0].Established() && strings.Contains(r.birdc("show", "bfd", "sessions"), " Up ") &&
					strings.Contains(r.route("203.0.113.10"), "via")
			}
			eventually(t, 20*time.Second, "session, BFD and route are there", isUp)
			since := s.States()[0].Since
			end(r)
			eventually(t, 5*time.Second, "the session ended", func() bool { return s.States()[0].Since.After(since) })
			eventually(t, 15*time.Second, "session, BFD and route are back", isUp)
			since = s.States()[0].Since
			time.Sleep(3 * time.Second)
			if now := s.States()[0]; !isUp() || now.Since != since {
				t.Errorf("it did not last: %+v", now)
			}
		})
	}
}
