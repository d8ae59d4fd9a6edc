package brain

// What the agents of backends say: what lives there, whether a backend whose probes fail
// is dead, and which agents know one another.

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/config"
)

const (
	// An agent whose latest state is older is silent.
	speaksFor = 3 * time.Second
	// One of a former version spoke less often.
	silentAfter = 12 * time.Second
	// By then every agent that speaks was heard by a controller that has started.
	heardAfter = 10 * time.Second
	// How often agents count their connections: the older the moves that wait for it, the
	// less often.
	countIntervalMin = time.Second
	countIntervalMax = 10 * time.Second
)

// AgentSaid is the complete state that a backend's agent reports.
type AgentSaid struct {
	Backend string
	// When its connections were counted; zero: they were not.
	Counted time.Time
	// By service and bucket. A service that is missing was not counted.
	Counts map[string]map[uint32]uint32
	// Packets come out of tunnels there.
	Serves bool
	// Its own addresses: it is the agent of all backends that have one of them.
	Own map[config.AgentAddress]bool
	// Backends whose agents' packets it takes; nil: it does not say.
	Accepts map[config.AgentAddress]bool
	// VIPs of the backend's services that its config lacks.
	VIPsLacking int
}

// agentSaid is what is kept of it.
type agentSaid struct {
	at      time.Time
	speaks  bool // within speaksFor of the latest that serves
	accepts map[config.AgentAddress]bool
	lacking int // VIPs
}

// agentsState is what is known of the agents.
type agentsState struct {
	// By backend.
	said map[string]agentSaid
	// When messages began to be received.
	since time.Time
	// Agents that do not speak are not waited for any more.
	allHeard bool
	// When one may fall silent, or all are heard; zero: nothing is waited for.
	again earliest
}

func (e AgentSaid) apply(s *State) {
	s.buckets.count(e)
	s.agentsChanged(s.agents.hear(e, &s.step))
}

// agentsChanged what they say, or have fallen silent.
func (s *State) agentsChanged(backends []string) {
	if s.current == nil {
		return
	}
	for _, backend := range backends {
		s.health.due.add(s.current.poolsOfBackend[backend]...)
		for _, service := range s.stateless() {
			if slices.ContainsFunc(s.current.byName[service].Members, func(m config.Member) bool { return m.Backend.Name == backend }) {
				s.buckets.due.add(service)
			}
		}
	}
}

// hear an agent, and return the backends whose agent says another thing than before.
func (a *agentsState) hear(e AgentSaid, at *step) (changed []string) {
	if a.hearOf(e.Backend, e, at.now) {
		changed = append(changed, e.Backend)
	}
	if at.current == nil {
		return changed
	}
	e.VIPsLacking = 0 // of that backend's services
	for own := range e.Own {
		for _, backend := range at.current.backendsAt[own] {
			if backend != e.Backend && a.hearOf(backend, e, at.now) {
				changed = append(changed, backend)
			}
		}
	}
	return changed
}

// hearOf one of its backends, and report whether it says another thing than before.
func (a *agentsState) hearOf(backend string, e AgentSaid, now time.Time) (isNews bool) {
	former := a.said[backend]
	said := agentSaid{at: now, speaks: e.Serves, accepts: e.Accepts, lacking: e.VIPsLacking}
	a.said[backend] = said
	a.again.add(now.Add(speaksFor))
	return said.speaks != former.speaks || former.at.IsZero() || !maps.Equal(said.accepts, former.accepts)
}

// check by time: which have fallen silent, and whether from now on all were heard that speak.
func (a *agentsState) check(now time.Time) (silent []string, allHeard bool) {
	if !a.again.isDue(now) {
		return nil, false
	}
	a.again = earliest{}
	for backend, said := range a.said {
		switch until := said.at.Add(speaksFor); {
		case !said.speaks:
		case until.After(now):
			a.again.add(until)
		default:
			said.speaks = false
			a.said[backend] = said
			silent = append(silent, backend)
		}
	}
	if heard := a.since.Add(heardAfter); heard.After(now) {
		a.again.add(heard)
	} else if !a.allHeard {
		a.allHeard, allHeard = true, true
	}
	return silent, allHeard
}

// speaks: a backend whose probes fail is not dead while its agent speaks, and its
// connections stay.
func (a *agentsState) speaks(backend string) bool { return a.said[backend].speaks }

// unknownMembers of a service, which it marks, each with a backend that may have connections, and whose
// agent does not accept its packets, or the other way round. An agent that speaks a former
// version's language is taken to accept all.
func (a *agentsState) unknownMembers(in *inputs, m *buckets.Map, situation *buckets.Situation) (unknown []UnknownBackend) {
	if in.config.Agents == nil {
		return nil
	}
	holders := slices.DeleteFunc(m.Backends(), func(backend string) bool {
		return situation.Backends[backend].State != buckets.Alive
	})
	for i := range situation.Members {
		member := &situation.Members[i]
		isStranger := func(holder string) bool { return !a.knowOneAnother(situation, member.Backend, holder) }
		if at := slices.IndexFunc(holders, isStranger); at >= 0 {
			member.Unknown = true
			unknown = append(unknown, UnknownBackend{member.Backend, holders[at]})
		}
	}
	return unknown
}

func (a *agentsState) knowOneAnother(situation *buckets.Situation, x, y string) bool {
	return x == y || a.accepts(x, situation.Backends[y].Address) && a.accepts(y, situation.Backends[x].Address)
}

// accepts: the agent of a backend takes the packets of one with that address.
func (a *agentsState) accepts(backend string, other netip.Addr) bool {
	said := a.said[backend]
	if said.at.IsZero() {
		return a.allHeard // else it is not known yet
	}
	return said.accepts == nil || said.accepts[config.AgentAddressOf(other)]
}

// silent agents of backends that need theirs, in order of name.
func (a *agentsState) silent(at *step) (silent []string) {
	for backend := range at.current.needAgents {
		if a.isSilent(backend, at.now) {
			silent = append(silent, backend)
		}
	}
	slices.Sort(silent)
	return silent
}

// behind the config: they lack VIPs of their services. In order of name.
func (a *agentsState) behind(at *step) (behind []string) {
	for backend, said := range a.said {
		if said.lacking > 0 && !a.isSilent(backend, at.now) && at.current.poolsOfBackend[backend] != nil {
			behind = append(behind, backend)
		}
	}
	slices.Sort(behind)
	return behind
}

func (a *agentsState) isSilent(backend string, now time.Time) bool {
	if said := a.said[backend]; !said.at.IsZero() {
		return now.Sub(said.at) > silentAfter
	}
	return now.Sub(a.since) > heardAfter
}

// CountInterval is how often agents are to count.
func (s *State) CountInterval() time.Duration {
	interval := countIntervalMax
	for _, m := range s.buckets.maps {
		for _, step := range m.Steps {
			interval = min(interval, max(countIntervalMin, s.now.Sub(step.At)/10))
		}
	}
	return interval
}
