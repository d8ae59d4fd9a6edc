package brain

// What is decided anew, and when: a decision remembers what it was made by, and is made again
// when something of that differs, or when its own time has come.

import (
	"slices"
	"time"
)

// basis of a decision: comparable values as they are; and of what is too large for that, how
// often it changed.
type basis []any

// differs from what it was, and becomes this.
func (b *basis) differs(from ...any) bool {
	former := *b
	*b = from
	return !slices.Equal(former, from)
}

// dueNames are pools or services that are to be looked at again, and how often one was added.
type dueNames struct {
	names map[string]bool
	added uint64
}

func (d *dueNames) add(names ...string) {
	for _, name := range names {
		d.names[name] = true
		d.added++
	}
}

// planBasis has apart what waits within `coalesce` for more of its kind; the rest (commands,
// other configs, another forwarder) makes a plan in the same Step.
func (s *State) planBasis() (urgent, waits basis) {
	return basis{s.current, s.health.commands, s.forwarder.connections, s.awaitsMembers()},
		basis{s.health.due.added, s.buckets.due.added, s.peers.changes, s.health.gateway}
}

// planDue notes since when the plan is outdated, and says whether it is to be decided now.
func (s *State) planDue() bool {
	urgent, waits := s.planBasis()
	isOvertaken := s.forwarder.wanted != nil && s.forwarder.wanted.Generation < s.forwarder.numbered
	isUrgent := isOvertaken || !slices.Equal(urgent, s.urgentBasis)
	if s.current == nil || !isUrgent && slices.Equal(waits, s.waitsBasis) {
		return false
	}
	if s.outdatedSince.IsZero() {
		s.outdatedSince = s.now
	}
	return isUrgent || s.now.Sub(s.outdatedSince) >= coalesce
}

func (s *State) flush() {
	s.urgentBasis, s.waitsBasis = s.planBasis()
	s.outdatedSince = time.Time{}
	s.health.decideCutOff(&s.step)
	s.decidePlan(s.health.decide(&s.step, &s.agents, &s.peers, s.forwarder.connections))
	s.planDecisions++
	s.planDue() // it may have made work for the next
}

// routesDue: while some are drained, time alone decides, too.
func (s *State) routesDue() bool {
	f := &s.forwarder
	return s.routes.basis.differs(s.planDecisions, s.drains.changes, s.speaker, f.health.Reason(), f.refusal, f.accepted, f.generation,
		f.resolutions, s.agreement.away, s.isToldWithdrawn()) || s.routes.draining
}

func (s *State) agreementDue() bool {
	return s.agreement.basis.differs(s.planDecisions, s.buckets.acknowledgements, s.health.commands,
		s.agreement.seen, s.agreement.away, s.drains.machine != nil, s.isWithdrawn())
}
