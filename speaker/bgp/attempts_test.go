package bgp

import (
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"golang.org/x/sys/unix"
)

// saysWhy waits until the session's reason has all of these texts.
func saysWhy(t *testing.T, s *Speaker, want ...string) {
	t.Helper()
	reason := ""
	lacks := func() string {
		reason = s.States()[0].Reason
		for _, text := range want {
			if !strings.Contains(reason, text) {
				return text
			}
		}
		return ""
	}
	deadline := time.Now().Add(20 * time.Second)
	for lacks() != "" && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if missing := lacks(); missing != "" {
		t.Errorf("the reason %q lacks %q", reason, missing)
	}
}

func TestASessionThatDoesNotComeUpSaysWhy(t *testing.T) {
	for name, c := range map[string]struct {
		router side
		ours   func(*Desired)
		want   []string
	}{
		"the router is of another AS": {
			ours: func(d *Desired) { d.Neighbors[0].ASN = 64999 },
			want: []string{"wrong AS", "the router is AS 64513", "asn: 64999"},
		},
		"the router expects another AS of us": {
			ours: func(d *Desired) { d.Identity.ASN = 64599 },
			want: []string{"wrong AS", "AS 64599", "(AS 64513)", "NOTIFICATION code 2(open) subcode 2(bad peer as)"},
		},
		"the router has a password, we have none": {
			router: side{password: "secret"},
			want:   []string{"connection timed out", "the router answers ARP", "password", "none is configured"},
		},
		"we have a password, the router has none": {
			ours: func(d *Desired) { d.Neighbors[0].Password = "secret" },
			want: []string{"connection timed out", "the router answers ARP", "password", "another one there, or none"},
		},
		"passwords differ": {
			router: side{password: "secret"},
			ours:   func(d *Desired) { d.Neighbors[0].Password = "another" },
			want:   []string{"connection timed out", "the router answers ARP", "password", "another one there, or none"},
		},
		"the router demands TTL 255": {
			router: side{ttlSecurity: true},
			want:   []string{"acknowledges no packet", "ttl_security"},
		},
		"we demand TTL 255": {
			ours: func(d *Desired) { d.Neighbors[0].TTLSecurity = true },
			want: []string{"TTL security", "below 255"},
		},
		"the router has another neighbor": {
			router: side{neighbor: "192.0.2.77"},
			want:   []string{"neighbor"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := over4()
			s.password, s.ttlSecurity = c.router.password, c.router.ttlSecurity
			if c.router.neighbor != "" {
				s.neighbor = c.router.neighbor
			}
			withEachRouter(t, s, func(t *testing.T, n *namespace, _ router) {
				if s.ttlSecurity { // a router demands it some time after it accepted the connection
					n.inside("nft", "add table ip near; add chain ip near in { type filter hook input priority 0; }; add rule ip near in tcp dport 179 tcp flags ! syn ip ttl != 255 drop")
				}
				speaker, want := newSpeaker(t), wanted(route4)
				if c.ours != nil {
					c.ours(&want)
				}
				set(t, speaker, want)
				saysWhy(t, speaker, c.want...)
			})
		})
	}
}

func TestARouterThatDoesNotAnswerSaysWhy(t *testing.T) {
	n := newNamespace(t)
	for name, c := range map[string]struct {
		router string
		want   []string
	}{
		"nothing listens there":   {"192.0.2.254", []string{"connection refused"}},
		"no such host":            {"192.0.2.99", []string{"unreachable", "ARP"}},
		"no such host, over IPv6": {"2001:db8:0:1::99", []string{"unreachable", "neighbor solicitations"}},
		"no route":                {"198.51.100.1", []string{"unreachable", "network is unreachable"}},
	} {
		t.Run(name, func(t *testing.T) {
			speaker, want := newSpeaker(t), wanted(route4)
			want.Neighbors[0].Address = netip.MustParseAddr(c.router)
			set(t, speaker, want)
			saysWhy(t, speaker, c.want...)
		})
	}
	t.Run("a firewall", func(t *testing.T) {
		n.inside("nft", "add table ip wall; add chain ip wall in { type filter hook input priority 0; }; add rule ip wall in tcp dport 179 drop")
		speaker := newSpeaker(t)
		set(t, speaker, wanted(route4))
		saysWhy(t, speaker, "connection timed out", "the router answers ARP", "firewall")
	})
}

