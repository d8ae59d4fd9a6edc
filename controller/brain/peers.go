package brain

// The other load balancers: fragments are redirected to the healthy ones.
// Each machine asks for itself; where they disagree for a moment, a datagram's
// fragments meet at two machines.

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

const (
	// Answers in a row, or probes without one, that change the opinion of a
	// peer.
	peerRise = 2
	peerFall = 3
)

// PeerResult is the outcome of asking one peer once through the tunnel.
type PeerResult struct {
	Peer   string
	OK     bool
	Reason string
}

func (e PeerResult) apply(s *State) {
	s.quiet = true
	d := s.peers[e.Peer]
	if d == nil || !d.step(e.OK, e.Reason, s.now) {
		return
	}
	to := "down"
	if e.OK {
		to = "up"
	}
	s.note("peer", e.Peer, [...]string{unknown: "new", up: "up", down: "down"}[d.former], to, e.Reason)
	s.touch()
}

// adoptPeers keeps the opinions of peers that stay.
func (s *State) adoptPeers(peers []config.Peer) {
	wanted := make(map[string]bool, len(peers))
	for _, peer := range peers {
		wanted[peer.Name] = true
		if s.peers[peer.Name] == nil {
			s.peers[peer.Name] = &damped{rise: peerRise, fall: peerFall, since: s.now, reason: "not yet asked"}
		}
	}
	maps.DeleteFunc(s.peers, func(name string, _ *damped) bool { return !wanted[name] })
}

// inheritPeers remembers which peers were healthy in the plan that runs: a
// controller that starts does not send their fragments elsewhere until it
// knows better.
func (s *State) inheritPeers(plan *planv1.Plan) {
	for _, peer := range plan.GetPeers() {
		s.inheritedPeers[peer.Name] = peer.Healthy
	}
}

// peerHealthy: a peer that was never seen is not.
func (s *State) peerHealthy(name string) bool {
	d := s.peers[name]
	if d == nil || d.verdict == unknown {
		return s.inheritedPeers[name]
	}
	return d.verdict == up
}

// PeerView is one peer as people see it.
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
		d := s.peers[peer.Name]
		v := PeerView{Name: peer.Name, Addresses: slices.Clone(peer.Addresses), Healthy: s.peerHealthy(peer.Name), Reason: d.reason, Since: d.since}
		if d.verdict == unknown && v.Healthy {
			v.Reason = "as in the running plan"
		}
		views = append(views, v)
	}
	return views
}
