package election

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/speaker/vrrp/packet"
)

// Node is this machine on one interface. The zero value has no virtual router.
type Node struct {
	config   Config
	link     Link
	standing Standing
	// By VRID, IPv4 first; and by VIP.
	routers []*router
	vips    map[netip.Addr]*router
	hearing hearing
	// When targets of probes answered last.
	answeredAt map[netip.Addr]time.Time
	// Of announcements, and of answers.
	announced bucket
	answered  answers
	// Of the latest Step, and the latest Tick: what is heard came after that.
	last, ticked time.Time
	counts       Counts
	actions      []Action
}

// Counts of a Node since it began.
type Counts struct {
	AdvertisementsSent, AdvertisementsHeard uint64
	// Of AdvertisementsHeard: of a virtual router that is not configured, or of one that
	// does not run.
	AdvertisementsIgnored uint64
	// While Active, from one that should give way; and its ARP or neighbour advertisements.
	SecondOwners uint64
	// Whose interval is not ours, and whose IPv4 checksum is of the other kind.
	OtherIntervals, OtherChecksums uint64
	Announced, Answered            uint64
	// Not answered, as answers have a limit.
	NotAnswered              uint64
	BecameActive, StoodStill uint64
}

// Step takes an event, and says what to do. Times never go back.
func (n *Node) Step(event Event, now time.Time) []Action {
	n.actions = nil
	n.seeStandstill(now)
	n.last = now
	switch e := event.(type) {
	case Configure:
		n.configure(e.Config, now)
	case LinkChanged:
		n.setLink(e.Link, now)
	case StandingChanged:
		n.standing = e.Standing
	case AdvertisementHeard:
		n.hearAdvertisement(e, now)
	case ARPHeard:
		n.hearARP(e.ARP, now)
	case NeighborHeard:
		n.hearNeighbor(e.Neighbor, now)
	}
	n.settle(now)
	if _, tick := event.(Tick); tick {
		n.ticked = now
		n.expire(now)
	}
	return n.actions
}

// seeStandstill: if no Step came for as long as the others wait for the owner at least,
// one of them owns the VIPs now.
func (n *Node) seeStandstill(now time.Time) {
	still := now.Sub(n.last)
	if !n.last.IsZero() && still > 2*probeInterval {
		n.hearing.heardAt = n.hearing.heardAt.Add(still) // nobody was asked meanwhile
	}
	if n.last.IsZero() || still <= 3*n.config.Interval {
		return
	}
	n.ticked = now // sockets have lost the latest of what came meanwhile
	for _, r := range n.routers {
		if r.state != Initialize {
			n.counts.StoodStill++
			n.beginBackup(r, max(n.config.Interval, r.activeInterval), fmt.Sprintf("this process stood still for %v", still.Round(time.Millisecond)), now)
		}
	}
}

// configure virtual routers: those that stay keep their state.
func (n *Node) configure(config Config, now time.Time) {
	config.Pace = config.Pace.withDefaults()
	had, probes := n.routers, n.config.Probes
	n.config = config
	if !slices.Equal(probes, config.Probes) {
		n.aimAnew(now)
	}
	n.routers, n.vips = nil, map[netip.Addr]*router{}
	for _, g := range config.Groups {
		for _, ipv6 := range []bool{false, true} {
			if vips := g.of(ipv6); len(vips) > 0 {
				n.routers = append(n.routers, n.routerFor(had, g, ipv6, vips, now))
			}
		}
	}
	slices.SortFunc(n.routers, func(a, b *router) int {
		return cmp.Or(cmp.Compare(a.vrid, b.vrid), a.vips[0].Compare(b.vips[0]))
	})
	for _, r := range n.routers {
		for _, vip := range r.vips {
			n.vips[vip] = r
		}
	}
	for _, r := range had {
		if !slices.Contains(n.routers, r) {
			n.shutdown(r, "no longer configured", now)
		}
	}
}

// of the family, in order; of IPv6 the virtual router's link-local address first.
func (g Group) of(ipv6 bool) []netip.Addr {
	var vips []netip.Addr
	for _, vip := range g.VIPs {
		if vip.Is6() == ipv6 {
			vips = append(vips, vip)
		}
	}
	slices.SortFunc(vips, netip.Addr.Compare)
	if own := packet.VirtualLinkLocal(g.VRID); ipv6 && len(vips) > 0 && !slices.Contains(vips, own) {
		vips = slices.Insert(vips, 0, own)
	}
	return vips
}