// The reason follows the attempts, and goes with the session's beginning. It is told
// once, however many attempts there are.
func TestTheReasonIsToldOnceAndFollowsTheAttempts(t *testing.T) {
	n := newNamespace(t)
	var mu sync.Mutex
	told := map[string]int{}
	s := New(slog.New(slog.DiscardHandler), func(state NeighborState) {
		mu.Lock()
		defer mu.Unlock()
		told[state.State+": "+state.Reason]++
	})
	t.Cleanup(func() { s.Stop() })
	want := wanted(route4)
	want.Identity.ASN = 64599
	set(t, s, want)
	saysWhy(t, s, "connection refused")
	r := startBirdFor(t, n, over4())
	saysWhy(t, s, "wrong AS")
	want.Identity.ASN = 64512
	set(t, s, want)
	r.birdc("restart", "lb") // after an error BIRD waits a minute
	eventually(t, 15*time.Second, "the session is up", func() bool { return s.States()[0].Established() })
	if reason := s.States()[0].Reason; reason != "" {
		t.Errorf("an established session has the reason %q", reason)
	}
	mu.Lock()
	defer mu.Unlock()
	for what, times := range told {
		if strings.Contains(what, "refused: no BGP daemon") && times > 1 {
			t.Errorf("%q was told %d times", what, times)
		}
	}
}

// Nobody waits for a router that keeps a connection open and says nothing.
func TestANeighborIsRemovedWhileItsRouterIsSilent(t *testing.T) {
	n := newNamespace(t)
	n.start("python3", "-c", "import socket\ns = socket.create_server(('192.0.2.254', 179))\nkept = []\nwhile True: kept.append(s.accept())")
	s := newSpeaker(t)
	set(t, s, wanted(route4))
	saysWhy(t, s, "sends no BGP message")
	want := wanted(route4)
	want.Neighbors[0].ASN = 64514
	set(t, s, want)
	began := time.Now()
	want.Neighbors = nil
	set(t, s, want)
	if err := s.Stop(); err != nil || time.Since(began) > time.Second {
		t.Errorf("it took %v, %v", time.Since(began), err)
	}
}

// One that resets each connection leaves no socket to look at, or no time to send an OPEN.
func TestARouterThatResetsEachConnectionSaysWhy(t *testing.T) {
	n := newNamespace(t)
	n.start("python3", "-c", "import socket, struct\ns = socket.create_server(('192.0.2.254', 179))\nwhile True:\n c = s.accept()[0]\n c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))\n c.close()")
	s := newSpeaker(t)
	set(t, s, wanted(route4))
	saysWhy(t, s, "closed the connection without a NOTIFICATION")
}

func TestWhatRoutersSayIsCutAndQuoted(t *testing.T) {
	w := &watched{Neighbor: Neighbor{ASN: 64513}, own: Identity{ASN: 64512, RouterID: netip.MustParseAddr("192.0.2.1")}}
	shutdown := func(text string) []byte {
		data, err := bgp.NewBGPNotificationMessage(bgp.BGP_ERROR_CEASE, bgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN, append([]byte{byte(len(text))}, text...)).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	if got := w.whyNotConnected("dial tcp 192.0.2.254:179: connect: " + unix.ECONNRESET.Error()); got != closedByRouter {
		t.Errorf("%q", got)
	}
	for _, err := range []error{io.EOF, unix.ECONNRESET, errNoSocket} {
		if got := w.whyRefused(nil, err); got != closedByRouter {
			t.Errorf("%v: %q", err, got)
		}
	}
	for name, c := range map[string]struct {
		message []byte
		want    string
		lacks   string
	}{
		"a text":                {shutdown("router maintenance"), `"router maintenance"`, "..."},
		"escapes":               {shutdown("\x1b[2Jgone\nroute 10.0.0.0/8 announced"), `"\x1b[2Jgone\nroute`, "\x1b"},
		"a long text":           {shutdown(strings.Repeat("ä", 120)), `ä ... (cut)"`, strings.Repeat("ä", 65)},
		"a length beyond it":    {append(shutdown("")[:21], 255), "administrative shutdown", `"`},
		"no BGP":                {[]byte("SSH-2.0-OpenSSH_9.2\r\n\x1b[2J"), "does not speak BGP", "\x1b"},
		"a header alone":        {shutdown("x")[:19], "does not speak BGP", "panic"},
		"a type that is no BGP": {append(append([]byte{}, shutdown("x")[:18]...), 77), "BGP", "panic"},
	} {
		got := w.whyRefused(c.message, nil)
		if !strings.Contains(got, c.want) || strings.Contains(got, c.lacks) || len(got) > 500 {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
