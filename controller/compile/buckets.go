package compile

import (
	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// setBucketMaps gives the stateless services of a plan theirs.
func setBucketMaps(plan *planv1.Plan, services []config.Service, states States) {
	groups := bucketGroups(plan, services)
	for i := range services {
		plan.Services[i].BucketMap = bucketMap(&services[i], groups[services[i].Group], states)
	}
}

// bucketGroups are the plan's groups by name; nil where no service needs them.
func bucketGroups(plan *planv1.Plan, services []config.Service) map[string]*planv1.Group {
	needed := false
	for i := range services {
		needed = needed || isStateless(&services[i])
	}
	if !needed {
		return nil
	}
	groups := make(map[string]*planv1.Group, len(plan.GetGroups()))
	for _, group := range plan.GetGroups() {
		groups[group.GetName()] = group
	}
	return groups
}

func isStateless(s *config.Service) bool { return s.Mode == config.ModeStateless }

// bucketMap of a stateless service; nil for others.
func bucketMap(s *config.Service, group *planv1.Group, states States) *planv1.BucketMap {
	switch {
	case !isStateless(s):
		return nil
	case states.BucketMap != nil:
		return states.BucketMap(s, group)
	}
	var none *buckets.Map
	return none.Next(BucketSituation(s, group)).Plan()
}

// BucketSituation is what config and states say of a stateless service with these
// members.
func BucketSituation(s *config.Service, group *planv1.Group) buckets.Situation {
	situation := buckets.Situation{
		Buckets: s.Buckets, NoneServe: len(s.Spill) > 0, Backends: make(map[string]buckets.Backend, len(s.Members)),
		Members: bucketMembers(group, planv1.BackendState_BACKEND_STATE_ACTIVE),
	}
	opened := len(situation.Members) == 0 && s.WhenNone == config.WhenNoneFailOpen && len(s.Spill) == 0
	if opened {
		situation.Members = bucketMembers(group, planv1.BackendState_BACKEND_STATE_DOWN)
	}
	for i, m := range group.GetMembers() { // in the order of s.Members
		situation.Backends[m.GetBackend()] = buckets.Backend{State: bucketState(m.GetState(), s.OnDown, opened), Address: s.Members[i].Backend.Address}
	}
	return situation
}

// bucketState is what a member's state says of its buckets and connections.
func bucketState(state planv1.BackendState, onDown config.OnDown, opened bool) buckets.State {
	switch state {
	case planv1.BackendState_BACKEND_STATE_ACTIVE, planv1.BackendState_BACKEND_STATE_DRAINING:
		return buckets.Alive
	case planv1.BackendState_BACKEND_STATE_DOWN:
		if opened {
			return buckets.Alive
		}
		if onDown == config.OnDownKeep {
			return buckets.Unreachable
		}
	}
	return buckets.Gone
}

// bucketMembers are those in that state that have a weight.
func bucketMembers(group *planv1.Group, state planv1.BackendState) []buckets.Member {
	var members []buckets.Member
	for _, m := range group.GetMembers() {
		if m.GetState() == state && m.GetWeight() > 0 {
			members = append(members, buckets.Member{Backend: m.GetBackend(), Weight: m.GetWeight()})
		}
	}
	return members
}
