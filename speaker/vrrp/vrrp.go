// Package vrrp owns VIPs on an interface by VRRP version 3 (RFC 9568), where there is no
// BGP router to announce them to.
//
//	Set(desired) ─► election ─► advertisements: raw sockets, 224.0.0.18 and ff02::12
//	                   ▲    └─► announcements and answers: packet sockets, ARP and ICMPv6
//	what is heard ─────┘
//
// packet has the bytes, election the decisions; here are the sockets, the interface and the
// clock. One goroutine does it all (Run). VIPs stand on no interface, so a process that is
// killed leaves nothing behind: from then on nobody answers for them, until another machine
// owns them.
//
// Ownership decides whom clients ask, and not who forwards: a machine forwards whatever
// reaches its MAC address. Stale neighbour entries and second owners drop no packet.
//
// # What an attacker on the segment can do
//
// VRRP has no authentication (RFC 9568 section 9), and neither have ARP and neighbour
// discovery. Whoever sends frames on the segment can
//   - own any VIP, by advertising a higher priority or by claiming its address: packets for
//     it then go where the attacker wants. Machines here see a claim of an address as a
//     second owner, announce the VIP again once a second, and say so; an owner of higher
//     priority is obeyed, as the RFC has it;
//   - keep VIPs without an owner, by advertising priority 255 and answering for none, as
//     long as it goes on; after its last advertisement for 3.5 s at most (election bounds
//     the interval that counts), and not for the two minutes that the format permits;
//   - make backups owners for a moment, by a forged priority 0.
//
// It cannot
//   - do so from beyond a router: TTL or hop limit 255 is required (RFC 5082);
//   - make a machine keep anything: memory depends on the config alone, and on a few
//     gateways;
//   - make a machine send much: answers to advertisements, announcements and answers to
//     ARP and solicitations each have a limit, the latter by sender, too; a question
//     is answered to its sender alone, by a frame no longer than the question (or to all
//     nodes, in duplicate address detection);
//   - crowd out what matters by packets that do not: other virtual routers' advertisements
//     and questions about other addresses are dropped by a filter in the kernel, before
//     they take room in a socket, unless nothing else is heard. Of the right ones 16,000 a
//     second of each kind are read, the rest is dropped: a flood can lose an owner's
//     advertisements to it, as can one that fills the link, and takes little processor time.
//
// Switches help, where that matters: dynamic ARP inspection, RA and ND guard, and access
// lists for protocol 112.
package vrrp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/speaker/vrrp/election"
	"github.com/guideway/guideway/speaker/vrrp/packet"
)

// After this long sockets that could not be opened are tried again, if the interface does not
// change before; and the interface is looked at when routes changed, as many may at a time.
const lookPause = time.Second

// Desired is the whole desired state. The zero value owns nothing.
type Desired struct {
	// Interface that clients, or their router, are on. Empty: none.
	Interface string
	election.Config
	Standing election.Standing
}

// Shown is what people see, never edited.
type Shown struct {
	Routers []election.RouterState
	Counts  election.Counts
	Probes  []election.ProbeState
	// Malformed packets by packet.Reason.
	Malformed [packet.ReasonsCount]uint64
	// SendsFailed of frames and advertisements.
	SendsFailed uint64
	// Late is the longest that something was done after it was due: the process did not run.
	Late time.Duration
	// Link is the interface as it is used.
	Link election.Link
	// Problem that somebody has to solve; empty: none.
	Problem string
}

// Speaker of VRRP on one interface.
type Speaker struct {
	log     *slog.Logger
	onEvent func(election.Action)
	shown   atomic.Pointer[Shown]

	mu   sync.Mutex
	want *Desired // not yet taken
	wake int      // an eventfd that ends a wait; -1: closed

	// Of Run only.
	node    election.Node
	have    Desired
	watch   *linkWatch
	segment *segment
	// The interface is to be looked at; at the latest then, unless zero.
	look   bool
	lookAt time.Time
	// What the filters were made for: see election.Node.Doubts.
	doubts bool

	malformed             [packet.ReasonsCount]uint64
	sendsFailed           uint64
	late                  time.Duration
	linkProblem, sendFail string
	problem               string // as it was said last
	entered               map[routerName]entered
	buffer                []byte
	// flooded: a socket had more than was read.
	flooded bool
}

type routerName struct {
	vrid   uint8
	isIPv6 bool
}

// entered: when a virtual router came into its state, by the election's clock, and by people's as
// that was then. Computed anew it would differ each time, and look like another state.
type entered struct{ at, shown time.Time }

