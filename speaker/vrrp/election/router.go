package election

// One virtual router: RFC 9568 section 6.4, one function for each transition.

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/guideway/guideway/speaker/vrrp/packet"
)

// router is a virtual router.
type router struct {
	vrid     uint8
	ipv6     bool
	vips     []netip.Addr
	priority uint8

	state  State
	since  time.Time
	reason string
	// Active_Down_Timer of a Backup, Adver_Timer of an Active.
	timer time.Time
	// Active_Adver_Interval of a Backup.
	activeInterval time.Duration
	// Who advertised last, and that it resigned.
	owner         netip.Addr
	ownerPriority uint8
	resigned      bool

	// When the latest advertisement was sent, and SecondOwner was said.
	sentAt, secondAt time.Time
	// Who claimed what this machine owns, and when it did last.
	second        string
	secondHeardAt time.Time
	// Since when another machine claims a VIP, and which does.
	claimAt time.Time
	claim   string

	round
}

// priority of this machine now.
func (n *Node) priority(r *router) uint8 {
	if n.standing.Slow {
		return uint8(max(1, int(r.priority)-SlowBy))
	}
	return r.priority
}

// skew is Skew_Time (section 6.1).
func (n *Node) skew(r *router) time.Duration {
	return time.Duration(256-int(n.priority(r))) * r.activeInterval / 256
}

// change state.
func (n *Node) change(r *router, to State, reason string, now time.Time) {
	n.actions = append(n.actions, Changed{VRID: r.vrid, IPv6: r.ipv6, From: r.state, To: to, Reason: reason})
	r.state, r.since, r.reason = to, now, reason
	r.claimAt, r.resigned, r.second = time.Time{}, false, ""
}

// beginBackup from any state: wait for the owner, who advertises in that interval.
func (n *Node) beginBackup(r *router, activeInterval time.Duration, reason string, now time.Time) {
	n.change(r, Backup, reason, now)
	n.waitForOwner(r, activeInterval, now)
}

func (n *Node) waitForOwner(r *router, activeInterval time.Duration, since time.Time) {
	r.activeInterval, r.resigned = activeInterval, false
	r.timer = since.Add(3*activeInterval + n.skew(r)) // Active_Down_Interval
}

// becomeActive: the Active_Down_Timer is over.
func (n *Node) becomeActive(r *router, now time.Time) {
	reason := fmt.Sprintf("no advertisement of its priority or more for %v", (3*r.activeInterval + n.skew(r)).Round(time.Millisecond))
	if r.resigned {
		reason = "the owner resigned"
	}
	n.change(r, Active, reason, now)
	r.owner, r.ownerPriority = netip.Addr{}, 0
	n.counts.BecameActive++
	n.advertise(r, now)
	r.announceFrom(now)
}

// shutdown: at once the others may go on.
func (n *Node) shutdown(r *router, reason string, now time.Time) {
	if r.state == Active {
		n.send(r, 0, now)
	}
	if r.state != Initialize {
		n.change(r, Initialize, reason, now)
	}
	r.owner, r.ownerPriority = netip.Addr{}, 0
}

// advertise, and set the Adver_Timer.
func (n *Node) advertise(r *router, now time.Time) {
	n.send(r, n.priority(r), now)
	r.timer = now.Add(n.config.Interval)
}

func (n *Node) send(r *router, priority uint8, now time.Time) {
	source := n.source(r)
	if !n.link.Up || !source.IsValid() {
		return
	}
	n.counts.AdvertisementsSent++
	r.sentAt = now
	n.actions = append(n.actions, Advertise{source, packet.Advertisement{
		VRID: r.vrid, Priority: priority, Interval: n.config.Interval, PseudoHeader: n.config.PseudoHeader,
		Addresses: r.vips[:min(len(r.vips), max(1, packet.AddressesThatFit(n.link.MTU, r.ipv6)))],
	}})
}

