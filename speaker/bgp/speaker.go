// Package bgp announces routes to the BGP neighbors.
//
// It is a sink: Set takes the whole desired state (our identity, all neighbors, all routes) and
// determines the difference from the present one. It only announces: routes from neighbors are
// refused, and it opens all connections itself, so it listens on no BGP port.
//
// It does not know why a route is desired or for how long; the brain does.
package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/guideway/guideway/controller/brain"
)

// Identity is who we are to every neighbor. Zero: no BGP at all.
type Identity struct {
	ASN uint32
	// IPv4 even on a machine that has none: BGP's router id is 32 bits.
	RouterID netip.Addr
}

// Neighbor is one BGP session that is wanted.
type Neighbor struct {
	Address netip.Addr
	ASN     uint32
	// 0: the session never ends by silence.
	HoldTime time.Duration
	// Empty: no TCP MD5 signature (RFC 2385).
	Password string
	// Zero: no BFD.
	BFD BFD
	// Packets of the session have TTL 255 in both directions, others are
	// dropped (GTSM, RFC 5082).
	TTLSecurity bool
	// Invalid: the kernel's choice.
	Source netip.Addr
	// TTL of the session with a neighbor of another AS; 0: one link.
	Multihop uint8
	// A change of these does not end the session.
	Attributes Attributes
}

// session is what a neighbor's session depends on.
func (n Neighbor) session() Neighbor {
	n.Attributes = Attributes{}
	return n
}

// BFD (RFC 5880) notices a dead session faster than the hold time does.
type BFD struct {
	Interval   time.Duration
	Multiplier uint32
}

// Desired is the whole state that Set brings about.
type Desired struct {
	Identity  Identity
	Neighbors []Neighbor
	Routes    []brain.Route
}

// Equal says whether there is nothing to do from one to the other.
func (d Desired) Equal(other Desired) bool {
	return d.Identity == other.Identity && slices.Equal(d.Neighbors, other.Neighbors) && slices.EqualFunc(d.Routes, other.Routes, brain.Route.Equal)
}

// NeighborState is what is observed of one session.
type NeighborState struct {
	Address netip.Addr
	ASN     uint32
	// idle, connect, active, opensent, openconfirm, established
	State string
	// Why the session is not established, as far as it is known.
	Reason string
	Since  time.Time
	// Why the latest session that ended did so.
	Ended string
	// Only States fills it in.
	BFDUp bool
}

// Established reports whether routes reach this neighbor.
func (n NeighborState) Established() bool { return n.State == established }

const established = "established"

// Speaker owns the embedded BGP server. Its methods may be called from several
// goroutines.
type Speaker struct {
	log     *slog.Logger
	onState func(NeighborState)

	mu        sync.Mutex
	server    *server.BgpServer // nil: BGP is not wanted
	stopTasks context.CancelFunc
	identity  Identity
	neighbors map[netip.Addr]Neighbor
	announced map[netip.Prefix]announcement
	// Of neighbors that have any, the policy that brings them about, and how
	// many there were.
	attributes map[netip.Addr]Attributes
	export     exportPolicy
	exports    int

	statesMu sync.Mutex
	states   map[netip.Addr]NeighborState
	watched  map[netip.Addr]*watched
	// The server, whose BFD is asked without waiting for what mu guards.
	asked *server.BgpServer
	// What runs beside the server, until it is stopped; nil: it is.
	tasksCtx context.Context
	tasks    sync.WaitGroup
}

// What was told to the server, kept because a withdrawal repeats it.
type announcement struct {
	route brain.Route
	path  *apiutil.Path
}

// New makes a speaker without neighbors. onState hears of every change of a
// session's state; it must not block and must not call the speaker.
func New(log *slog.Logger, onState func(NeighborState)) *Speaker {
	return &Speaker{
		log:       log,
		onState:   onState,
		neighbors: map[netip.Addr]Neighbor{},
		announced: map[netip.Prefix]announcement{},
		states:    map[netip.Addr]NeighborState{},
		watched:   map[netip.Addr]*watched{},
	}
}

// Set brings about the desired state. What fails is reported, the rest is done
// nevertheless; the next Set tries again what is still missing.
func (s *Speaker) Set(ctx context.Context, want Desired) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.setIdentity(ctx, want.Identity); err != nil {
		return err
	}
	if s.server == nil {
		return nil
	}
	return errors.Join(
		s.setAttributes(ctx, want.Neighbors),
		s.setNeighbors(ctx, want.Neighbors),
		s.setRoutes(want.Routes),
	)
}

