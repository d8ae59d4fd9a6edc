package brain

// The maps of stateless services: each follows the one before, which a
// restarted controller has from the plan that its forwarder runs.

import (
	"fmt"

	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

func (s *State) formerBuckets(service string) buckets.Former { return s.buckets[service] }

// bucketsAfter the plan has followed.
func (s *State) bucketsAfter(plan *planv1.Plan) map[string]buckets.Former {
	after := map[string]buckets.Former{}
	for _, service := range plan.GetServices() {
		if service.GetBucketMap() != nil {
			after[service.GetName()] = s.buckets[service.GetName()].Then(service.GetBucketMap())
		}
	}
	return after
}

// changedBuckets says which service's number of buckets differs from what runs:
// all its connections would change their backends. Empty: none does.
func (s *State) changedBuckets(c *config.Config) (problem string) {
	if s.current == nil {
		return ""
	}
	for i := range c.Services {
		next := &c.Services[i]
		now := s.current.byName[next.Name]
		if now != nil && now.Buckets != 0 && next.Buckets != 0 && now.Buckets != next.Buckets {
			return fmt.Sprintf("services[%d].buckets: %d in place of %d would move every connection of %s: remove the service and add it under another name, or leave the number", i, next.Buckets, now.Buckets, next.Name)
		}
	}
	return ""
}
