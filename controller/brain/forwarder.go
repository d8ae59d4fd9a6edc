package brain

// The forwarder's health: unhealthy withdraws everything.

import (
	"fmt"
	"time"
)

type forwarderState struct {
	met       bool // it told once what it runs
	connected bool
	heardAt   time.Time
	// Empty: healthy. Else what is wrong with the process, its workers or its
	// devices.
	reason string
	since  time.Time

	generation uint64 // that it runs
	accepted   uint64 // of ours; 0: none since it connected
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
	f.met, f.connected, f.heardAt = true, true, s.now
	if !s.handingOver() || e.Plan.GetGeneration() != f.accepted {
		f.accepted, f.running = 0, pendingPlan{}
	}
	if s.handingOver() {
		s.endHandOver("its successor answers")
	}
	s.inheritFrom(e.Plan)
	s.inheritPeers(e.Plan)
	s.raiseGeneration(e.Plan.GetGeneration())
	if s.plan != nil && e.Plan.GetGeneration() == s.plan.Generation {
		// The same process, out of touch for a moment: our plan still runs.
		PlanAccepted{Generation: s.plan.Generation, Warnings: f.warnings}.apply(s)
	}
	if s.rejected != nil {
		again := s.rejected
		s.rejected = nil
		s.configs.stale = false
		s.configs.problem = ""
		s.adopt(again)
	}
	s.touchNow()
}

func (e ForwarderStatus) apply(s *State) {
	f := &s.forwarder
	f.heardAt = s.now
	f.generation = e.Generation
	f.restartRequired = e.RestartRequired
	f.unresolved = make(map[string]Unresolved, len(e.Unresolved))
	for _, u := range e.Unresolved {
		f.unresolved[u.Backend] = u
	}
	s.raiseGeneration(e.Generation)
	s.setForwarderHealth(ailmentOf(e))
}

func (e ForwarderLost) apply(s *State) {
	f := &s.forwarder
	f.connected = false
	if !s.handingOver() {
		f.accepted, f.running = 0, pendingPlan{}
	}
	s.setForwarderHealth(e.Reason)
}

func (e ForwarderHandingOver) apply(s *State) {
	f := &s.forwarder
	switch {
	case e.Now && f.handOverEnd.IsZero() && f.connected:
		f.handOverEnd = s.now.Add(handOverMax)
		s.note("forwarder", "forwarder", "healthy", "handing over", "another process is about to go on in its place")
	case !e.Now && f.connected && !f.handOverEnd.IsZero():
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
	if !f.connected {
		f.accepted, f.running = 0, pendingPlan{}
	}
	if reason != "" {
		s.setForwarderHealth(reason)
	}
}

// checkForwarderAge is for the case that nobody says that nothing comes.
func (s *State) checkForwarderAge() {
	f := &s.forwarder
	if age := s.now.Sub(f.heardAt); f.connected && age > statusAgeMax {
		s.setForwarderHealth(fmt.Sprintf("no status for %v", age.Round(time.Millisecond)))
	}
}

func (s *State) setForwarderHealth(reason string) {
	f := &s.forwarder
	if s.handingOver() {
		f.handOverReason = reason
		return
	}
	if (f.reason == "") != (reason == "") {
		f.since = s.now
		if reason == "" {
			s.note("forwarder", "forwarder", "unhealthy", "healthy", "it answers, its threads go round, its devices are up")
		} else {
			s.note("forwarder", "forwarder", "healthy", "unhealthy", reason)
		}
	}
	f.reason = reason
}

// ailmentOf names what is wrong in a status; empty: nothing.
func ailmentOf(e ForwarderStatus) string {
	for _, t := range e.Threads {
		if t.HeartbeatAge > heartbeatAgeMax {
			return fmt.Sprintf("thread %s has not gone round its loop for %v", t.Name, t.HeartbeatAge)
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
	return ""
}
