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
	if !isStateless(s) {
		return nil
	}
	var former buckets.Former
	if states.Buckets != nil {
		former = states.Buckets(s.Name)
	}
	members := bucketMembers(group, planv1.BackendState_BACKEND_STATE_ACTIVE)
	if len(members) == 0 && s.WhenNone == config.WhenNoneFailOpen && len(s.Spill) == 0 {
		members = bucketMembers(group, planv1.BackendState_BACKEND_STATE_DOWN)
	}
	return buckets.Assign(former, s.Buckets, members)
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
