package brain

// The plan: made from config and states, numbered, accepted or refused.

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// pendingPlan is what becomes true when the forwarder accepts a generation.
type pendingPlan struct {
	inputs  *inputs
	probing *planv1.Probing
	// The active backends of each group in it.
	active map[string]int
	// The generation of each service's bucket map in it.
	maps map[string]uint64
}

// decidePlan makes a new plan if it differs from the wanted one. Before the
// forwarder told what it runs there is none: it could undo the states there. Nor
// before the sources of members were asked: it could empty their pools.
func (s *State) decidePlan(changed map[string][]config.Member) {
	if !s.forwarder.met || s.awaitsMembers() {
		return
	}
	plan := s.nextPlan(changed)
	isWanted := plan == s.forwarder.wanted || s.forwarder.wantedOf != s.current && !s.forwarder.wantedIsRefused() && proto.Equal(plan, s.forwarder.wanted)
	if s.forwarder.wanted != nil && s.forwarder.wanted.Generation == s.forwarder.numbered && isWanted {
		s.forwarder.wantedOf = s.current
		s.commitBuckets()
		s.renumberBuckets()
		s.servePlanAlready()
		return
	}
	if plan == s.forwarder.wanted { // the same by another generation
		plan = compile.Compile(s.current.config, s.compileStates(), 0)
	}
	s.forwarder.numbered++
	plan.Generation = s.forwarder.numbered
	s.forwarder.wanted, s.forwarder.wantedOf = plan, s.current
	s.commitBuckets()
	s.tables = s.tables.after(plan, s.health.firstRound)
	s.forwarder.pending[s.forwarder.numbered] = pendingPlan{inputs: s.current, probing: plan.Probing, active: activeGroups(plan), maps: s.bucketGenerations(plan)}
}

// wantedIsRefused: the forwarder has refused the wanted plan. It is offered anew by another
// config that comes to the same.
func (f *forwarderState) wantedIsRefused() bool {
	_, isPending := f.pending[f.numbered]
	return f.accepted != f.numbered && !isPending
}

// servePlanAlready: the config has changed, but the plan is the same by both.
// A forwarder that runs it, or is about to, serves the one as the other.
func (s *State) servePlanAlready() {
	f := &s.forwarder
	if pending, known := f.pending[f.numbered]; known {
		pending.inputs = s.current
		f.pending[f.numbered] = pending
	}
	if f.accepted == f.numbered && f.running.inputs != nil {
		f.running.inputs, s.trusted = s.current, s.current
	}
}

// nextPlan shares with the former plan what did not change.
func (s *State) nextPlan(changed map[string][]config.Member) *planv1.Plan {
	if s.forwarder.wanted == nil || s.forwarder.wantedOf != s.current {
		return compile.Compile(s.current.config, s.compileStates(), s.forwarder.numbered)
	}
	return compile.Recompile(s.forwarder.wanted, s.current.config, s.current.services, s.compileStates(), changed)
}

func (s *State) compileStates() compile.States {
	return compile.States{
		Backend: s.health.planState, Fifths: s.health.fifthsOf, Use: s.health.useOfGroup, PeerHealthy: s.peers.isHealthy,
		PeerAddresses: s.peers.addresses, SpillDown: s.peers.spillDown, BucketMap: s.nextBuckets, BucketsDue: s.bucketsDue,
		Tables: s.tables.former,
	}
}

// planState is the state of a backend as one of its pools sees it; compile
// combines them.
func (h *healthState) planState(pool, backend string) planv1.BackendState {
	if b := h.backends[compile.PoolBackend{Pool: pool, Backend: backend}]; b != nil {
		return b.state
	}
	return stateDown
}

func (h *healthState) useOfGroup(group string) compile.Use { return h.use[group].how }

func activeGroups(plan *planv1.Plan) map[string]int {
	groups := map[string]int{}
	for _, group := range plan.Groups {
		for _, m := range group.Members {
			if m.State == planv1.BackendState_BACKEND_STATE_ACTIVE {
				groups[group.Name]++
			}
		}
	}
	return groups
}

// raiseGeneration follows a forwarder that has a plan from elsewhere: ours
// would be refused as going back.
func (s *State) raiseGeneration(running uint64) {
	if running <= s.forwarder.numbered {
		return
	}
	if s.forwarder.numbered > 0 {
		s.note("forwarder", "plan", fmt.Sprint(s.forwarder.numbered), fmt.Sprint(running), "the forwarder has a plan from elsewhere; ours follows it")
	}
	s.forwarder.numbered = running
}

func (e PlanAccepted) apply(s *State) {
	accepted, known := s.forwarder.pending[e.Generation]
	if !known {
		return
	}
	f := &s.forwarder
	f.accepted, f.acceptedAt = e.Generation, s.now
	f.health.Require(e.Generation, s.now)
	s.routes.plan = e.Generation
	s.routes.changes++
	f.running = accepted
	f.warnings = e.Warnings
	f.refusal = ""
	s.trusted = accepted.inputs
	if s.configs.refused != nil && s.configs.refused == accepted.inputs {
		s.configs.stale, s.configs.problem, s.configs.refused = false, "", nil
	}
	s.acknowledgeBuckets(accepted.maps)
	for generation := range s.forwarder.pending {
		if generation < e.Generation {
			delete(s.forwarder.pending, generation)
		}
	}
}

// The former plan runs meanwhile; people see what is waited for.
func (e PlanPostponed) apply(s *State) {
	if _, known := s.forwarder.pending[e.Generation]; !known {
		return
	}
	reason := "not yet taken, pushed again until it is: " + e.Reason
	if s.forwarder.refusal != reason {
		s.note("forwarder", "plan", "", "postponed", e.Reason)
	}
	s.forwarder.refusal = reason
}

// A plan that is refused belongs to a config which the forwarder cannot
// serve: the one before goes on. The refused one is tried again when another
// forwarder process connects (`restart required` is cured by a restart), and by a
// forwarder without any plan, whose interfaces may not be there yet.
func (e PlanRefused) apply(s *State) {
	refused, known := s.forwarder.pending[e.Generation]
	if !known {
		return
	}
	if s.forwarder.accepted != 0 {
		delete(s.forwarder.pending, e.Generation)
	}
	s.forwarder.refusal = e.Reason
	s.note("forwarder", "plan", "", "refused", e.Reason)
	if refused.inputs != s.current {
		return
	}
	s.configs.stale = true
	s.configs.problem = "the forwarder refuses the plan: " + e.Reason
	s.configs.refused = refused.inputs
	s.configs.problemAt = s.now
	if s.trusted != nil && s.trusted != s.current {
		s.rejected = s.current
		s.adopt(s.trusted)
	}
}
