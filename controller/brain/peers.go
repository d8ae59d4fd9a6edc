package brain

// The other load balancers: fragments are redirected to the healthy ones.
// Each machine asks for itself; where they disagree for a moment, a datagram's
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
	// way to a peer. Peers are asked twelve times a second: a dead one loses its
	// share of fragments within half a second, and gets it back in the next.
	peerRise = 5
	peerFall = 3
	// Clusters that packets are spilled to are asked each second.
	spillRise = 2
)

// way is one address of a peer that is asked; the zero address is that of a
// peer that cannot be. Of a cluster that packets are spilled to, it is an
// address in its prefix, by which it is called.
type way struct {
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
	s.quiet = true
	d := s.peers[way{e.Peer, e.Address}]
	if d == nil || !d.step(e.OK, e.Reason, s.now) {
		return
	}
	to := "down"
	if e.OK {
		to = "up"
	}
	name := e.Peer
	if len(s.waysTo(e.Peer)) > 1 {
		name += " at " + e.Address.String()
	}
	s.note("peer", name, [...]string{unknown: "new", up: "up", down: "down"}[d.former], to, e.Reason)
	s.touch()
}

// adoptPeers keeps the opinions of ways that stay.
func (s *State) adoptPeers(c *config.Config) {
	s.ways = nil
	wanted := map[way]bool{}
	for _, target := range slices.Concat(compile.PeerTargets(c), compile.SpillTargets(c)) {
		w := way{target.Peer, target.To}
		s.ways = append(s.ways, w)
		wanted[w] = true
		if s.peers[w] == nil {
			rise := peerRise
			if target.Spill {
				rise = spillRise
			}
			s.peers[w] = &damped{rise: rise, fall: peerFall, since: s.now, reason: "not yet asked"}
		}
	}
	maps.DeleteFunc(s.peers, func(w way, _ *damped) bool { return !wanted[w] })
}

// waysTo lists a peer's ways in order of the config.
func (s *State) waysTo(peer string) []way {
	var ways []way
	for _, w := range s.ways {
		if w.peer == peer {
			ways = append(ways, w)
		}
	}
	return ways
}

// inheritPeers remembers which peers were healthy in the plan that runs: a
// controller that starts does not send their fragments elsewhere until it
// knows better.
func (s *State) inheritPeers(plan *planv1.Plan) {
	for _, peer := range plan.GetPeers() {
		s.inheritedPeers[peer.Name] = peer.Healthy
	}
}

// peerHealthy: one that answers by any of its addresses. A peer that was never
// seen is not.
func (s *State) peerHealthy(name string) bool {
	asked := false
	for _, w := range s.waysTo(name) {
		switch s.peers[w].verdict {
		case up:
			return true
		case down:
			asked = true
		}
	}
	return !asked && s.inheritedPeers[name]
}

// peerAddresses puts those first that answer: the forwarder tunnels to the
// first that it can reach.
func (s *State) peerAddresses(peer config.Peer) []netip.Addr {
	answers := func(address netip.Addr) int {
		if d := s.peers[way{peer.Name, address}]; d != nil && d.verdict == up {
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
	for _, w := range s.waysTo(prefix.String()) {
		if s.peers[w].verdict == down {
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
		v.Healthy = s.peers[way{target.Peer, target.To}].verdict != down
		v.Reason, v.Since = s.peerReason(target.Peer)
		views = append(views, v)
	}
	return views
}

// peerReason tells of each way, if they differ, and when the latest changed.
func (s *State) peerReason(name string) (string, time.Time) {
	var reasons []string
	var since time.Time
	ways := s.waysTo(name)
	for _, w := range ways {
		d := s.peers[w]
		reason := d.reason
		if d.verdict == unknown && s.peerHealthy(name) {
			reason = "as in the running plan"
		}
		if len(ways) > 1 {
			reason = w.address.String() + ": " + reason
		}
		reasons = append(reasons, reason)
		if d.since.After(since) {
			since = d.since
		}
	}
	return strings.Join(reasons, "; "), since
}
