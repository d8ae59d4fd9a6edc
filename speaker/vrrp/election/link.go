package election

// Actions beside the election: announces VIPs and answers ARP and neighbour solicitations at a
// limited rate, and finds out whether the link receives.

import (
	"cmp"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/speaker/vrrp/packet"
)

// Pace of announcements of all VIPs of an interface, because switches police ARP. Answers
// do not count.
type Pace struct {
	// PerSecond and Burst bound them; 0: 200, and a burst of 100.
	PerSecond, Burst int
	// Refresh: again after this long, for ever; 0: 60 s.
	Refresh time.Duration
}

// rounds of announcements come at these times after a machine became the owner, and then
// each Refresh. A frame may be lost, and a switch may learn late.
var rounds = [...]time.Duration{0, time.Second, 5 * time.Second}

const (
	// Answers in a second, in all and to one sender, and the sums of tokens that are saved.
	answersPerSecond, answersBurst           = 5000, 2000
	answersToOnePerSecond, answersToOneBurst = 500, 1000
	// Senders share as many buckets, by their MAC addresses: one that floods does not keep
	// more than a few others from being answered.
	answersBuckets = 256

	// Each target is probed this often. The link receives nothing if for so long nothing was
	// heard; in the time before, in which other machines probe twice, any host may prove the
	// contrary.
	probeInterval = time.Second
	doubtAfter    = 1500 * time.Millisecond
	deafAfter     = 3500 * time.Millisecond
)

func (p Pace) withDefaults() Pace {
	return Pace{PerSecond: cmp.Or(p.PerSecond, 200), Burst: cmp.Or(p.Burst, 100), Refresh: cmp.Or(p.Refresh, time.Minute)}
}

func (p Pace) check() error {
	p = p.withDefaults()
	if p.PerSecond < 1 || p.PerSecond > 10000 || p.Burst < 1 || p.Burst > 10000 || p.Refresh < time.Second || p.Refresh > time.Hour {
		return errors.New("announcements: give 1 to 10000 a second, a burst of 1 to 10000, and again every 1s to 1h")
	}
	return nil
}

// bucket of tokens. The zero value is full.
type bucket struct {
	// Since when there would be tokens if none was taken: so far back as the burst goes.
	at time.Time
}

// take a token at a rate of so many in a second, of which at most a burst is saved.
func (b *bucket) take(perSecond, burst int, now time.Time) bool {
	token := time.Second / time.Duration(perSecond)
	b.at = later(b.at, now.Add(-time.Duration(burst)*token))
	if b.at.Add(token).After(now) {
		return false
	}
	b.at = b.at.Add(token)
	return true
}

// next is when there is a token again.
func (b *bucket) next(perSecond int) time.Time {
	return b.at.Add(time.Second / time.Duration(max(1, perSecond)))
}

// round of announcements of a virtual router that is Active.
type round struct {
	// When the first round began, how many were, and which VIP is next.
	begunAt      time.Time
	number, next int
	// When the round begins, or did.
	roundAt time.Time
	// When others' claims last caused one.
	againAt time.Time
}

// announceFrom the first round on.
func (r *round) announceFrom(now time.Time) {
	*r = round{begunAt: now, roundAt: now, againAt: r.againAt}
}

// end the round.
func (r *round) end(refresh time.Duration, now time.Time) {
	r.number, r.next = r.number+1, 0
	r.roundAt = now.Add(refresh)
	if r.number < len(rounds) {
		r.roundAt = later(now, r.begunAt.Add(rounds[r.number]))
	}
}

// operation of ARP in the round: hosts that learn by only one of the two hear it, too.
func (r *round) operation() uint16 {
	if r.number%2 == 0 {
		return packet.ARPRequest
	}
	return packet.ARPReply
}

// announceAgain now, at a bounded rate.
func (r *round) announceAgain(now time.Time) {
	if now.Sub(r.againAt) >= claimGap {
		r.againAt = now
		if r.roundAt.After(now) {
			r.roundAt = now
		}
	}
}

// announce what is due, first rounds first.
func (n *Node) announce(now time.Time) {
	var due []*router
	for _, r := range n.routers {
		if r.state == Active && !now.Before(r.roundAt) {
			due = append(due, r)
		}
	}
	slices.SortStableFunc(due, func(a, b *router) int { return cmp.Compare(a.number, b.number) })
	for _, r := range due {
		if !n.announceRound(r, now) {
			return
		}
	}
}

// announceRound reports whether it came to the round's end.
func (n *Node) announceRound(r *router, now time.Time) bool {
	pace := n.config.Pace
	for ; r.next < len(r.vips); r.next++ {
		if !n.announced.take(pace.PerSecond, pace.Burst, now) {
			return false
		}
		n.counts.Announced++
		n.actions = append(n.actions, Announce{VIP: r.vips[r.next], Operation: r.operation()})
	}
	r.end(pace.Refresh, now)
	return true
}

// answers to ARP and neighbour solicitations are bounded in all and by sender.
type answers struct {
	all     bucket
	senders [answersBuckets]bucket
}

