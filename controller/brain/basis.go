package brain

// What is decided anew, and when. Each decision remembers what it was made by: values as they
// are, and of what is too large for that, how often it changed. It is made again when one of
// these differs, or when its own time has come.

import (
	"time"

	"github.com/guideway/guideway/controller/agreement"
)

// dueNames are pools or services that are to be looked at again, and how often one was added:
// the plan is outdated by it.
type dueNames struct {
	names map[string]bool
	added uint64
}

func newDueNames() dueNames { return dueNames{names: map[string]bool{}} }

func (d *dueNames) add(names ...string) {
	for _, name := range names {
		d.names[name] = true
		d.added++
	}
}

// planBasis is what the plan is decided by.
type planBasis struct {
	// Commands, other configs, another forwarder: these make a plan in the same Step.
	urgent struct {
		inputs                *inputs
		commands, connections uint64
		awaitsMembers         bool
	}
	// Of these many come together, and those within `coalesce` make one plan.
	pools, services, peers uint64
	gateway                gatewayState
}

func (s *State) currentPlanBasis() planBasis {
	basis := planBasis{
		pools: s.health.due.added, services: s.buckets.due.added, peers: s.peers.changes, gateway: s.health.gateway,
	}
	basis.urgent.inputs, basis.urgent.awaitsMembers = s.current, s.awaitsMembers()
	basis.urgent.commands, basis.urgent.connections = s.health.commands, s.forwarder.connections
	return basis
}

// planDue notes since when the plan is outdated, and says whether it is to be decided now.
func (s *State) planDue() bool {
	basis := s.currentPlanBasis()
	isOvertaken := s.forwarder.wanted != nil && s.forwarder.wanted.Generation < s.forwarder.numbered
	if s.current == nil || basis == s.planBasis && !isOvertaken {
		return false
	}
	if s.outdatedSince.IsZero() {
		s.outdatedSince = s.now
	}
	return isOvertaken || basis.urgent != s.planBasis.urgent || s.now.Sub(s.outdatedSince) >= coalesce
}

func (s *State) flush() {
	s.planBasis, s.outdatedSince = s.currentPlanBasis(), time.Time{}
	s.decideCutOff()
	s.decidePlan(s.decideBackends())
	s.planDecisions++
	s.planDue() // it may have made work for the next
}

// judgeBasis is what concerns the backends of all pools.
type judgeBasis struct {
	inputs      *inputs
	connections uint64 // a forwarder brings states to inherit
	cutOffSince time.Time
}

func (s *State) judgeBasis() judgeBasis {
	return judgeBasis{s.current, s.forwarder.connections, s.health.cutOffSince}
}

// routesBasis is what routes are decided by, but for the time while some are drained.
type routesBasis struct {
	planDecisions, drains, resolutions uint64
	unwell, refusal                    string // the forwarder
	accepted, generation               uint64
	speaker                            speakerState
	etcdAway                           string
	isWithdrawn                        bool
}

func (s *State) currentRoutesBasis() routesBasis {
	f := &s.forwarder
	return routesBasis{
		planDecisions: s.planDecisions, drains: s.routeDrains, resolutions: f.resolutions,
		unwell: f.health.Reason(), refusal: f.refusal, accepted: f.accepted, generation: f.generation,
		speaker: s.speaker, etcdAway: s.agreement.away, isWithdrawn: s.agreement.saidWithdrawn || s.seenTold().Withdrawn,
	}
}

func (s *State) routesDue() bool {
	former := s.routes.basis
	s.routes.basis = s.currentRoutesBasis()
	return s.routes.basis != former || s.routes.draining
}

// agreementBasis is what is decided by of that which this machine is to have in etcd.
type agreementBasis struct {
	planDecisions, acknowledgements, commands uint64
	seen                                      *agreement.Seen
	etcdAway                                  string
	isDrained, isWithdrawn                    bool
}

func (s *State) agreementBasis() agreementBasis {
	return agreementBasis{
		planDecisions: s.planDecisions, acknowledgements: s.buckets.acknowledgements, commands: s.health.commands,
		seen: s.agreement.seen, etcdAway: s.agreement.away, isDrained: s.machine.drain != nil, isWithdrawn: s.isWithdrawn(),
	}
}
