// Package judge decides from a forwarder's health answers whether it forwards, and whether it
// is slow. The speaker announces routes by this judgement, and the controller shows it: there
// is only this one.
//
//	Hear(answer) | Lose(reason) | Wait(reason) | HandOver | Check(time) ─► Reason: empty, or what is wrong
//	                                                                    └► Slow: empty, or what is slow
//
// **Invariant:** a machine that lacks processor time is slow, never unhealthy, unless a peer is
// known to be healthy (StarvedMax). Otherwise all machines that share their load would withdraw
// their routes at once.
//
// It is pure: answers and the time are its input.
package judge

import (
	"fmt"
	"time"
)

const (
	// HeartbeatAgeMax: a thread without a heartbeat for this long hangs if the kernel
	// does not say what it does. One that does not wait for a processor is found
	// before (Thread.Hangs). A dead forwarder is seen at once, by its socket.
	HeartbeatAgeMax = time.Second
	// WaitMax: a thread that waited longer for a processor makes the machine slow.
	// Packets wait as long, or are dropped when the device's queue is full.
	WaitMax = time.Second
	// StarvedMax: a thread that waited this long counts as hanging where a peer is
	// known to be well, which takes the traffic.
	StarvedMax = 5 * time.Second
	// HelperAgeMax: a thread that packets do not need at once hangs, or waits for a
	// processor, if it had no heartbeat for this long. Its rounds take a second at most.
	HelperAgeMax = 5 * time.Second
	// SlowQuiet: a machine is slow until nothing was slow for this long. Each change
	// has routers choose again.
	SlowQuiet = 30 * time.Second
	// AnswerAgeMax: who asks reports within a second, also that there is no answer. If
	// nothing was heard for longer, it was this process that did not run.
	AnswerAgeMax = 1500 * time.Millisecond
	// HandOverMax: a hand-over from one forwarder process to the next takes
	// milliseconds in which packets wait; nothing that is heard, or not heard,
	// meanwhile withdraws a route. After this long it counts as failed.
	HandOverMax = 2 * time.Second
	// NextHopsMax: a forwarder that comes back resolves its next hops within
	// milliseconds; until then it would drop packets. A backend that is gone has
	// none, and keeps nothing back for longer than this.
	NextHopsMax = 2 * time.Second
)

// Answer is what a forwarder answers about its health.
type Answer struct {
	// When it was asked.
	Asked      time.Time
	PID        uint32
	Generation uint64
	Threads    []Thread
	Devices    []Device
	// Threads that packets do not need at once.
	Helpers []Thread
	// Active backends without a next hop.
	Unresolved uint32
	// Since the thread that sends health checks through the tunnels went round its
	// loop; 0: there is none. Clients' packets do not need it.
	ProbesAge time.Duration
	// A successor is about to go on in its place.
	HandingOver bool
	// It takes no more packets.
	Stopping bool
}

// Thread that packets need: if any of them hangs, the machine forwards
// nothing, or not all of it.
type Thread struct {
	Name         string
	HeartbeatAge time.Duration
	// It will not have another heartbeat: it neither runs nor waits for a
	// processor, or runs without going round its loop.
	Hangs bool
	// It has no heartbeat because it waits for a processor.
	Waits bool
}

// Device that it forwards on.
type Device struct {
	Interface string
	Up        bool
}

// Forwarder is what is held of one forwarder. The zero value is not ready: use
// New.
type Forwarder struct {
	// Empty: it is well.
	reason string
	since  time.Time

	// What was slow last, and when it was so; empty: nothing, for SlowQuiet.
	slow   string
	slowAt time.Time
	// Since when no answer came for want of a processor; zero: one came.
	starvedSince time.Time
	// Another machine is known to forward well.
	peerWell bool

	// The latest request was answered, by this process.
	answers bool
	pid     uint32
	// When that request was sent.
	heardAt time.Time

	// It must forward by this plan or a later one, by answers to what was asked
	// after requiredAt.
	required   uint64
	requiredAt time.Time

	// Until then a hand-over may take; zero: none is under way.
	handOverEnd time.Time
	// What else would have made it unwell meanwhile; empty: nothing.
	handOverReason string
	// How the latest one ended.
	handedOver string

	// Since when only next hops are waited for; zero: they are not.
	resolvingSince time.Time
}