// Stop withdraws everything, ends the sessions and the server, and awaits what ran
// beside it.
func (s *Speaker) Stop() error {
	defer s.tasks.Wait() // which may wait for mu
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return nil
	}
	err := s.setRoutes(nil)
	s.stopServer()
	return err
}

// States lists the sessions by address.
func (s *Speaker) States() []NeighborState {
	s.statesMu.Lock()
	states, asked := slices.Collect(maps.Values(s.states)), s.asked
	s.statesMu.Unlock()
	up := bfdUp(asked)
	for i := range states {
		states[i].BFDUp = up[states[i].Address.String()]
	}
	slices.SortFunc(states, func(a, b NeighborState) int { return a.Address.Compare(b.Address) })
	return states
}

// Announced lists the prefixes that every established neighbor has from us.
func (s *Speaker) Announced() []brain.Route {
	s.mu.Lock()
	defer s.mu.Unlock()
	routes := make([]brain.Route, 0, len(s.announced))
	for _, a := range s.announced {
		routes = append(routes, a.route)
	}
	slices.SortFunc(routes, func(a, b brain.Route) int { return comparePrefixes(a.Prefix, b.Prefix) })
	return routes
}

// A changed identity ends every session, since it is part of each OPEN.
func (s *Speaker) setIdentity(ctx context.Context, want Identity) error {
	if want == s.identity {
		return nil
	}
	if s.server != nil {
		s.stopServer()
	}
	if want == (Identity{}) {
		return nil
	}
	return s.startServer(ctx, want)
}

func (s *Speaker) setNeighbors(ctx context.Context, want []Neighbor) error {
	wanted := make(map[netip.Addr]Neighbor, len(want))
	for _, n := range want {
		wanted[n.Address] = n
	}
	var failed []error
	for address, have := range s.neighbors {
		if wanted[address].session() != have.session() {
			failed = append(failed, s.removeNeighbor(ctx, address))
		}
	}
	for _, n := range want {
		if _, have := s.neighbors[n.Address]; have {
			s.neighbors[n.Address] = n
		} else {
			failed = append(failed, s.addNeighbor(ctx, n))
		}
	}
	return errors.Join(failed...)
}

func (s *Speaker) addNeighbor(ctx context.Context, n Neighbor) error {
	reason := notConnectedYet
	if n.Source.IsValid() && !isOurs(n.Source) {
		reason = noSource(n.Source)
	}
	s.watch(n)
	s.observe(NeighborState{Address: n.Address, ASN: n.ASN, State: "idle", Reason: reason})
	if err := s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: peerOf(n)}); err != nil {
		return fmt.Errorf("add BGP neighbor %s: %w", n.Address, err)
	}
	s.neighbors[n.Address] = n
	return nil
}

// isOurs: a session can come from the address.
func isOurs(address netip.Addr) bool {
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(address, 0)))
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

func (s *Speaker) removeNeighbor(ctx context.Context, address netip.Addr) error {
	if err := s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: address.String()}); err != nil {
		return fmt.Errorf("remove BGP neighbor %s: %w", address, err)
	}
	delete(s.neighbors, address)
	s.forget(address)
	return nil
}

// Withdrawals come first: a black hole hurts more than a late route.
func (s *Speaker) setRoutes(want []brain.Route) error {
	wanted := make(map[netip.Prefix]brain.Route, len(want))
	for _, r := range want {
		wanted[r.Prefix] = r
	}
	var failed []error
	for prefix := range s.announced {
		if _, keep := wanted[prefix]; !keep {
			failed = append(failed, s.withdraw(prefix))
		}
	}
	for prefix, route := range wanted {
		if have, ok := s.announced[prefix]; !ok || !have.route.Equal(route) {
			failed = append(failed, s.announce(route))
		}
	}
	return errors.Join(failed...)
}

func (s *Speaker) announce(route brain.Route) error {
	path, err := pathOf(route)
	if err != nil {
		return fmt.Errorf("announce %s: %w", route.Prefix, err)
	}
	if _, err := s.server.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}}); err != nil {
		return fmt.Errorf("announce %s: %w", route.Prefix, err)
	}
	s.announced[route.Prefix] = announcement{route: route, path: path}
	s.log.Debug("route announced", "prefix", route.Prefix, "next_hop", route.NextHop, "graceful_shutdown", route.GracefulShutdown)
	return nil
}

