package bgp

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/outside"
)

func TestRoutesAreTranslatedWithTheirFamily(t *testing.T) {
	cases := []struct {
		name   string
		route  brain.Route
		family bgp.Family
		want   []string
	}{
		{
			name:   "IPv4 with the NEXT_HOP attribute",
			route:  brain.Route{Prefix: netip.MustParsePrefix("203.0.113.10/32"), NextHop: netip.MustParseAddr("10.0.0.1")},
			family: bgp.RF_IPv4_UC,
			want:   []string{"Nexthop: 10.0.0.1"},
		},
		{
			name:   "IPv6 with MP_REACH_NLRI",
			route:  brain.Route{Prefix: netip.MustParsePrefix("2001:db8::1/128"), NextHop: netip.MustParseAddr("2001:db8:0:1::1")},
			family: bgp.RF_IPv6_UC,
			want:   []string{"2001:db8:0:1::1"},
		},
		{
			name:   "graceful shutdown joins the configured communities",
			route:  brain.Route{Prefix: netip.MustParsePrefix("203.0.113.10/32"), NextHop: netip.MustParseAddr("10.0.0.1"), GracefulShutdown: true, Communities: []config.Community{64512<<16 | 100}, LargeCommunities: []config.LargeCommunity{{Global: 64512, Local1: 1, Local2: 4294967295}}},
			family: bgp.RF_IPv4_UC,
			want:   []string{"planned-shut", "64512:100", "64512:1:4294967295"},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path, err := pathOf(c.route)
			if err != nil {
				t.Fatal(err)
			}
			if path.Family != c.family {
				t.Errorf("family %v, want %v", path.Family, c.family)
			}
			var text strings.Builder
			for _, a := range path.Attrs {
				text.WriteString(a.String())
			}
			for _, want := range c.want {
				if !strings.Contains(text.String(), want) {
					t.Errorf("attributes %s lack %q", text.String(), want)
				}
			}
		})
	}
}

func TestARouteWhoseNextHopIsOfTheOtherFamilyIsRefusedWithTheCure(t *testing.T) {
	_, err := pathOf(brain.Route{Prefix: netip.MustParsePrefix("2001:db8::1/128"), NextHop: netip.MustParseAddr("10.0.0.1")})
	if err == nil || !strings.Contains(err.Error(), "give the machine an address of each family") {
		t.Fatalf("got %v", err)
	}
}

func TestWithoutAnIdentityNothingRuns(t *testing.T) {
	s := New(slog.New(slog.DiscardHandler), func(NeighborState) { t.Error("a state without a neighbor") })
	if err := s.Set(context.Background(), Desired{Routes: []brain.Route{{Prefix: netip.MustParsePrefix("203.0.113.10/32")}}}); err != nil {
		t.Fatal(err)
	}
	if s.server != nil || len(s.States()) != 0 {
		t.Fatal("a server runs without an identity")
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
}

func TestWhatARouterSaysIsOneShortLine(t *testing.T) {
	var seen NeighborState
	s := New(slog.New(slog.DiscardHandler), func(state NeighborState) { seen = state })
	router := netip.MustParseAddr("10.0.0.254")
	s.observe(NeighborState{Address: router, State: established})
	s.peerUpdated(&apiutil.WatchEventMessage_PeerEvent{Type: apiutil.PEER_EVENT_STATE, Peer: apiutil.Peer{State: apiutil.PeerState{
		NeighborAddress: router, DisconnectReason: api.PeerState_DISCONNECT_REASON_NOTIFICATION_RECEIVED, DisconnectMessage: "cease: \x1b[2J\n" + strings.Repeat("a", 4096),
	}}}, time.Time{})
	if !strings.HasPrefix(seen.Reason, `cease: \x1b[2J\naaa`) || len(seen.Reason) > outside.TextBytesMax {
		t.Errorf("%d bytes: %q", len(seen.Reason), seen.Reason)
	}
}

func TestWhyTheLastSessionEndedIsKnownInTheNext(t *testing.T) {
	s := New(slog.New(slog.DiscardHandler), func(NeighborState) {})
	router := netip.MustParseAddr("10.0.0.254")
	for _, state := range []NeighborState{{State: "idle", Reason: notConnectedYet}, {State: established}, {State: "idle", Reason: "hold-timer-expired"}, {State: "active", Reason: "connection refused"}, {State: established}} {
		state.Address = router
		s.observe(state)
	}
	if now := s.States()[0]; now.Ended != "hold-timer-expired" || now.Reason != "" {
		t.Errorf("%+v", now)
	}
}

func TestWorseAttributesKeepTheirOrderAndTheirBounds(t *testing.T) {
	for given, want := range map[Attributes]Attributes{
		{}:                                   {MED: 1000, WithMED: true, Prepend: 1},
		{MED: 10, WithMED: true, Prepend: 2}: {MED: 1010, WithMED: true, Prepend: 3},
		{MED: 4294967000, WithMED: true, Prepend: 255}: {MED: 4294967295, WithMED: true, Prepend: 255},
	} {
		if got := given.Worse(false); got != want {
			t.Errorf("%+v: %+v, want %+v", given, got, want)
		}
	}
}

func TestHoldTimes(t *testing.T) {
	for given, want := range map[time.Duration]uint64{9 * time.Second: 9, 3 * time.Second: 3, 0: 65535} {
		timers := peerOf(Neighbor{HoldTime: given}).Timers.Config
		if timers.HoldTime != want || timers.KeepaliveInterval != want/3 || timers.KeepaliveInterval == 0 {
			t.Errorf("hold time %v: %d with keepalives each %d s", given, timers.HoldTime, timers.KeepaliveInterval)
		}
	}
}