// New is a forwarder of which nothing was heard yet.
func New() Forwarder { return Forwarder{reason: "not yet connected"} }

// Reason is empty for a forwarder that is well.
func (f *Forwarder) Reason() string { return f.reason }

// Slow is empty for a forwarder that was not slow for a while.
func (f *Forwarder) Slow() string { return f.slow }

// KnowPeers: whether another machine is known to forward well.
func (f *Forwarder) KnowPeers(well bool) { f.peerWell = well }

// Since when it is well, or not.
func (f *Forwarder) Since() time.Time { return f.since }

// Answers reports whether the latest request was answered.
func (f *Forwarder) Answers() bool { return f.answers }

// HeardAt is when the latest request that was answered was sent.
func (f *Forwarder) HeardAt() time.Time { return f.heardAt }

// HandingOver: what looks like a death is none yet.
func (f *Forwarder) HandingOver() bool { return !f.handOverEnd.IsZero() }

// HandedOver says how the latest hand-over ended.
func (f *Forwarder) HandedOver() string { return f.handedOver }

// Require the plan of this generation, or a later one; 0: any, or none. What was
// asked before says nothing of it.
func (f *Forwarder) Require(generation uint64, now time.Time) {
	f.required, f.requiredAt = generation, now
}

// Hear an answer.
func (f *Forwarder) Hear(a Answer, now time.Time) {
	switch {
	case a.HandingOver:
		f.BeginHandOver(now)
	case f.HandingOver() && a.PID != f.pid:
		f.endHandOver("its successor answers")
	}
	f.answers, f.pid, f.heardAt, f.starvedSince = true, a.PID, a.Asked, time.Time{}
	reason := f.unwell(a)
	f.seeWaits(a, now)
	if reason == "" {
		reason = f.resolving(a, now)
	} else {
		f.resolvingSince = time.Time{}
	}
	f.set(reason, now)
}

// Lose it: there is no answer, for this reason.
func (f *Forwarder) Lose(reason string, now time.Time) {
	f.answers, f.resolvingSince, f.starvedSince = false, time.Time{}, time.Time{}
	f.set(reason, now)
}

// Wait: what was asked then is not answered, because the thread that answers waits for
// a processor. What was last heard holds.
func (f *Forwarder) Wait(reason string, asked, now time.Time) {
	if f.starvedSince.IsZero() {
		f.starvedSince = asked
	}
	if f.answers {
		f.heardAt = asked
	}
	f.setSlow(reason, now)
	if waited := now.Sub(f.starvedSince); waited > StarvedMax && f.peerWell {
		f.set(fmt.Sprintf("no answer for %v: %s", waited.Round(time.Millisecond), reason), now)
	}
}

// nextHopsThread of a forwarder: without it packets go where next hops were. What still
// is as it was arrives, so a machine without it is a worse choice than others, and no
// more: it withdraws nothing. Of the other helpers no client's packet depends.
const nextHopsThread = "next-hops"

func (f *Forwarder) seeWaits(a Answer, now time.Time) {
	for _, t := range a.Threads {
		if t.Waits && t.HeartbeatAge > WaitMax {
			f.setSlow(fmt.Sprintf("thread %s waited %v for a processor", t.Name, t.HeartbeatAge), now)
			return
		}
	}
	for _, t := range a.Helpers {
		if t.Name == nextHopsThread && t.HeartbeatAge > HelperAgeMax {
			f.setSlow(fmt.Sprintf("thread %s has had no heartbeat for %v: it sends by next hops, routes and MTUs of that time", t.Name, t.HeartbeatAge.Round(time.Second)), now)
			return
		}
	}
}

func (f *Forwarder) setSlow(reason string, now time.Time) { f.slow, f.slowAt = reason, now }

