package brain

// The plan: made from config and states, numbered, accepted or refused.

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/compile"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// pendingPlan is what becomes true when the forwarder accepts a generation.
type pendingPlan struct {
	inputs *inputs
	// Services that have an active backend in it.
	active map[string]bool
}

// decidePlan makes a new plan if it differs from the wanted one. Before the
// forwarder told what it runs there is none: it could undo the states there.
func (s *State) decidePlan() {
	if !s.forwarder.met {
		return
	}
	plan := compile.Compile(s.current.config, compile.States{Backend: s.planState, PeerHealthy: s.peerHealthy, PeerAddresses: s.peerAddresses, SpillDown: s.spillDown}, s.generation)
	if s.plan != nil && s.plan.Generation == s.generation && proto.Equal(plan, s.plan) {
		return
	}
	s.generation++
	plan.Generation = s.generation
	s.plan = plan
	s.changed.PlanChanged = true
	s.pending[s.generation] = pendingPlan{inputs: s.current, active: activeServices(plan)}
}

// planState is the state of a backend as one of its pools sees it; compile
// combines them.
func (s *State) planState(pool, backend string) planv1.BackendState {
	switch {
	case !s.conditions[compile.PoolBackend{Pool: pool, Backend: backend}].up:
		return planv1.BackendState_BACKEND_STATE_DOWN
	case s.drained[backend]:
		return planv1.BackendState_BACKEND_STATE_DRAINING
	}
	return planv1.BackendState_BACKEND_STATE_ACTIVE
}

func activeServices(plan *planv1.Plan) map[string]bool {
	groups := map[string]bool{}
	for _, group := range plan.Groups {
		for _, m := range group.Members {
			if m.State == planv1.BackendState_BACKEND_STATE_ACTIVE {
				groups[group.Name] = true
			}
		}
	}
	services := map[string]bool{}
	for _, service := range plan.Services {
		services[service.Name] = groups[service.Group]
	}
	return services
}

// raiseGeneration follows a forwarder that has a plan from elsewhere: ours
// would be refused as going back.
func (s *State) raiseGeneration(running uint64) {
	if running <= s.generation {
		return
	}
	if s.generation > 0 {
		s.note("forwarder", "plan", fmt.Sprint(s.generation), fmt.Sprint(running), "somebody else gave the forwarder a plan; ours follows it")
	}
	s.generation = running
	s.touchNow()
}

func (e PlanAccepted) apply(s *State) {
	accepted, known := s.pending[e.Generation]
	if !known {
		return
	}
	f := &s.forwarder
	f.accepted, f.acceptedAt = e.Generation, s.now
	f.running = accepted
	f.warnings = e.Warnings
	f.refusal = ""
	s.trusted = accepted.inputs
	for generation := range s.pending {
		if generation < e.Generation {
			delete(s.pending, generation)
		}
	}
}

// A plan that is refused belongs to a config which the forwarder cannot
// serve: the one before goes on. The refused one is tried again when another
// forwarder process connects (`restart required` is cured by a restart).
func (e PlanRefused) apply(s *State) {
	refused, known := s.pending[e.Generation]
	if !known {
		return
	}
	delete(s.pending, e.Generation)
	s.forwarder.refusal = e.Reason
	s.note("forwarder", "plan", "", "refused", e.Reason)
	if refused.inputs != s.current {
		return
	}
	s.configs.stale = true
	s.configs.problem = "the forwarder refuses the plan: " + e.Reason
	s.configs.problemAt = s.now
	if s.trusted != nil && s.trusted != s.current {
		s.rejected = s.current
		s.adopt(s.trusted)
	}
}
