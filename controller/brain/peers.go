package brain

// The other load balancers: fragments are redirected to the healthy ones. Each machine
// probes by itself; while their results differ, fragments of one datagram may be sent to
// two machines.

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
	if s.peers.hear(e, &s.step) {
		s.health.spillChanged(&s.step)
	}
}

// hear a result, and report whether it changes a verdict.
func (p *peersState) hear(e PeerResult, at *step) (isNews bool) {
	d := p.verdicts[path{e.Peer, e.Address}]
	if d == nil || !d.step(e.OK, e.Reason, at.now) {
		return false
	}
	to := "down"
	if e.OK {
		to = "up"
	}
	name := e.Peer
	if len(p.pathsTo(e.Peer)) > 1 {
		name += " at " + e.Address.String()
	}
	at.note("peer", name, [...]string{unknown: "new", up: "up", down: "down"}[d.former], to, e.Reason)
	p.changes++
	return true
}

// adopt keeps the verdicts on paths that stay.
func (p *peersState) adopt(c *config.Config, now time.Time) {
	p.paths = nil
	wanted := map[path]bool{}
	for _, target := range slices.Concat(compile.PeerTargets(c), compile.SpillTargets(c)) {
		to := path{target.Peer, target.To}
		p.paths = append(p.paths, to)
		wanted[to] = true
		if p.verdicts[to] == nil {
			rise := peerRise
			if target.Spill {
				rise = spillRise
			}
			p.verdicts[to] = &damped{rise: rise, fall: peerFall, since: now, reason: "not yet probed"}
		}
	}
	maps.DeleteFunc(p.verdicts, func(to path, _ *damped) bool { return !wanted[to] })
}

// pathsTo lists a peer's paths in order of the config.
func (p *peersState) pathsTo(peer string) []path {
	var paths []path
	for _, to := range p.paths {
		if to.peer == peer {
			paths = append(paths, to)
		}
	}
	return paths
}

// inherit remembers which peers were healthy in the plan that runs: a
// controller that starts does not send their fragments elsewhere until it
// knows better.
func (p *peersState) inherit(plan *planv1.Plan) {
	for _, peer := range plan.GetPeers() {
		p.inherited[peer.Name] = peer.Healthy
	}
}

// isHealthy: one that answers by any of its addresses. A peer that was never
// seen is not.
func (p *peersState) isHealthy(name string) bool {
	asked := false
	for _, to := range p.pathsTo(name) {
		switch p.verdicts[to].verdict {
		case up:
			return true
		case down:
			asked = true
		}
	}
	return !asked && p.inherited[name]
}

// isOneWell: one that answers now, whatever a running plan said.
func (p *peersState) isOneWell(in *inputs) bool {
	return in != nil && slices.ContainsFunc(in.config.Peers, func(peer config.Peer) bool {
		return slices.ContainsFunc(p.pathsTo(peer.Name), func(to path) bool { return p.verdicts[to].verdict == up })
	})
}

// addresses puts those first that answer: the forwarder tunnels to the
// first that it can reach.
func (p *peersState) addresses(peer config.Peer) []netip.Addr {
	answers := func(address netip.Addr) int {
		if d := p.verdicts[path{peer.Name, address}]; d != nil && d.verdict == up {
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
func (p *peersState) spillDown(prefix netip.Prefix) bool {
	for _, to := range p.pathsTo(prefix.String()) {
		if p.verdicts[to].verdict == down {
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

func (p *peersState) view(c *config.Config) []PeerView {
	var views []PeerView
	for _, peer := range c.Peers {
		v := PeerView{Name: peer.Name, Addresses: slices.Clone(peer.Addresses), Healthy: p.isHealthy(peer.Name)}
		v.Reason, v.Since = p.reason(peer.Name)
		views = append(views, v)
	}
	for _, target := range compile.SpillTargets(c) {
		v := PeerView{Name: target.Peer, Addresses: []netip.Addr{target.To}}
		v.Healthy = p.verdicts[path{target.Peer, target.To}].verdict != down
		v.Reason, v.Since = p.reason(target.Peer)
		views = append(views, v)
	}
	return views
}

// reason is that of each path, if there are several, and when the latest
// changed.
func (p *peersState) reason(name string) (string, time.Time) {
	var reasons []string
	var since time.Time
	paths := p.pathsTo(name)
	for _, to := range paths {
		d := p.verdicts[to]
		reason := d.reason
		if d.verdict == unknown && p.isHealthy(name) {
			reason = "as in the running plan"
		}
		if len(paths) > 1 {
			reason = to.address.String() + ": " + reason
		}
		reasons = append(reasons, reason)
		if d.since.After(since) {
			since = d.since
		}
	}
	return strings.Join(reasons, "; "), since
}
