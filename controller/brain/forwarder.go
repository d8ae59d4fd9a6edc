package brain

// The forwarder's health: unhealthy withdraws everything.

import (
	"fmt"
	"maps"
	"time"

	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

type forwarderState struct {
	// The plan that it should have, and the config that this was compiled from.
	wanted   *planv1.Plan
	wantedOf *inputs
	// The generation given last.
	numbered uint64
	// Per generation not yet accepted: what it can serve.
	pending map[uint64]pendingPlan

	met       bool // it told once what it runs
	connected bool // plans can be pushed
	// The latest request for its health was answered, by this process.
	answers bool
	pid     uint32
	// When that request was sent.
	heardAt time.Time
	// Probes that were under way before then may not have been sent by it.
	stoodStillUntil time.Time
	// Empty: healthy. Else what is wrong with the process, its workers or its
	// devices.
	reason string
	since  time.Time

	generation uint64 // that it runs, by its latest status; 0: none since it was lost
	accepted   uint64 // of ours; 0: none
	acceptedAt time.Time
	running    pendingPlan
	warnings   []string
	refusal    string

	unresolved      map[string]Unresolved // by backend
	restartRequired string

	// Until then a hand-over may take; zero: none is under way.
	handOverEnd time.Time
	// What else would have made it unhealthy meanwhile; empty: nothing.
	handOverReason string
}

func (e ForwarderConnected) apply(s *State) {
	f := &s.forwarder
	f.met, f.connected = true, true
	if e.Plan.GetGeneration() != f.accepted {
		f.accepted, f.running = 0, pendingPlan{}
	}
	if s.handingOver() {
		s.endHandOver("its successor answers")
	}
	s.health.allDirty = true
	s.inheritFrom(e.Plan)
	s.inheritPeers(e.Plan)
	if s.buckets == nil {
		s.buckets = s.bucketsAfter(e.Plan)
	}
	s.raiseGeneration(e.Plan.GetGeneration())
	if s.forwarder.wanted != nil && e.Plan.GetGeneration() == s.forwarder.wanted.Generation {
		// Disconnected for a moment, or started with it from disk: our plan runs.
		PlanAccepted{Generation: s.forwarder.wanted.Generation, Warnings: f.warnings}.apply(s)
	}
	if s.rejected != nil {
		again := s.rejected
		s.rejected = nil
		s.configs.stale = false
		s.configs.problem = ""
		s.adopt(again)
	}
	s.markDirtyNow()
}

func (e ForwarderHealth) apply(s *State) {
	f := &s.forwarder
	before := *f
	switch {
	case e.HandingOver:
		ForwarderHandingOver{Now: true}.apply(s)
	case s.handingOver() && e.PID != f.pid:
		s.endHandOver("its successor answers")
	}
	former := f.heardAt
	f.answers, f.pid, f.heardAt = true, e.PID, e.Asked
	s.setForwarderHealth(f.unhealthyReason(e))
	if f.reason == "" && !s.handingOver() {
		s.confirmFailures(e.Asked, former)
	}
	// Ten times a second, mostly without news.
	s.routesUnaffected = f.reason == before.reason && f.handOverEnd.Equal(before.handOverEnd)
}

func (e ForwarderLost) apply(s *State) {
	f := &s.forwarder
	f.answers = false
	if !s.handingOver() {
		f.generation = 0
	}
	s.setForwarderHealth(e.Reason)
}

func (ForwarderDisconnected) apply(s *State) {
	s.forwarder.connected = false
	s.routesUnaffected = true
}

func (e ForwarderStatus) apply(s *State) {
	f := &s.forwarder
	unresolved := make(map[string]Unresolved, len(e.Unresolved))
	for _, u := range e.Unresolved {
		unresolved[u.Backend] = u
	}
	// Ten times a second, mostly without news.
	s.routesUnaffected = f.generation == e.Generation && maps.Equal(f.unresolved, unresolved)
	f.generation = e.Generation
	f.restartRequired = e.RestartRequired
	f.unresolved = unresolved
	s.raiseGeneration(e.Generation)
}

func (e ForwarderHandingOver) apply(s *State) {
	f := &s.forwarder
	switch {
	case e.Now && f.handOverEnd.IsZero() && f.answers:
		f.handOverEnd = s.now.Add(handOverMax)
		s.note("forwarder", "forwarder", "healthy", "handing over", "another process is about to go on in its place")
	case !e.Now && f.answers && !f.handOverEnd.IsZero():
		s.endHandOver("it goes on")
	}
}

// handingOver: what looks like a death is none yet.
func (s *State) handingOver() bool { return s.now.Before(s.forwarder.handOverEnd) }

// endHandOver: from now on everything counts again.
func (s *State) endHandOver(how string) {
	f := &s.forwarder
	f.handOverEnd, f.handOverReason = time.Time{}, ""
	s.note("forwarder", "forwarder", "handing over", "handed over", how)
}

// checkHandOver is for the case that it takes too long.
func (s *State) checkHandOver() {
	f := &s.forwarder
	if f.handOverEnd.IsZero() || s.handingOver() {
		return
	}
	reason := f.handOverReason
	s.endHandOver(fmt.Sprintf("it took longer than %v", handOverMax))
	if !f.answers {
		f.generation = 0
	}
	if reason != "" {
		s.setForwarderHealth(reason)
	}
}

// checkForwarderAge is for the case that no answer comes and no failure either.
func (s *State) checkForwarderAge() {
	f := &s.forwarder
	if age := s.now.Sub(f.heardAt); f.answers && age > healthAgeMax {
		s.setForwarderHealth(fmt.Sprintf("no answer for %v", age.Round(time.Millisecond)))
	}
}

func (s *State) setForwarderHealth(reason string) {
	f := &s.forwarder
	if s.handingOver() {
		f.handOverReason = reason
		return
	}
	if f.reason != reason {
		s.routesUnaffected = false
	}
	if reason != "" {
		s.voidFailures("the forwarder: " + reason)
	}
	if (f.reason == "") != (reason == "") {
		f.since = s.now
		if reason == "" {
			s.note("forwarder", "forwarder", "unhealthy", "healthy", "it answers, its threads run, its devices are up")
		} else {
			s.note("forwarder", "forwarder", "healthy", "unhealthy", reason)
		}
	}
	f.reason = reason
}

// unhealthyReason is what is wrong by an answer; empty: nothing.
func (f *forwarderState) unhealthyReason(e ForwarderHealth) string {
	if e.Stopping {
		return "it is stopping"
	}
	for _, t := range e.Threads {
		if t.HeartbeatAge > heartbeatAgeMax {
			return fmt.Sprintf("thread %s hangs: no heartbeat for %v", t.Name, t.HeartbeatAge)
		}
	}
	for _, d := range e.Devices {
		if !d.Up {
			return fmt.Sprintf("device %s is down", d.Interface)
		}
	}
	if e.Generation > 0 && len(e.Threads) == 0 {
		return "it has a plan but no threads that forward"
	}
	// A restart may bring an older plan from the disk. What was asked before
	// the plan was accepted knows nothing of it.
	if e.Generation < f.accepted && e.Asked.After(f.acceptedAt) {
		return fmt.Sprintf("it forwards by plan %d, older than %d, which it had accepted", e.Generation, f.accepted)
	}
	return ""
}
