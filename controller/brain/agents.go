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
	again time.Time
}

func (e AgentSaid) apply(s *State) {
	s.noteCounts(e)
	s.noteAgent(e.Backend, e)
	if s.current == nil {
		return
	}
	e.VIPsLacking = 0 // of that backend's services
	for own := range e.Own {
		for _, backend := range s.current.backendsAt[own] {
			if backend != e.Backend {
				s.noteAgent(backend, e)
			}
		}
	}
}

// noteAgent of one of its backends.
func (s *State) noteAgent(backend string, e AgentSaid) {
	former := s.agents.said[backend]
	now := agentSaid{at: s.now, speaks: e.Serves, accepts: e.Accepts, lacking: e.VIPsLacking}
	s.agents.said[backend] = now
	if until := s.now.Add(speaksFor); s.agents.again.IsZero() || until.Before(s.agents.again) {
		s.agents.again = until
	}
	if now.speaks != former.speaks || former.at.IsZero() || !maps.Equal(now.accepts, former.accepts) {
		s.agentChanged(backend)
	}
}

// checkAgents by time: for silence, and when all were heard that speak.
func (s *State) checkAgents() {
	if s.agents.again.IsZero() || s.now.Before(s.agents.again) {
		return
	}
	var next earliest
	for backend, said := range s.agents.said {
		switch until := said.at.Add(speaksFor); {
		case !said.speaks:
		case until.After(s.now):
			next.add(until)
		default:
			said.speaks = false
			s.agents.said[backend] = said
			s.agentChanged(backend)
		}
	}
	if heard := s.agents.since.Add(heardAfter); heard.After(s.now) {
		next.add(heard)
	} else if !s.agents.allHeard {
		s.agents.allHeard = true
		s.buckets.due.add(s.stateless()...)
	}
	s.agents.again = next.at
}

// agentChanged what it says, or has fallen silent.
func (s *State) agentChanged(backend string) {
	if s.current == nil {
		return
	}
	s.health.due.add(s.current.poolsOfBackend[backend]...)
	for _, service := range s.stateless() {
		if slices.ContainsFunc(s.current.byName[service].Members, func(m config.Member) bool { return m.Backend.Name == backend }) {
			s.buckets.due.add(service)
		}
	}
}

// drains: the backend's probes fail, and its agent speaks. It is not dead, and its
// connections stay.
func (s *State) drains(backend string) bool { return s.agents.said[backend].speaks }

// unknownMembers of a service, which it marks, each with a backend that may have connections, and whose
// agent does not accept its packets, or the other way round. An agent that speaks a former
// version's language is taken to accept all.
func (s *State) unknownMembers(service *config.Service, situation *buckets.Situation) (unknown []UnknownBackend) {
	if s.current.config.Agents == nil {
		return nil
	}
	holders := slices.DeleteFunc(s.buckets.maps[service.Name].Backends(), func(backend string) bool {
		return situation.Backends[backend].State != buckets.Alive
	})
	for i := range situation.Members {
		m := &situation.Members[i]
		isStranger := func(holder string) bool { return !s.knowOneAnother(situation, m.Backend, holder) }
		if at := slices.IndexFunc(holders, isStranger); at >= 0 {
			m.Unknown = true
			unknown = append(unknown, UnknownBackend{m.Backend, holders[at]})
		}
	}
	return unknown
}

func (s *State) knowOneAnother(situation *buckets.Situation, a, b string) bool {
	return a == b || s.accepts(a, situation.Backends[b].Address) && s.accepts(b, situation.Backends[a].Address)
}

// accepts: the agent of a backend takes the packets of one with that address.
func (s *State) accepts(backend string, other netip.Addr) bool {
	said := s.agents.said[backend]
	if said.at.IsZero() {
		return s.agents.allHeard // else it is not known yet
	}
	return said.accepts == nil || said.accepts[config.AgentAddressOf(other)]
}

// silentAgents of backends that need theirs, in order of name.
func (s *State) silentAgents() (silent []string) {
	for backend := range s.current.needAgents {
		if s.isSilent(backend) {
			silent = append(silent, backend)
		}
	}
	slices.Sort(silent)
	return silent
}

// agentsBehind the config: they lack VIPs of their services. In order of name.
func (s *State) agentsBehind() (behind []string) {
	for backend, said := range s.agents.said {
		if said.lacking > 0 && !s.isSilent(backend) && s.current.poolsOfBackend[backend] != nil {
			behind = append(behind, backend)
		}
	}
	slices.Sort(behind)
	return behind
}

func (s *State) isSilent(backend string) bool {
	if said := s.agents.said[backend]; !said.at.IsZero() {
		return s.now.Sub(said.at) > silentAfter
	}
	return s.now.Sub(s.agents.since) > heardAfter
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
