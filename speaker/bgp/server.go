package bgp

// Starts and stops the embedded GoBGP server, and converts our types to its own.

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/outside"
)

const (
	// GoBGP's own defaults are 120 s and 30 s: a router that comes back would
	// wait that long for our routes.
	connectRetrySeconds = 2
	idleHoldSeconds     = 1
	// GoBGP takes 0 for "not given"; the longest that fits the field (RFC 4271
	// 4.2) is eighteen hours, which is as good as never.
	holdTimeMax = 65535 * time.Second

	// Of a neighbor on the same link (RFC 5082 section 3).
	ttlMin = 255

	// From a session's begin to its BFD's: until then the router has set its own
	// side up.
	bfdPause = time.Second

	gracefulShutdown = uint32(bgp.COMMUNITY_PLANNED_SHUT) // RFC 8326 section 5: 65535:0
)

func (s *Speaker) startServer(ctx context.Context, id Identity) (err error) {
	srv := server.NewBgpServer(server.LoggerOption(slog.New(attemptLog{Handler: s.log.With("part", "bgp").Handler(), speaker: s}), nil))
	go srv.Serve() // ends with Stop
	defer func() {
		if err != nil {
			srv.Stop()
		}
	}()
	global := &api.Global{Asn: id.ASN, RouterId: id.RouterID.String(), ListenPort: -1}
	if err := srv.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		return fmt.Errorf("start BGP as %d, router id %s: %w", id.ASN, id.RouterID, err)
	}
	if err := refuseWhatNeighborsAnnounce(ctx, srv); err != nil {
		return err
	}
	tasksCtx, stopTasks := context.WithCancel(context.Background())
	callbacks := server.WatchEventMessageCallbacks{OnPeerUpdate: s.peerUpdated}
	if err := srv.WatchEvent(tasksCtx, callbacks, server.WatchPeer()); err != nil {
		stopTasks()
		return fmt.Errorf("watch BGP sessions: %w", err)
	}
	s.server, s.stopTasks, s.identity = srv, stopTasks, id
	s.statesMu.Lock()
	s.asked, s.tasksCtx = srv, tasksCtx
	s.statesMu.Unlock()
	s.task(s.guardBFD)
	return nil
}

// task runs beside the server, until that is stopped.
func (s *Speaker) task(run func(context.Context)) {
	s.statesMu.Lock()
	defer s.statesMu.Unlock()
	if ctx := s.tasksCtx; ctx != nil {
		s.tasks.Go(func() { run(ctx) })
	}
}

// later is a task that begins after a while.
func (s *Speaker) later(pause time.Duration, run func(context.Context)) {
	s.task(func(ctx context.Context) {
		select {
		case <-time.After(pause):
			run(ctx)
		case <-ctx.Done():
		}
	})
}

// stopServer with its BFD, which StopBgp alone leaves running.
func (s *Speaker) stopServer() {
	s.stopTasks()
	s.server.Stop()
	s.server, s.identity, s.attributes, s.export = nil, Identity{}, nil, exportPolicy{}
	for address := range s.neighbors {
		s.forget(address)
	}
	clear(s.neighbors)
	clear(s.announced)
	s.statesMu.Lock()
	clear(s.states)
	s.asked, s.tasksCtx = nil, nil
	s.statesMu.Unlock()
}