// hearAdvertisement of whatever virtual router.
func (n *Node) hearAdvertisement(heard AdvertisementHeard, now time.Time) {
	if heard.Source == n.link.IPv4 || heard.Source == n.link.IPv6 {
		return // our own, by a hub or a loop
	}
	n.counts.AdvertisementsHeard++
	n.hear(now)
	for _, r := range n.routers {
		if r.vrid == heard.Advertisement.VRID && r.ipv6 == heard.Source.Is6() && r.state != Initialize {
			n.hearFor(r, heard, now)
			return
		}
	}
	n.counts.AdvertisementsIgnored++
}

func (n *Node) hearFor(r *router, heard AdvertisementHeard, now time.Time) {
	a := heard.Advertisement
	if a.Interval != n.config.Interval {
		n.counts.OtherIntervals++
	}
	if !r.ipv6 && a.PseudoHeader != n.config.PseudoHeader {
		n.counts.OtherChecksums++
	}
	if r.state == Active {
		n.hearAsActive(r, heard.Source, a, now)
	} else {
		came := now.Add(-max(0, min(heard.Age, now.Sub(n.ticked))))
		n.hearAsBackup(r, heard.Source, a, came)
	}
}

// hearAsBackup is section 6.4.2. Timers run since it came.
func (n *Node) hearAsBackup(r *router, source netip.Addr, a packet.Advertisement, came time.Time) {
	switch {
	case a.Priority == 0:
		// Never later than it is: priority 0, forged and repeated, would put it off for ever.
		if skewed := came.Add(n.skew(r)); skewed.Before(r.timer) {
			r.timer, r.resigned = skewed, true
		}
	case n.config.NoPreempt || a.Priority >= n.priority(r):
		n.waitForOwner(r, n.bounded(a.Interval), came)
	}
	r.owner, r.ownerPriority = source, a.Priority
}

func (n *Node) bounded(interval time.Duration) time.Duration {
	return min(max(interval, n.config.Interval), max(activeIntervalMax, n.config.Interval))
}

// hearAsActive is section 6.4.3.
func (n *Node) hearAsActive(r *router, source netip.Addr, a packet.Advertisement, now time.Time) {
	own := n.priority(r)
	switch {
	case a.Priority == 0:
		n.answer(r, now)
	case a.Priority > own || a.Priority == own && source.Compare(n.source(r)) > 0:
		n.beginBackup(r, n.bounded(a.Interval), fmt.Sprintf("%s advertises priority %d", source, a.Priority), now)
		r.owner, r.ownerPriority = source, a.Priority
	default:
		n.answer(r, now)
		n.seeSecondOwner(r, fmt.Sprintf("%s advertises priority %d", source, a.Priority), now)
	}
}

// answer another's advertisement, at a bounded rate.
func (n *Node) answer(r *router, now time.Time) {
	if now.Sub(r.sentAt) >= answerGap {
		n.advertise(r, now)
	}
}

// seeSecondOwner: clients may have heard it, so the VIPs are announced again. One that is
// heard in the first interval is the former owner, which has not heard us yet.
func (n *Node) seeSecondOwner(r *router, who string, now time.Time) {
	if now.Sub(r.since) <= n.config.Interval {
		return
	}
	n.counts.SecondOwners++
	r.second, r.secondHeardAt = who, now
	r.announceAgain(now)
	if r.secondAt.IsZero() || now.Sub(r.secondAt) >= secondOwnerGap {
		r.secondAt = now
		n.actions = append(n.actions, SecondOwner{VRID: r.vrid, IPv6: r.ipv6, Who: who})
	}
}

// hearClaim: another machine says, by ARP or neighbour advertisement, that a VIP is there.
// If it is the next owner, its advertisement is on the way: that is waited for.
func (n *Node) hearClaim(r *router, vip netip.Addr, mac packet.MAC, now time.Time) {
	if r.state == Active && r.claimAt.IsZero() {
		r.claimAt, r.claim = now, fmt.Sprintf("%s is said to be at %s", vip, mac)
	}
}

// seeClaim if it was made by one that is not the owner since.
func (n *Node) seeClaim(r *router, now time.Time) {
	if r.state == Active && !r.claimAt.IsZero() && now.Sub(r.claimAt) >= n.config.Interval {
		r.claimAt = time.Time{}
		n.seeSecondOwner(r, r.claim, now)
	}
}
