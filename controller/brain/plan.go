package brain

// The plan: made from config and states, numbered, accepted or refused.

import (
	"fmt"
	"maps"
	"slices"
	"time"

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

// planState is what the forwarder should have, and has, of us.
type planState struct {
	// The plan that it should have, and the config that this was compiled from.
	wanted   *planv1.Plan
	wantedOf *inputs
	// The generation given last.
	numbered uint64
	// Per generation not yet accepted: what it can serve.
	pending map[uint64]pendingPlan

	accepted uint64 // of ours; 0: none
	running  pendingPlan
	warnings []string
	refusal  string
	// What to return to when the forwarder refuses the config; and the config that it refused.
	trusted, rejected *inputs
	// By group with a second chance; nil: no plan was seen yet.
	tables tablesState

	// By what it was decided last, and how often it was. Since when it is outdated; zero: it
	// is not.
	basis         planBasis
	decisions     uint64
	outdatedSince time.Time
}

// isDue notes since when the plan is outdated, and says whether it is to be decided now.
func (p *planState) isDue(at *step, now planBasis) bool {
	isOvertaken := p.wanted != nil && p.wanted.Generation < p.numbered
	isUrgent := isOvertaken || !slices.Equal(now.urgent, p.basis.urgent)
	if at.current == nil || !isUrgent && slices.Equal(now.waits, p.basis.waits) {
		return false
	}
	if p.outdatedSince.IsZero() {
		p.outdatedSince = at.now
	}
	return isUrgent || at.now.Sub(p.outdatedSince) >= coalesce
}

// decide on a new plan if it differs from the wanted one; states make it.
func (p *planState) decide(at *step, states compile.States, changed map[string][]config.Member, isServed bool) {
	plan := p.next(at, states, changed)
	isWanted := plan == p.wanted || p.wantedOf != at.current && !p.wantedIsRefused() && proto.Equal(plan, p.wanted)
	if p.wanted != nil && p.wanted.Generation == p.numbered && isWanted {
		p.wantedOf = at.current
		return
	}
	if plan == p.wanted { // the same by another generation
		plan = compile.Compile(at.current.config, states, 0)
	}
	p.numbered++
	plan.Generation = p.numbered
	p.wanted, p.wantedOf = plan, at.current
	p.tables = p.tables.after(plan, isServed)
	p.pending[p.numbered] = pendingPlan{probing: plan.Probing, active: activeGroups(plan)}
}

// next shares with the former plan what did not change.
func (p *planState) next(at *step, states compile.States, changed map[string][]config.Member) *planv1.Plan {
	if p.wanted == nil || p.wantedOf != at.current {
		return compile.Compile(at.current.config, states, p.numbered)
	}
	return compile.Recompile(p.wanted, at.current.config, at.current.services, states, changed)
}

// wantedIsRefused: the forwarder has refused the wanted plan. It is offered anew by another
// config that comes to the same.
func (p *planState) wantedIsRefused() bool {
	_, isPending := p.pending[p.numbered]
	return p.accepted != p.numbered && !isPending
}

// serve this config by the wanted plan, which may have been made of another: a forwarder that
// runs it, or is about to, serves the one as the other. These are the generations of its maps.
func (p *planState) serve(in *inputs, maps map[string]uint64) {
	if pending, known := p.pending[p.numbered]; known {
		pending.inputs, pending.maps = in, maps
		p.pending[p.numbered] = pending
	}
	if p.accepted == p.numbered && p.running.inputs != nil {
		p.running.inputs, p.trusted = in, in
	}
}

// flush decides the plan. Before the forwarder told what it runs there is none: it could undo
// the states there. Nor before the sources of members were asked: it could empty their pools.
func (s *State) flush() {
	p := &s.plan
	p.basis, p.outdatedSince = s.planBasis(), time.Time{}
	s.health.decideCutOff(&s.step)
	changed := s.health.decide(&s.step, &s.buckets.agents, &s.peers, s.forwarder.connections)
	if s.forwarder.met && !s.members.areAwaited(p) {
		states := compile.States{
			Backend: s.health.stateInPool, Fifths: s.health.fifthsOf, Use: s.health.useOfGroup, PeerHealthy: s.peers.isHealthy,
			PeerAddresses: s.peers.addresses, SpillDown: s.peers.spillDown, Tables: s.plan.tables.former,
			BucketMap: func(service *config.Service, group *planv1.Group) *planv1.BucketMap {
				return s.buckets.nextPlanned(&s.step, &s.health, service, group)
			},
			BucketsDue: func(service string) bool { return s.buckets.isDue(&s.step, &s.health, service) },
		}
		p.decide(&s.step, states, changed, s.health.firstRound)
		s.buckets.commit(&s.step)
		generations := s.buckets.generations(&s.step, p.wanted)
		p.serve(s.current, generations)
		if p.accepted == p.numbered && !maps.Equal(generations, s.buckets.acknowledged) {
			s.buckets.acknowledge(&s.step, generations)
		}
	}
	p.decisions++
	p.isDue(&s.step, s.planBasis()) // it may have made work for the next
}

// stateInPool is the state of a backend as one of its pools sees it; compile
// combines them.
func (h *healthState) stateInPool(pool, backend string) planv1.BackendState {
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
func (p *planState) raiseGeneration(at *step, running uint64) {
	if running <= p.numbered {
		return
	}
	if p.numbered > 0 {
		at.note("forwarder", "plan", fmt.Sprint(p.numbered), fmt.Sprint(running), "the forwarder has a plan from elsewhere; ours follows it")
	}
	p.numbered = running
}

func (e PlanAccepted) apply(s *State) {
	accepted, known := s.plan.accept(e)
	if !known {
		return
	}
	s.forwarder.health.Require(e.Generation, s.now)
	s.routes.plan = e.Generation
	s.routes.changes++
	if s.configs.refused != nil && s.configs.refused == accepted.inputs {
		s.configs.forgive()
	}
	s.buckets.acknowledge(&s.step, accepted.maps)
}

// accept what the forwarder does; false: that plan is none of ours, or of long ago.
func (p *planState) accept(e PlanAccepted) (accepted pendingPlan, known bool) {
	if accepted, known = p.pending[e.Generation]; !known {
		return accepted, false
	}
	p.accepted, p.running, p.warnings, p.refusal, p.trusted = e.Generation, accepted, e.Warnings, "", accepted.inputs
	maps.DeleteFunc(p.pending, func(generation uint64, _ pendingPlan) bool { return generation < e.Generation })
	return accepted, true
}

// The former plan runs meanwhile; people see what is waited for.
func (e PlanPostponed) apply(s *State) {
	if _, known := s.plan.pending[e.Generation]; !known {
		return
	}
	reason := "not yet taken, pushed again until it is: " + e.Reason
	if s.plan.refusal != reason {
		s.note("forwarder", "plan", "", "postponed", e.Reason)
	}
	s.plan.refusal = reason
}

// A plan that is refused belongs to a config which the forwarder cannot
// serve: the one before goes on. The refused one is tried again when another
// forwarder process connects (`restart required` is cured by a restart), and by a
// forwarder without any plan, whose interfaces may not be there yet.
func (e PlanRefused) apply(s *State) {
	refused, known := s.plan.pending[e.Generation]
	if !known {
		return
	}
	if s.plan.accepted != 0 {
		delete(s.plan.pending, e.Generation)
	}
	s.plan.refusal = e.Reason
	s.note("forwarder", "plan", "", "refused", e.Reason)
	if refused.inputs != s.current {
		return
	}
	s.configs.refuse(s.now, "the forwarder refuses the plan: "+e.Reason, refused.inputs)
	if s.plan.trusted != nil && s.plan.trusted != s.current {
		s.plan.rejected = s.current
		s.adopt(s.plan.trusted)
	}
}