// A global default of REJECT would refuse our own paths as well (AddPath
// succeeds and nothing is announced), so what comes from any neighbor is
// refused by a neighbor set; our own paths have no neighbor address and do not
// match it.
func refuseWhatNeighborsAnnounce(ctx context.Context, srv *server.BgpServer) error {
	const anyNeighbor, name = "any-neighbor", "speak-only"
	set := &api.DefinedSet{
		DefinedType: api.DefinedType_DEFINED_TYPE_NEIGHBOR,
		Name:        anyNeighbor,
		List:        []string{"0.0.0.0/0", "::/0"},
	}
	if err := srv.AddDefinedSet(ctx, &api.AddDefinedSetRequest{DefinedSet: set}); err != nil {
		return fmt.Errorf("define BGP neighbor set: %w", err)
	}
	policy := &api.Policy{Name: name, Statements: []*api.Statement{{
		Name:       name,
		Conditions: &api.Conditions{NeighborSet: &api.MatchSet{Type: api.MatchSet_TYPE_ANY, Name: anyNeighbor}},
		Actions:    &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_REJECT},
	}}}
	if err := srv.AddPolicy(ctx, &api.AddPolicyRequest{Policy: policy}); err != nil {
		return fmt.Errorf("define BGP import policy: %w", err)
	}
	assignment := &api.PolicyAssignment{
		Name:          "global",
		Direction:     api.PolicyDirection_POLICY_DIRECTION_IMPORT,
		Policies:      []*api.Policy{{Name: name}},
		DefaultAction: api.RouteAction_ROUTE_ACTION_ACCEPT,
	}
	if err := srv.AddPolicyAssignment(ctx, &api.AddPolicyAssignmentRequest{Assignment: assignment}); err != nil {
		return fmt.Errorf("assign BGP import policy: %w", err)
	}
	return nil
}

// peerOf a neighbor, without BFD: that begins with its session.
func peerOf(n Neighbor) *api.Peer {
	hold := n.HoldTime
	if hold == 0 {
		hold = holdTimeMax
	}
	holdSeconds := uint64(hold / time.Second)
	transport := &api.Transport{}
	if n.Source.IsValid() {
		transport.LocalAddress = n.Source.String()
	}
	return &api.Peer{
		Conf: &api.PeerConf{
			NeighborAddress: n.Address.String(),
			PeerAsn:         n.ASN,
			AuthPassword:    n.Password,
		},
		Timers: &api.Timers{Config: &api.TimersConfig{
			ConnectRetry:           connectRetrySeconds,
			IdleHoldTimeAfterReset: idleHoldSeconds,
			HoldTime:               holdSeconds,
			KeepaliveInterval:      holdSeconds / 3,
		}},
		// Both families over one session; no graceful restart, because stale routes
		// are a black hole.
		AfiSafis: []*api.AfiSafi{afiSafi(api.Family_AFI_IP), afiSafi(api.Family_AFI_IP6)},

		Transport:    transport,
		TtlSecurity:  &api.TtlSecurity{Enabled: n.TTLSecurity, TtlMin: ttlMin},
		EbgpMultihop: &api.EbgpMultihop{Enabled: n.Multihop > 0, MultihopTtl: uint32(n.Multihop)},
	}
}

func afiSafi(afi api.Family_Afi) *api.AfiSafi {
	family := &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}
	return &api.AfiSafi{
		Config:       &api.AfiSafiConfig{Family: family, Enabled: true},
		PrefixLimits: &api.PrefixLimit{Family: family, MaxPrefixes: routesInMax},
	}
}

func bfdOf(b BFD) *api.BfdPeerConfig {
	interval := uint32(b.Interval / time.Microsecond)
	return &api.BfdPeerConfig{
		Enabled:                  true,
		DesiredMinimumTxInterval: interval,
		RequiredMinimumReceive:   interval,
		DetectionMultiplier:      b.Multiplier,
	}
}

// bfdUp has the addresses of neighbors whose BFD is up.
func bfdUp(srv *server.BgpServer) map[string]bool {
	up := map[string]bool{}
	if srv == nil {
		return up
	}
	srv.ListBfdPeer(context.Background(), func(address string, state *api.BfdPeerState) {
		up[address] = state.GetSessionState() == api.BfdSessionState_BFD_SESSION_STATE_UP
	})
	return up
}

