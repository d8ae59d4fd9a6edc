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
	for i, old := range plan.Groups {
		members, isChanged := changed[old.GetName()]
		if !isChanged {
			continue
		}
		if next := group(old.GetName(), members, states); !proto.Equal(old, next) {
			plan.Groups[i] = next
			differs = true
		}
	}
	if next := peers(c.Peers, states); !slices.EqualFunc(next, former.GetPeers(), equalMessages) {
		plan.Peers = next
		differs = true
	}
	plan.Services = slices.Clone(former.GetServices())
	for i := range services {
		if len(services[i].Spill) == 0 {
			continue // nothing else in a service has a state
		}
		if next := service(&services[i], states); !proto.Equal(next, plan.Services[i]) {
			plan.Services[i] = next
			differs = true
		}
	}
	if !differs {
		return former
	}
	plan.Requires = requires(plan)
	return plan
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
