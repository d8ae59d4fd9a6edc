package brain

// The forwarder: whether it is well (package judge), which plan it has.

import (
	"maps"
	"time"

	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
	"github.com/guideway/guideway/speaker/judge"
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
	// How often it connected.
	connections uint64
	// What is wrong with the process, its threads or its devices.
	health judge.Forwarder

	generation uint64 // that it runs, by its latest status; 0: none since it was lost
	accepted   uint64 // of ours; 0: none
	acceptedAt time.Time
	running    pendingPlan
	warnings   []string
	refusal    string

	unresolved      map[string]Unresolved // by backend
	resolutions     uint64                // how often that changed
	restartRequired string
}

func (e ForwarderConnected) apply(s *State) {
	f := &s.forwarder
	f.met, f.connected = true, true
	f.connections++
	if e.Plan.GetGeneration() != f.accepted {
		f.accepted, f.running = 0, pendingPlan{}
		f.health.Require(0, s.now)
	}
	s.judgeForwarder(func(h *judge.Forwarder) { h.EndHandOver("its successor answers") })
	s.health.inheritFrom(&s.step, e.Plan)
	s.peers.inherit(e.Plan)
	s.inheritBuckets(e.Plan)
	if s.tables == nil {
		s.tables = s.tables.after(e.Plan, true)
	}
	s.raiseGeneration(e.Plan.GetGeneration())
	if s.forwarder.wanted != nil && e.Plan.GetGeneration() == s.forwarder.wanted.Generation {
		// Disconnected for a moment, or started with it from disk: our plan runs.
		PlanAccepted{Generation: s.forwarder.wanted.Generation, Warnings: f.warnings}.apply(s)
	}
	if s.rejected != nil {
		again := s.rejected
		s.rejected = nil
		s.configs.stale, s.configs.problem, s.configs.refused = false, "", nil
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
	s.raiseGeneration(e.Generation)
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