func (a *answers) allow(sender packet.MAC, now time.Time) bool {
	low := sender[5] ^ sender[4]*31 ^ sender[3]*57
	return a.senders[low].take(answersToOnePerSecond, answersToOneBurst, now) && a.all.take(answersPerSecond, answersBurst, now)
}

func (n *Node) mayAnswer(sender packet.MAC, now time.Time) bool {
	if !n.answered.allow(sender, now) {
		n.counts.NotAnswered++
		return false
	}
	n.counts.Answered++
	return true
}

func (n *Node) hearARP(a packet.ARP, now time.Time) {
	if a.SenderMAC == n.link.MAC {
		return
	}
	n.hearFrom(a.Sender, now)
	if r := n.vips[a.Sender]; r != nil {
		n.hearClaim(r, a.Sender, a.SenderMAC, now)
		return
	}
	r := n.vips[a.Target]
	if a.Operation == packet.ARPRequest && r != nil && r.state == Active && n.mayAnswer(a.SenderMAC, now) {
		n.actions = append(n.actions, AnswerARP{Request: a})
	}
}

func (n *Node) hearNeighbor(s packet.Neighbor, now time.Time) {
	if s.Sender == n.link.MAC {
		return
	}
	if s.Solicitation {
		n.hear(now)
	} else {
		n.hearFrom(s.Target, now)
	}
	r := n.vips[s.Target]
	if r == nil {
		return
	}
	if !s.Solicitation {
		n.hearClaim(r, s.Target, s.Sender, now)
		return
	}
	if r.state == Active && n.mayAnswer(s.Sender, now) {
		n.actions = append(n.actions, AnswerNeighbor{Solicitation: s})
	}
}

// hearing is whether the link receives.
type hearing struct {
	hears   bool
	heardAt time.Time
	probeAt time.Time
}

// hear: a packet that is not our own came.
func (n *Node) hear(now time.Time) { n.hearing.hears, n.hearing.heardAt = true, now }

// hearFrom a host, which may be one that is probed.
func (n *Node) hearFrom(host netip.Addr, now time.Time) {
	n.hear(now)
	if slices.Contains(n.targets(), host) {
		n.answeredAt[host] = now
	}
}

// targets of probes: the hosts that the config names, else the gateways.
func (n *Node) targets() []netip.Addr {
	if len(n.config.Probes) > 0 {
		return n.config.Probes
	}
	return n.link.Gateways
}

// aimAnew at targets that are not what they were: they have their time to answer.
func (n *Node) aimAnew(now time.Time) {
	if slices.ContainsFunc(n.routers, func(r *router) bool { return r.state != Initialize }) {
		n.hear(now)
	}
	answered := map[netip.Addr]time.Time{}
	for _, target := range n.targets() {
		if at, has := n.answeredAt[target]; has {
			answered[target] = at
		}
	}
	n.answeredAt = answered
}

// mustHear: VIPs are owned only while something is received. A gateway that never answered
// demands nothing: it may filter, or not be there.
func (n *Node) mustHear() bool {
	return len(n.config.Probes) > 0 || slices.ContainsFunc(n.link.Gateways, func(gateway netip.Addr) bool {
		return n.canProbe(gateway) && !n.answeredAt[gateway].IsZero()
	})
}

func (n *Node) canProbe(target netip.Addr) bool {
	return target.Is6() && n.link.IPv6.IsValid() || target.Is4() && n.link.IPv4.IsValid()
}

// Doubts that the link receives: now each packet matters, whatever it concerns.
func (n *Node) Doubts() bool {
	return n.link.Up && n.mustHear() && n.last.Sub(n.hearing.heardAt) > doubtAfter
}

// probe hosts that answer. Other machines hear the questions, as they have the same gateway
// as a rule: one that is silent for all of them takes no VIPs away.
func (n *Node) probe(now time.Time) {
	if len(n.targets()) == 0 || !n.link.Up {
		return
	}
	if n.hearing.hears && now.Sub(n.hearing.heardAt) > deafAfter {
		n.hearing.hears = false
		n.settle(now)
	}
	if now.Before(n.hearing.probeAt) {
		return
	}
	n.hearing.probeAt = now.Add(probeInterval)
	for _, target := range n.targets() {
		if n.canProbe(target) {
			n.actions = append(n.actions, Probe{Target: target})
		}
	}
}

// ProbeState is what people see of a host that is probed.
type ProbeState struct {
	Target netip.Addr
	// Gateway, and not named by the config.
	Gateway bool
	Answers bool
	// When it answered last; zero: it never did.
	AnsweredAt time.Time
}

// Probes that are sent, and what comes back.
func (n *Node) Probes() (states []ProbeState) {
	for _, target := range n.targets() {
		at := n.answeredAt[target]
		states = append(states, ProbeState{Target: target, Gateway: len(n.config.Probes) == 0, Answers: n.last.Sub(at) <= deafAfter, AnsweredAt: at})
	}
	return states
}

// Watched are the addresses of which the Node wants to hear ARP and neighbour discovery,
// beside the link's gateways.
func (n *Node) Watched() []netip.Addr {
	watched := slices.Clone(n.config.Probes)
	for _, r := range n.routers {
		watched = append(watched, r.vips...)
	}
	return watched
}