// New makes a speaker that owns nothing, whose sockets Run closes. onEvent hears each election.Changed and
// election.SecondOwner; it must neither block nor call the speaker.
func New(log *slog.Logger, onEvent func(election.Action)) (*Speaker, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make an eventfd: %w", err)
	}
	watch, err := watchLinks()
	if err != nil {
		_ = unix.Close(wake)
		return nil, err
	}
	s := &Speaker{log: log, onEvent: onEvent, wake: wake, watch: watch, buffer: make([]byte, receiveBytes), entered: map[routerName]entered{}}
	s.shown.Store(&Shown{})
	return s, nil
}

// Set what is desired, all of it, and edit it no more; Run brings it about. A desired state
// that cannot be is refused, and the former one stays. It waits for nothing.
func (s *Speaker) Set(want Desired) error {
	if want.Interface == "" {
		want = Desired{Config: election.Config{Interval: time.Second}}
	}
	if err := want.Check(); err != nil {
		return fmt.Errorf("vrrp: %w", err)
	}
	s.mu.Lock()
	s.want = &want
	s.mu.Unlock()
	s.wakeUp()
	return nil
}

// Shown is the state of now.
func (s *Speaker) Shown() *Shown { return s.shown.Load() }

// Run until the context ends; then it resigns everything. It is called once.
func (s *Speaker) Run(ctx context.Context) {
	defer s.close()
	defer context.AfterFunc(ctx, s.wakeUp)()
	for ctx.Err() == nil {
		s.takeDesired()
		s.followLink()
		s.receive()
		s.step(election.Tick{})
		s.show()
		s.wait()
	}
	s.step(election.StandingChanged{Standing: election.Standing{Withheld: "the speaker stops"}})
	s.show()
}

// wakeUp Run, while there is one: the number of a closed descriptor may be another file's.
func (s *Speaker) wakeUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wake >= 0 {
		_, _ = unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

func (s *Speaker) close() {
	s.segment.close()
	s.watch.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = unix.Close(s.wake)
	s.wake = -1
}

// now is of a clock that goes on while the process, or the machine, stands still.
func now() time.Time {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &at); err != nil {
		panic(fmt.Sprintf("CLOCK_BOOTTIME: %v", err)) // since Linux 2.6.39
	}
	return time.Unix(at.Unix())
}

// takeDesired state, if there is a new one.
func (s *Speaker) takeDesired() {
	s.mu.Lock()
	want := s.want
	s.want = nil
	s.mu.Unlock()
	if want == nil {
		return
	}
	if want.Interface != s.have.Interface {
		s.step(election.StandingChanged{Standing: election.Standing{Withheld: "the interface changes"}})
		s.segment = s.segment.close()
		s.step(election.LinkChanged{})
	}
	s.have, s.look = *want, true
	s.step(election.Configure{Config: want.Config})
	s.step(election.StandingChanged{Standing: want.Standing})
}

// followLink: have the sockets that the interface and the config need, and say so.
func (s *Speaker) followLink() {
	link, routes := s.watch.changed(s.segment, s.buffer)
	if routes && s.lookAt.IsZero() {
		s.lookAt = now().Add(lookPause)
	}
	doubts := s.node.Doubts()
	s.look = s.look || link || doubts != s.doubts
	if !s.look && (s.lookAt.IsZero() || now().Before(s.lookAt)) {
		return
	}
	s.look, s.lookAt, s.doubts = false, time.Time{}, doubts
	s.linkProblem, s.sendFail = "", ""
	if err := s.openSegment(); err != nil {
		s.linkProblem, s.lookAt = err.Error(), now().Add(lookPause)
	}
	used := election.Link{}
	if s.segment != nil {
		used = s.segment.link
	}
	s.step(election.LinkChanged{Link: used})
}

// openSegment: what is not open, and close what is of an interface that was. What works is
// used, also if there is an error.
func (s *Speaker) openSegment() error {
	if s.have.Interface == "" {
		return nil
	}
	var gateways []netip.Addr
	if s.segment != nil {
		gateways = s.segment.link.Gateways
	}
	found, err := lookAtLink(s.have.Interface, s.have.Config, gateways)
	if isGone(err) || err == nil && s.segment != nil && s.segment.index != found.index {
		s.segment = s.segment.close()
	}
	if err != nil {
		return err // if the kernel only did not say, what was found before holds
	}
	if found.problem != nil {
		s.linkProblem = found.problem.Error()
	}
	if s.segment == nil {
		s.segment = &segment{index: found.index, name: s.have.Interface}
	}
	heard := heard{addresses: append(s.node.Watched(), found.Gateways...), all: s.doubts}
	err = errors.Join(s.segment.openIPv4(s.have.Config, heard), s.segment.openIPv6(s.have.Config, heard))
	s.segment.use(found.Link)
	return err
}

