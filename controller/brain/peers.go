package brain

// The other load balancers: fragments are redirected to the healthy ones.
// Each machine probes by itself; where they disagree for a moment, a datagram's
// fragments meet at two machines.

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

const (
	// Answers in a row, or probes without one, that change the opinion of a
	// path to a peer. Peers are probed twelve times a second: a dead one loses its
	// share of fragments within half a second, and gets it back in the next.
	peerRise = 5
	peerFall = 3
	// Clusters that packets are spilled to are asked each second.
	spillRise = 2
)

// peersState is what is known of the paths to peers.
type peersState struct {
	verdicts map[path]*damped
	// Its keys, in order of the config.
	paths []path
	// What the running plan said of peers that were not judged yet.
	inherited map[string]bool
	// How often a verdict changed.
	changes uint64
}

// path is one address of a peer that is probed; the zero address is that of a
// peer that cannot be. Of a cluster that packets are spilled to, it is an
// address in its prefix, by which it is called.
type path struct {
	peer    string
	address netip.Addr
}

// PeerResult is the outcome of asking one peer once, by one of its addresses.
type PeerResult struct {
	Peer    string
	Address netip.Addr
	OK      bool
	Reason  string
}

func (e PeerResult) apply(s *State) {
	d := s.peers.verdicts[path{e.Peer, e.Address}]
	if d == nil || !d.step(e.OK, e.Reason, s.now) {
		return
	}
	to := "down"
	if e.OK {
		to = "up"
	}
	name := e.Peer
	if len(s.pathsTo(e.Peer)) > 1 {
		name += " at " + e.Address.String()
	}
	s.note("peer", name, [...]string{unknown: "new", up: "up", down: "down"}[d.former], to, e.Reason)
	s.peers.changes++
	s.spillChanged()
}

// adoptPeers keeps the verdicts on paths that stay.
func (s *State) adoptPeers(c *config.Config) {
	s.peers.paths = nil
	wanted := map[path]bool{}
	for _, target := range slices.Concat(compile.PeerTargets(c), compile.SpillTargets(c)) {
		p := path{target.Peer, target.To}
		s.peers.paths = append(s.peers.paths, p)
		wanted[p] = true
		if s.peers.verdicts[p] == nil {
			rise := peerRise
			if target.Spill {
				rise = spillRise
			}
			s.peers.verdicts[p] = &damped{rise: rise, fall: peerFall, since: s.now, reason: "not yet probed"}
		}
	}
	maps.DeleteFunc(s.peers.verdicts, func(p path, _ *damped) bool { return !wanted[p] })
}

// pathsTo lists a peer's paths in order of the config.
func (s *State) pathsTo(peer string) []path {
	var paths []path
	for _, p := range s.peers.paths {
		if p.peer == peer {
			paths = append(paths, p)
		}
	}
	return paths
}

// inheritPeers remembers which peers were healthy in the plan that runs: a
// controller that starts does not send their fragments elsewhere until it
// knows better.
func (s *State) inheritPeers(plan *planv1.Plan) {
	for _, peer := range plan.GetPeers() {
		s.peers.inherited[peer.Name] = peer.Healthy
	}
}

// peerHealthy: one that answers by any of its addresses. A peer that was never
// seen is not.
func (s *State) peerHealthy(name string) bool {
	asked := false
	for _, p := range s.pathsTo(name) {
		switch s.peers.verdicts[p].verdict {
		case up:
			return true
		case down:
			asked = true
		}
	}
	return !asked && s.peers.inherited[name]
}

// peerWell: one that answers now, whatever a running plan said.
func (s *State) peerWell() bool {
	if s.current == nil {
		return false
	}
	return slices.ContainsFunc(s.current.config.Peers, func(peer config.Peer) bool {
		return slices.ContainsFunc(s.pathsTo(peer.Name), func(p path) bool { return s.peers.verdicts[p].verdict == up })
	})
}

// peerAddresses puts those first that answer: the forwarder tunnels to the
// first that it can reach.
func (s *State) peerAddresses(peer config.Peer) []netip.Addr {
	answers := func(address netip.Addr) int {
		if d := s.peers.verdicts[path{peer.Name, address}]; d != nil && d.verdict == up {
			return 0
		}
		return 1
	}
	addresses := slices.Clone(peer.Addresses)
	slices.SortStableFunc(addresses, func(a, b netip.Addr) int { return answers(a) - answers(b) })
	return addresses
}

// spillDown: a cluster that packets are spilled to and that does not answer.
// One that was not asked yet, or cannot be, is not down.
func (s *State) spillDown(prefix netip.Prefix) bool {
	for _, p := range s.pathsTo(prefix.String()) {
		if s.peers.verdicts[p].verdict == down {
			return true
		}
	}
	return false
}

// PeerView is one peer, or one cluster that packets are spilled to, as people
// see it.
type PeerView struct {
	Name      string
	Addresses []netip.Addr
	Healthy   bool
	Reason    string
	Since     time.Time
}

func (s *State) viewPeers() []PeerView {
	var views []PeerView
	for _, peer := range s.current.config.Peers {
		v := PeerView{Name: peer.Name, Addresses: slices.Clone(peer.Addresses), Healthy: s.peerHealthy(peer.Name)}
		v.Reason, v.Since = s.peerReason(peer.Name)
		views = append(views, v)
	}
	for _, target := range compile.SpillTargets(s.current.config) {
		v := PeerView{Name: target.Peer, Addresses: []netip.Addr{target.To}}
		v.Healthy = s.peers.verdicts[path{target.Peer, target.To}].verdict != down
		v.Reason, v.Since = s.peerReason(target.Peer)
		views = append(views, v)
	}
	return views
}

// peerReason is that of each path, if there are several, and when the latest
// changed.
func (s *State) peerReason(name string) (string, time.Time) {
	var reasons []string
	var since time.Time
	paths := s.pathsTo(name)
	for _, p := range paths {
		d := s.peers.verdicts[p]
		reason := d.reason
		if d.verdict == unknown && s.peerHealthy(name) {
			reason = "as in the running plan"
		}
		if len(paths) > 1 {
			reason = p.address.String() + ": " + reason
		}
		reasons = append(reasons, reason)
		if d.since.After(since) {
			since = d.since
		}
	}
	return strings.Join(reasons, "; "), since
}