// BeginHandOver: a successor is about to go on in its place.
func (f *Forwarder) BeginHandOver(now time.Time) {
	if f.answers && !f.HandingOver() {
		f.handOverEnd = now.Add(HandOverMax)
	}
}

// EndHandOver: from now on everything counts again.
func (f *Forwarder) EndHandOver(how string) {
	if f.HandingOver() {
		f.endHandOver(how)
	}
}

func (f *Forwarder) endHandOver(how string) {
	f.handOverEnd, f.handOverReason, f.handedOver = time.Time{}, "", how
}

// Check what time alone brings: a hand-over that takes too long, an answer that
// does not come.
func (f *Forwarder) Check(now time.Time) {
	if f.HandingOver() && !now.Before(f.handOverEnd) {
		reason := f.handOverReason
		f.endHandOver(fmt.Sprintf("it took longer than %v", HandOverMax))
		if reason != "" {
			f.set(reason, now)
		}
	}
	if age := now.Sub(f.heardAt); f.answers && age > AnswerAgeMax {
		f.setSlow(fmt.Sprintf("nothing was heard of it for %v", age.Round(time.Millisecond)), now)
	}
	if f.slow != "" && now.Sub(f.slowAt) >= SlowQuiet {
		f.setSlow("", time.Time{})
	}
}

// Again is when to Check, if nothing is heard before; zero: never.
func (f *Forwarder) Again() time.Time {
	var next time.Time
	switch {
	case f.HandingOver():
		next = f.handOverEnd
	case f.answers && f.slowAt.After(f.heardAt):
		next = f.slowAt.Add(AnswerAgeMax)
	case f.answers:
		next = f.heardAt.Add(AnswerAgeMax)
	}
	if f.slow != "" && (next.IsZero() || f.slowAt.Add(SlowQuiet).Before(next)) {
		next = f.slowAt.Add(SlowQuiet)
	}
	return next
}

func (f *Forwarder) set(reason string, now time.Time) {
	if f.HandingOver() {
		f.handOverReason = reason
		return
	}
	if (f.reason == "") != (reason == "") {
		f.since = now
	}
	f.reason = reason
}

// unwell is what is wrong by an answer; empty: nothing.
func (f *Forwarder) unwell(a Answer) string {
	if a.Stopping {
		return "it is stopping"
	}
	for _, t := range a.Threads {
		if t.Hangs {
			return fmt.Sprintf("thread %s hangs: no heartbeat for %v, and it does not wait for a processor", t.Name, t.HeartbeatAge)
		}
		if t.Waits && f.peerWell && t.HeartbeatAge > StarvedMax {
			return fmt.Sprintf("thread %s waited %v for a processor", t.Name, t.HeartbeatAge)
		}
		if !t.Waits && t.HeartbeatAge > HeartbeatAgeMax {
			return fmt.Sprintf("thread %s hangs: no heartbeat for %v", t.Name, t.HeartbeatAge)
		}
	}
	for _, d := range a.Devices {
		if !d.Up {
			return fmt.Sprintf("device %s is down", d.Interface)
		}
	}
	if a.Generation > 0 && len(a.Threads) == 0 {
		return "it has a plan but no threads that forward"
	}
	// A restart may bring an older plan from the disk.
	if a.Generation < f.required && a.Asked.After(f.requiredAt) {
		if a.Generation == 0 {
			return "it has no plan"
		}
		return fmt.Sprintf("it forwards by plan %d, older than %d, which it had accepted", a.Generation, f.required)
	}
	return ""
}

// resolving: a forwarder that is not well yet drops what comes before its next
// hops are known. One that is well may lose a next hop, and drops packets for
// that backend alone.
func (f *Forwarder) resolving(a Answer, now time.Time) string {
	if f.reason == "" || a.Unresolved == 0 {
		f.resolvingSince = time.Time{}
		return ""
	}
	if f.resolvingSince.IsZero() {
		f.resolvingSince = now
	}
	if now.Sub(f.resolvingSince) >= NextHopsMax {
		return ""
	}
	return fmt.Sprintf("waiting for the next hops of %d backends", a.Unresolved)
}