// step the election, and do what it wants.
func (s *Speaker) step(event election.Event) {
	for _, action := range s.node.Step(event, now()) {
		var err error
		switch a := action.(type) {
		case election.Advertise:
			if err = s.segment.advertise(a); err == nil {
				s.sendFail = ""
			}
		case election.Announce:
			err = s.segment.announce(a)
		case election.AnswerARP:
			err = s.segment.sendFrame(false, packet.AnswerARP(a.Request, s.segment.link.MAC))
		case election.AnswerNeighbor:
			err = s.segment.sendFrame(true, packet.AnswerNeighbor(a.Solicitation, s.segment.link.MAC))
		case election.Probe:
			err = s.segment.probe(a.Target)
		default:
			s.onEvent(action)
		}
		if err != nil {
			s.sendsFailed++
			s.sendFail = err.Error()
		}
	}
}

// show what is, and tell of a new problem.
func (s *Speaker) show() {
	problem := s.linkProblem
	if problem == "" {
		problem = s.sendFail
	}
	if problem != s.problem && problem != "" {
		s.log.Error("VRRP", "interface", s.have.Interface, "error", problem)
	}
	s.problem = problem
	shown := &Shown{
		Routers: s.node.States(), Counts: s.node.Counts(), Probes: s.node.Probes(), Malformed: s.malformed, SendsFailed: s.sendsFailed, Late: s.late, Problem: problem,
	}
	if s.segment != nil {
		shown.Link = s.segment.link
	}
	// The clock here is not that of people.
	boot := time.Now().Add(-time.Duration(now().UnixNano()))
	for i := range shown.Routers {
		shown.Routers[i].Since = s.enteredState(&shown.Routers[i], boot)
	}
	for i := range shown.Probes {
		if at := &shown.Probes[i].AnsweredAt; !at.IsZero() {
			*at = boot.Add(time.Duration(at.UnixNano()))
		}
	}
	s.shown.Store(shown)
}

func (s *Speaker) enteredState(r *election.RouterState, boot time.Time) time.Time {
	name := routerName{r.VRID, r.IPv6}
	if !s.entered[name].at.Equal(r.Since) {
		s.entered[name] = entered{at: r.Since, shown: boot.Add(time.Duration(r.Since.UnixNano()))}
	}
	return s.entered[name].shown
}

// wait until something comes, or is due.
func (s *Speaker) wait() {
	fds := []unix.PollFd{{Fd: int32(s.wake), Events: unix.POLLIN}, {Fd: int32(s.watch.fd), Events: unix.POLLIN}}
	next := s.node.Next()
	if !s.lookAt.IsZero() && s.lookAt.Before(next) {
		next = s.lookAt
	}
	if s.flooded {
		next = now().Add(receivePause)
	} else {
		for _, fd := range s.segment.descriptors() {
			fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
	}
	timeout := unix.NsecToTimespec(max(0, next.Sub(now()).Nanoseconds()))
	// Interrupted is as good as woken.
	_, _ = unix.Ppoll(fds, &timeout, nil)
	s.late = max(s.late, now().Sub(next))
	if fds[0].Revents != 0 {
		_, _ = unix.Read(s.wake, make([]byte, 8))
	}
}

// receive what came. Advertisements first: who announces has advertised before.
func (s *Speaker) receive() {
	s.flooded = false
	for _, receive := range []func(*segment) (election.Event, error){s.receiveIPv4, s.receiveIPv6, s.receiveARP, s.receiveNeighbor} {
		count := 0
		for ; count < receiveMax && s.receiveOne(receive); count++ {
		}
		s.flooded = s.flooded || count == receiveMax
	}
}

// receiveOne reports whether there was one. An error of the link is none: the link tells it
// better.
func (s *Speaker) receiveOne(receive func(*segment) (election.Event, error)) bool {
	event, err := receive(s.segment)
	reason := packet.Reason(0)
	switch {
	case errors.As(err, &reason):
		s.malformed[reason]++
	case err != nil:
		return false
	default:
		s.step(event)
	}
	return true
}

// wants: there are VIPs of the family.
func wants(config election.Config, ipv6 bool) bool {
	return slices.ContainsFunc(config.Groups, func(g election.Group) bool {
		for _, vip := range g.VIPs {
			if vip.Is6() == ipv6 {
				return true
			}
		}
		return false
	})
}
