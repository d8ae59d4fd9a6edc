// Package election decides which machine owns which VIPs. It is the state machine of VRRP
// version 3 (RFC 9568 section 6.4) for every virtual router of one interface, and the actions
// of each state: advertisements, announcements of VIPs, answers to ARP and neighbour
// solicitations.
//
//	Tick | Configure | LinkChanged | StandingChanged |     Step(event, now)     Advertise | Announce | Probe |
//	AdvertisementHeard | ARPHeard | NeighborHeard       ─────────────────────►  AnswerARP | AnswerNeighbor |
//	                                                                            Changed | SecondOwner
//
// A virtual router is a VRID in one address family. A group with VIPs of both families is two
// virtual routers, elected by the same rules but independently, as in the RFC. All VIPs of a
// virtual router are in the same state.
//
// It is pure: each event has a time, from a clock that must continue while the process is
// stopped. Only Tick looks at timers, so a process that is late first handles what it has
// received, and then the time that has passed.
//
// **Invariant:** a machine that is not Active answers for no VIP and announces none.
//
// **Invariant:** memory depends only on the config and the link's gateways. No packet creates
// an entry anywhere.
//
// Intended deviations from RFC 9568:
//   - It uses the machine's own MAC address, never the virtual router's: a machine that is not the
//     owner forwards, too, and a switch has nothing to relearn.
//   - The router flag of neighbour advertisements is clear, and there are no router advertisements:
//     nobody takes VIPs for routers.
//   - No machine is the address owner in the RFC's sense (priority 255).
//   - An interval received from others is limited (activeIntervalMax), priority 0 never makes a
//     machine wait longer, and packets sent in reaction to others are limited (answerGap, claimGap).
package election

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/guideway/guideway/speaker/vrrp/packet"
)

const (
	// VIPsMax of an interface: their announcements take 20 s at the default pace.
	VIPsMax = 4096
	// PriorityMax of a machine; 255 is an address owner's (RFC 9568 section 5.2.4).
	PriorityMax = 254
	// SlowBy is how much lower the priority of a slow machine is: below that of each
	// machine that is not slow (Priorities).
	SlowBy = 128

	// An owner's interval that is longer than ours counts up to this, or up to ours if that
	// is more: else one forged advertisement with 41 s would silence all for two minutes. A
	// shorter one counts as ours: a hair trigger would make second owners.
	activeIntervalMax = time.Second
	// Between two advertisements that answer another's: who floods is not answered more.
	answerGap = packet.IntervalUnit
	// Between two rounds of announcements that others' claims cause.
	claimGap = time.Second
	// Between two SecondOwner of a virtual router.
	secondOwnerGap = 10 * time.Second
)

// State of a virtual router (RFC 9568 section 6.3).
type State uint8

// States.
const (
	Initialize State = iota
	Backup
	Active
)

func (s State) String() string { return [...]string{"initialize", "backup", "active"}[s] }

// Config of the virtual routers of an interface.
type Config struct {
	// Interval between advertisements: 10 ms to 40.95 s, in units of 10 ms.
	Interval time.Duration
	// NoPreempt: a machine that comes (back) leaves the VIPs where they are, and one that
	// gets slow keeps them.
	NoPreempt bool
	// PseudoHeader: see packet.Advertisement.
	PseudoHeader bool
	Groups       []Group
	// Probes are hosts on the link, of families that VIPs have, which answer ARP or neighbour
	// solicitations: the gateway, the other machines. With any, VIPs are owned only while
	// something is received: an answer, another machine's probe, or any other packet that the
	// Node is told of. Empty: the gateways of the link, of which one has to have answered once.
	Probes []netip.Addr
	Pace   Pace
}

// Group of VIPs that have one owner.
type Group struct {
	// VRID 1 to 255.
	VRID uint8
	// Priority of this machine, 1 to 254.
	Priority uint8
	// VIPs of either family. Those of IPv6 also have packet.VirtualLinkLocal.
	VIPs []netip.Addr
}

