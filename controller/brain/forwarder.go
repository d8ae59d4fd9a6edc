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
}

func (e ForwarderConnected) apply(s *State) {
	f := &s.forwarder
	f.met, f.connected, f.heardAt = true, true, s.now
	f.accepted, f.running = 0, pendingPlan{}
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
	f.accepted, f.running = 0, pendingPlan{}
	s.setForwarderHealth(e.Reason)
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
	if (f.reason == "") != (reason == "") {
		f.since = s.now
		if reason == "" {
			s.note("forwarder", "forwarder", "unhealthy", "healthy", "it answers, its workers go round, its devices are up")
		} else {
			s.note("forwarder", "forwarder", "healthy", "unhealthy", reason)
		}
	}
	f.reason = reason
}

// ailmentOf names what is wrong in a status; empty: nothing.
func ailmentOf(e ForwarderStatus) string {
	for _, w := range e.Workers {
		if w.HeartbeatAge > heartbeatAgeMax {
			return fmt.Sprintf("worker %d has not gone round its loop for %v", w.Index, w.HeartbeatAge)
		}
	}
	for _, d := range e.Devices {
		if !d.Up {
			return fmt.Sprintf("device %s is down", d.Interface)
		}
	}
	if e.Generation > 0 && len(e.Workers) == 0 {
		return "it has a plan but no workers"
	}
	return ""
}
