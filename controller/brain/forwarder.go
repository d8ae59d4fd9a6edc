package brain

// The forwarder: whether it is healthy (package judge), and its reports about its plan.

import (
	"maps"

	"github.com/guideway/guideway/speaker/judge"
)

type forwarderState struct {
	met       bool // it told once what it runs
	connected bool // plans can be pushed
	// How often it connected.
	connections uint64
	// What is wrong with the process, its threads or its devices.
	health judge.Forwarder

	generation uint64 // that it runs, by its latest status; 0: none since it was lost

	unresolved      map[string]Unresolved // by backend
	resolutions     uint64                // how often that changed
	restartRequired string
}

func (e ForwarderConnected) apply(s *State) {
	f := &s.forwarder
	f.met, f.connected = true, true
	f.connections++
	if e.Plan.GetGeneration() != s.plan.accepted {
		s.plan.accepted, s.plan.running = 0, pendingPlan{}
		f.health.Require(0, s.now)
	}
	s.judgeForwarder(func(h *judge.Forwarder) { h.EndHandOver("its successor answers") })
	s.health.inheritFrom(&s.step, e.Plan)
	s.peers.inherit(e.Plan)
	s.buckets.inherit(&s.step, e.Plan)
	if s.plan.tables == nil {
		s.plan.tables = s.plan.tables.after(e.Plan, true)
	}
	s.plan.raiseGeneration(&s.step, e.Plan.GetGeneration())
	if s.plan.wanted != nil && e.Plan.GetGeneration() == s.plan.wanted.Generation {
		// Disconnected for a moment, or started with it from disk: our plan runs.
		PlanAccepted{Generation: s.plan.wanted.Generation, Warnings: s.plan.warnings}.apply(s)
	}
	if s.plan.rejected != nil {
		again := s.plan.rejected
		s.plan.rejected = nil
		s.configs.forgive()
		s.adopt(again)
	}
}

func (e ForwarderHealth) apply(s *State) {
	former := s.forwarder.health.HeardAt()
	s.judgeForwarder(func(h *judge.Forwarder) { h.Hear(judge.Answer(e), s.now) })
	if s.forwarder.health.Reason() == "" && !s.forwarder.health.HandingOver() {
		s.health.confirmFailures(&s.step, judge.Answer(e), former)
	}
}

func (e ForwarderLost) apply(s *State) {
	s.judgeForwarder(func(h *judge.Forwarder) { h.Lose(e.Reason, s.now) })
}

func (e ForwarderWaits) apply(s *State) {
	s.judgeForwarder(func(h *judge.Forwarder) { h.Wait(e.Reason, e.Asked, s.now) })
}

func (ForwarderDisconnected) apply(s *State) {
	s.forwarder.connected = false
}

func (e ForwarderStatus) apply(s *State) {
	f := &s.forwarder
	unresolved := make(map[string]Unresolved, len(e.Unresolved))
	for _, u := range e.Unresolved {
		unresolved[u.Backend] = u
	}
	if !maps.Equal(f.unresolved, unresolved) {
		f.unresolved = unresolved
		f.resolutions++
	}
	f.generation = e.Generation
	f.restartRequired = e.RestartRequired
	s.plan.raiseGeneration(&s.step, e.Generation)
	s.noteLimits(e.Limits)
}

func (e ForwarderHandingOver) apply(s *State) {
	s.judgeForwarder(func(h *judge.Forwarder) {
		if e.Now {
			h.BeginHandOver(s.now)
		} else if h.Answers() {
			h.EndHandOver("it goes on")
		}
	})
}

// judgeForwarder lets something happen to the forwarder's health, and brings what became
// of it to people and to those parts of the state that depend on it.
func (s *State) judgeForwarder(happen func(*judge.Forwarder)) {
	before, health := s.forwarder.health, &s.forwarder.health
	happen(health)
	switch {
	case health.HandingOver() && !before.HandingOver():
		s.note("forwarder", "forwarder", "healthy", "handing over", "another process is about to go on in its place")
	case before.HandingOver() && !health.HandingOver():
		s.note("forwarder", "forwarder", "handing over", "handed over", health.HandedOver())
	}
	if health.HandingOver() {
		return
	}
	reason := health.Reason()
	if !health.Answers() && (before.Answers() || before.HandingOver() && reason != "") {
		s.forwarder.generation = 0
	}
	if reason != "" {
		s.health.voidFailures(&s.step, "the forwarder: "+reason)
	}
	switch {
	case reason == "" && before.Reason() != "":
		s.note("forwarder", "forwarder", "unhealthy", "healthy", "it answers, its threads run, its devices are up")
	case reason != "" && before.Reason() == "":
		s.note("forwarder", "forwarder", "healthy", "unhealthy", reason)
	}
}
