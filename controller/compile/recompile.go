package compile

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Recompile makes the plan that follows former, which was compiled from the
// same config, when the states of some backends or peers changed: those of the
// groups' members by the groups' names. It returns former itself if nothing
// differs. Whatever did not change is shared with former, so that the work is
// in proportion to what did; neither plan may be edited.
func Recompile(former *planv1.Plan, c *config.Config, services []config.Service, states States, changed map[string][]config.Member) *planv1.Plan {
	plan := shallow(former)
	plan.Groups = slices.Clone(former.GetGroups())
	differs := false
	chances := secondChanceGroups(services)
	for i, old := range plan.Groups {
		members, isChanged := changed[old.GetName()]
		if !isChanged {
			continue
		}
		if next := group(old.GetName(), members, chances[old.GetName()], states); !proto.Equal(old, next) {
			plan.Groups[i] = next
			differs = true
		}
	}
	if next := peers(c.Peers, states); !slices.EqualFunc(next, former.GetPeers(), equalMessages) {
		plan.Peers = next
		differs = true
	}
	if next := recompileServices(plan, services, states, changed); next != nil {
		plan.Services = next
		differs = true
	}
	if !differs {
		return former
	}
	plan.Requires = requires(plan)
	return plan
}

// recompileServices returns the services as they are by other states; nil if
// none differs. What has a state in a service is where it spills to, and which
// backend has which bucket.
func recompileServices(plan *planv1.Plan, services []config.Service, states States, changed map[string][]config.Member) []*planv1.Service {
	next, differs := slices.Clone(plan.GetServices()), false
	groups := bucketGroups(plan, services)
	for i := range services {
		_, isChanged := changed[services[i].Group]
		isDue := isChanged || states.BucketsDue != nil && states.BucketsDue(services[i].Name)
		if len(services[i].Spill) == 0 && !(isStateless(&services[i]) && isDue) {
			continue
		}
		one := service(&services[i], states)
		one.BucketMap = bucketMap(&services[i], groups[services[i].Group], states)
		if !proto.Equal(one, next[i]) {
			next[i], differs = one, true
		}
	}
	if !differs {
		return nil
	}
	return next
}

func equalMessages(a, b *planv1.Peer) bool { return proto.Equal(a, b) }

// shallow copies a plan's own fields; what they point to is shared.
func shallow(plan *planv1.Plan) *planv1.Plan {
	copied := &planv1.Plan{}
	plan.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		copied.ProtoReflect().Set(field, value)
		return true
	})
	return copied
}