// Check what Step demands of a config.
func (c Config) Check() error {
	if c.Interval < packet.IntervalUnit || c.Interval > packet.IntervalMax || c.Interval%packet.IntervalUnit != 0 {
		return fmt.Errorf("interval %v: give 10ms to 40.95s, in steps of 10ms", c.Interval)
	}
	seen, vips := map[netip.Addr]uint8{}, 0
	groups := map[uint8]bool{}
	for _, g := range c.Groups {
		if g.VRID == 0 || groups[g.VRID] {
			return fmt.Errorf("VRID %d: give each group one of its own, 1 to 255", g.VRID)
		}
		groups[g.VRID] = true
		if g.Priority == 0 || g.Priority > PriorityMax {
			return fmt.Errorf("priority %d of VRID %d: give 1 to %d", g.Priority, g.VRID, PriorityMax)
		}
		for _, vip := range g.VIPs {
			if !vip.IsValid() || vip.Is4In6() || vip.IsMulticast() || vip.IsUnspecified() || vip.Zone() != "" {
				return fmt.Errorf("VIP %s of VRID %d: give an address that hosts can have", vip, g.VRID)
			}
			if other, twice := seen[vip]; twice {
				return fmt.Errorf("VIP %s is in VRID %d and %d: give it one owner", vip, other, g.VRID)
			}
			seen[vip] = g.VRID
		}
		vips += len(g.VIPs)
	}
	if vips > VIPsMax {
		return fmt.Errorf("%d VIPs: at most %d can be announced on one interface; have a static route to the rest by one VIP of the group", vips, VIPsMax)
	}
	return c.Pace.check()
}

// Link is the interface; the zero value is one that is not there.
type Link struct {
	Up  bool
	MAC packet.MAC
	// IPv4 and IPv6 are the primary addresses, which advertisements come from; of IPv6 a
	// link-local one. Not valid: there is none that can be used.
	IPv4, IPv6 netip.Addr
	MTU        int
	// Gateways are the next hops of routes on it, of families that VIPs have.
	Gateways []netip.Addr
}

// Standing of this machine, by the judge.
type Standing struct {
	// Withheld is why it may own nothing; empty: it may.
	Withheld string
	// Slow: others do better, at lower priority it goes on.
	Slow bool
}

// Event that a Node is told of.
type Event interface{ event() }

// The events.
type (
	// Tick is time alone.
	Tick struct{}
	// Configure anew. The config was checked.
	Configure struct{ Config Config }
	// LinkChanged, or is seen for the first time.
	LinkChanged struct{ Link Link }
	// StandingChanged, as the judge has it.
	StandingChanged struct{ Standing Standing }
	// AdvertisementHeard from another machine.
	AdvertisementHeard struct {
		Source        netip.Addr
		Advertisement packet.Advertisement
		// Age: it came so long ago, and was read now. Waiting for the next one began then.
		Age time.Duration
	}
	// ARPHeard on the link.
	ARPHeard struct{ ARP packet.ARP }
	// NeighborHeard on the link.
	NeighborHeard struct{ Neighbor packet.Neighbor }
)

func (Tick) event()               {}
func (Configure) event()          {}
func (LinkChanged) event()        {}
func (StandingChanged) event()    {}
func (AdvertisementHeard) event() {}
func (ARPHeard) event()           {}
func (NeighborHeard) event()      {}

// Action that a Node wants done at once.
type Action interface{ action() }

// The actions.
type (
	// Advertise to the family's group.
	Advertise struct {
		Source        netip.Addr
		Advertisement packet.Advertisement
	}
	// Announce a VIP: gratuitous ARP, or unsolicited neighbour advertisement.
	Announce struct {
		VIP netip.Addr
		// Operation of ARP, for IPv4.
		Operation uint16
	}
	// AnswerARP for a VIP.
	AnswerARP struct{ Request packet.ARP }
	// AnswerNeighbor for a VIP.
	AnswerNeighbor struct{ Solicitation packet.Neighbor }
	// Probe whether this host answers.
	Probe struct{ Target netip.Addr }
	// Changed state, for people.
	Changed struct {
		VRID     uint8
		IPv6     bool
		From, To State
		Reason   string
	}
	// SecondOwner is seen: another machine claims what is ours, and goes on when it was
	// told. Both are told to clients, and both forward.
	SecondOwner struct {
		VRID uint8
		IPv6 bool
		// Who: the source and priority of its advertisement, or the VIP and the MAC address
		// of its ARP or neighbour advertisement.
		Who string
	}
)

func (Advertise) action()      {}
func (Announce) action()       {}
func (AnswerARP) action()      {}
func (AnswerNeighbor) action() {}
func (Probe) action()          {}
func (Changed) action()        {}
func (SecondOwner) action()    {}