// The family must be set: GoBGP takes a path without one for an error, or for
// the family of its next hop.
func pathOf(r brain.Route) (*apiutil.Path, error) {
	if r.Prefix.Addr().Is6() && r.NextHop.Is4() {
		return nil, fmt.Errorf("its next hop %s is of the other family: give the machine an address of each family it announces", r.NextHop)
	}
	nlri, err := bgp.NewIPAddrPrefix(r.Prefix)
	if err != nil {
		return nil, err
	}
	family := bgp.RF_IPv4_UC
	if r.Prefix.Addr().Is6() {
		family = bgp.RF_IPv6_UC
	}
	nextHop, err := nextHopAttribute(family, nlri, r.NextHop)
	if err != nil {
		return nil, err
	}
	attributes := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(bgp.BGP_ORIGIN_ATTR_TYPE_IGP), nextHop}
	var communities []uint32
	for _, c := range r.Communities {
		communities = append(communities, uint32(c))
	}
	if r.GracefulShutdown {
		communities = append(communities, gracefulShutdown)
	}
	if len(communities) > 0 {
		attributes = append(attributes, bgp.NewPathAttributeCommunities(communities))
	}
	if len(r.LargeCommunities) > 0 {
		var large []*bgp.LargeCommunity
		for _, c := range r.LargeCommunities {
			large = append(large, &bgp.LargeCommunity{ASN: c.Global, LocalData1: c.Local1, LocalData2: c.Local2})
		}
		attributes = append(attributes, bgp.NewPathAttributeLargeCommunities(large))
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: attributes}, nil
}

// An IPv4 route may have an IPv6 next hop (RFC 8950).
func nextHopAttribute(family bgp.Family, nlri bgp.NLRI, nextHop netip.Addr) (bgp.PathAttributeInterface, error) {
	if family == bgp.RF_IPv4_UC && nextHop.Is4() {
		return bgp.NewPathAttributeNextHop(nextHop)
	}
	return bgp.NewPathAttributeMpReachNLRI(family, []bgp.PathNLRI{{NLRI: nlri}}, nextHop)
}

func (s *Speaker) peerUpdated(event *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
	if event.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	peer := event.Peer.State
	if !s.wanted(peer.NeighborAddress) {
		return
	}
	reason := outside.Text(reasonOf(peer))
	if isOverLimit := peer.AdminState == api.PeerState_ADMIN_STATE_PFX_CT; isOverLimit {
		reason = overLimit
	}
	before, now := s.observe(NeighborState{Address: peer.NeighborAddress, ASN: event.Peer.Conf.PeerASN, State: stateName(peer.SessionState), Reason: reason})
	// Not here: the server waits for us, and what is begun here for the server.
	switch {
	case !before.Established() && now.Established():
		s.later(bfdPause, func(ctx context.Context) { s.beginBFD(ctx, now.Address, now.Since) })
	case before.Established() && !now.Established() && reason == overLimit:
		s.log.Error("BGP session ended", "neighbor", now.Address, "reason", reason)
		s.later(limitPause, func(ctx context.Context) { s.renewAfterLimit(ctx, now.Address, now.Since) })
	case before.Established() && !now.Established():
		s.task(func(ctx context.Context) { s.renew(ctx, now.Address) })
	}
}

// A last event may come after its neighbor was removed.
func (s *Speaker) wanted(address netip.Addr) bool {
	s.statesMu.Lock()
	defer s.statesMu.Unlock()
	_, known := s.states[address]
	return known
}

// reasonOf says why a session ended; on the way to a new one there is nothing
// to say, and the reason of the end stays.
func reasonOf(peer apiutil.PeerState) string {
	switch peer.DisconnectReason {
	case api.PeerState_DISCONNECT_REASON_UNSPECIFIED, api.PeerState_DISCONNECT_REASON_IDLE_TIMER_EXPIRED:
		return ""
	}
	return peer.DisconnectMessage
}

// stateName turns BGP_FSM_ESTABLISHED into established.
func stateName(state bgp.FSMState) string {
	return strings.ToLower(strings.TrimPrefix(state.String(), "BGP_FSM_"))
}