func (n *Node) routerFor(had []*router, g Group, ipv6 bool, vips []netip.Addr, now time.Time) *router {
	for _, r := range had {
		if r.vrid == g.VRID && r.ipv6 == ipv6 {
			r.priority = g.Priority
			if !slices.Equal(r.vips, vips) {
				r.vips = vips
				r.announceFrom(now)
			}
			return r
		}
	}
	return &router{vrid: g.VRID, ipv6: ipv6, vips: vips, priority: g.Priority, since: now}
}

func (n *Node) setLink(link Link, now time.Time) {
	if link.Up && !n.link.Up {
		n.hearing = hearing{}
	}
	if link.MAC != n.link.MAC {
		for _, r := range n.routers {
			r.announceFrom(now)
		}
	}
	former := n.link.Gateways
	n.link = link
	if !slices.Equal(former, link.Gateways) && len(n.config.Probes) == 0 {
		n.aimAnew(now)
	}
}

// settle who runs: all that may, and no other.
func (n *Node) settle(now time.Time) {
	for _, r := range n.routers {
		why := n.whyNot(r)
		switch {
		case why == "" && r.state == Initialize:
			n.beginBackup(r, n.config.Interval, "started", now)
		case why != "" && r.state != Initialize:
			n.shutdown(r, why, now)
		case why != "":
			r.reason = why
		}
	}
}

// whyNot is why a virtual router does not run; empty: it does.
func (n *Node) whyNot(r *router) string {
	switch {
	case n.standing.Withheld != "":
		return n.standing.Withheld
	case !n.link.Up:
		return "the link is down"
	case !n.source(r).IsValid() && r.ipv6:
		return "the interface has no link-local IPv6 address"
	case !n.source(r).IsValid():
		return "the interface has no IPv4 address"
	case n.mustHear() && !n.hearing.hears:
		return "nothing is received on the interface"
	}
	return ""
}

func (n *Node) source(r *router) netip.Addr {
	if r.ipv6 {
		return n.link.IPv6
	}
	return n.link.IPv4
}

// expire timers.
func (n *Node) expire(now time.Time) {
	n.probe(now)
	for _, r := range n.routers {
		switch {
		case r.state == Backup && !now.Before(r.timer):
			n.becomeActive(r, now)
		case r.state == Active && !now.Before(r.timer):
			n.advertise(r, now)
		}
		n.seeClaim(r, now)
	}
	n.announce(now)
}

// Next is when to Tick at the latest. A Node that runs looks in each interval, as it could
// not tell a standstill otherwise.
func (n *Node) Next() time.Time {
	next := n.last.Add(time.Second)
	at := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	for _, r := range n.routers {
		if r.state == Initialize {
			continue
		}
		at(n.last.Add(n.config.Interval))
		at(r.timer)
		if r.state == Active {
			at(later(r.roundAt, n.announced.next(n.config.Pace.PerSecond)))
		}
	}
	if len(n.targets()) > 0 && n.link.Up {
		at(n.hearing.probeAt)
	}
	return next
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// RouterState is what people see of a virtual router.
type RouterState struct {
	VRID     uint8
	IPv6     bool
	State    State
	Since    time.Time
	Reason   string
	Priority uint8
	VIPs     []netip.Addr
	// Owner is who advertised last, and its priority, if it is not this machine; in Initialize
	// nobody is listened to.
	Owner         netip.Addr
	OwnerPriority uint8
	// Of the latest SecondOwner since it is Active, and when it was heard last; empty: none was.
	SecondOwner        string
	SecondOwnerHeardAt time.Time
}

// States of all virtual routers, by VRID, IPv4 first.
func (n *Node) States() []RouterState {
	states := make([]RouterState, 0, len(n.routers))
	for _, r := range n.routers {
		states = append(states, RouterState{
			VRID: r.vrid, IPv6: r.ipv6, State: r.state, Since: r.since, Reason: r.reason,
			Priority: n.priority(r), VIPs: r.vips, Owner: r.owner, OwnerPriority: r.ownerPriority,
			SecondOwner: r.second, SecondOwnerHeardAt: r.secondHeardAt,
		})
	}
	return states
}

// Counts since it began.
func (n *Node) Counts() Counts { return n.counts }