func (s *Speaker) withdraw(prefix netip.Prefix) error {
	path := s.announced[prefix].path
	if err := s.server.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}}); err != nil {
		return fmt.Errorf("withdraw %s: %w", prefix, err)
	}
	delete(s.announced, prefix)
	s.log.Debug("route withdrawn", "prefix", prefix)
	return nil
}

// beginBFD of a session that has been established since then, unless it is over.
//
// BFD begins with the session and ends with it, as BIRD's does. FRR has its own
// side before, and sets that up afresh once the session is established, since only
// then it knows the interface: our BFD, had it begun, would take that for the
// router's end, and end the session.
func (s *Speaker) beginBFD(ctx context.Context, address netip.Addr, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, have := s.neighbors[address]
	if state := s.state(address); !have || n.BFD == (BFD{}) || !state.Established() || state.Since != since {
		return
	}
	peer := peerOf(n)
	peer.Bfd = bfdOf(n.BFD)
	if _, err := s.server.UpdatePeer(ctx, &api.UpdatePeerRequest{Peer: peer}); err != nil {
		s.log.Error("BFD does not begin: the session has its hold time only", "neighbor", address, "error", err)
	}
}

// renew sets a neighbor with BFD up afresh after its session ended.
//
// GoBGP 4.8's BFD goes on after the session, and keeps a reset that it requests
// meanwhile for the next one: once the router had ended a session, none would ever
// last again.
func (s *Speaker) renew(ctx context.Context, address netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, have := s.neighbors[address]
	if have && n.BFD != (BFD{}) {
		s.setUpAfresh(ctx, n)
	}
}

// setUpAfresh what is set up.
func (s *Speaker) setUpAfresh(ctx context.Context, n Neighbor) {
	if err := s.server.DeletePeer(ctx, &api.DeletePeerRequest{Address: n.Address.String()}); err != nil {
		s.log.Warn("BGP neighbor cannot be set up afresh", "neighbor", n.Address, "error", err)
		return
	}
	if err := s.server.AddPeer(ctx, &api.AddPeerRequest{Peer: peerOf(n)}); err != nil {
		// The next Set tries again.
		delete(s.neighbors, n.Address)
		s.log.Error("BGP neighbor is not set up again", "neighbor", n.Address, "error", err)
	}
}

// watch the attempts to a neighbor.
func (s *Speaker) watch(n Neighbor) {
	s.statesMu.Lock()
	defer s.statesMu.Unlock()
	if former := s.watched[n.Address]; former != nil { // that could not be set up
		close(former.removed)
	}
	s.watched[n.Address] = &watched{Neighbor: n, own: s.identity, removed: make(chan struct{})}
}

// forget what was observed of a neighbor.
func (s *Speaker) forget(address netip.Addr) {
	s.statesMu.Lock()
	defer s.statesMu.Unlock()
	delete(s.states, address)
	if w := s.watched[address]; w != nil {
		close(w.removed)
		delete(s.watched, address)
	}
}

// observe keeps and reports a session's state if it is new, and says which there
// was before. Of an attempt that failed, explain knows more than GoBGP tells.
func (s *Speaker) observe(state NeighborState) (before, now NeighborState) {
	s.statesMu.Lock()
	have, known := s.states[state.Address]
	switch {
	case state.Established():
		state.Reason = ""
	case state.Reason == "" || known && !have.Established() && have.Reason != notConnectedYet:
		state.Reason = have.Reason
	}
	if known && have.State == state.State && have.Reason == state.Reason {
		s.statesMu.Unlock()
		return have, have
	}
	state.Since = time.Now()
	if known && have.State == state.State {
		state.Since = have.Since
	}
	state.Ended = have.Ended
	if have.Established() && !state.Established() {
		state.Ended = state.Reason
	}
	s.states[state.Address] = state
	s.statesMu.Unlock()
	s.onState(state)
	return have, state
}

func (s *Speaker) state(address netip.Addr) NeighborState {
	s.statesMu.Lock()
	defer s.statesMu.Unlock()
	return s.states[address]
}

func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}
