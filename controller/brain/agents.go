package brain

// State from the backends' agents: which connections live there, whether a backend that
// fails its probes is dead, and which agents accept one another.

import (
	"cmp"
	"fmt"
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
	// How the backend answers; nil: that is not measured.
	Answers *Answers
}

// Answers of a backend in the latest minute, all its services together, as its agent measures
// them.
type Answers struct {
	// How many of them were measured.
	Measured uint64
	// That half of them took at most, and all but a hundredth.
	P50, P99 time.Duration
	// Requests that were open at once, on average.
	Open float64
	// RSTs that the backend sent; connections that are open, and those not yet accepted.
	Resets, Connections, AcceptQueue uint64
}

// AgentRefused: datagrams in the name of a backend's agent are refused. Anybody may have
// sent them.
type AgentRefused struct{ Backend, Reason string }

// agentSaid is what is kept of it.
type agentSaid struct {
	at      time.Time
	speaks  bool // within speaksFor of the latest that serves
	accepts map[config.AgentAddress]bool
	lacking int // VIPs
	answers *Answers
	// Why datagrams in its name were refused since; empty: none were.
	refused string
}

// agentsState is what is known of the agents.
type agentsState struct {
	// By backend.
	said map[string]agentSaid
	// When messages began to be received.
	since time.Time
	// Agents that do not speak are not waited for any more.
	allHeard bool
	// Since when backends need theirs; and what people were told of these, nil: nothing yet.
	needed map[string]time.Time
	told   map[string]string
	// When that was looked at last: not for each agent that changes.
	notedAt time.Time
	// When one may fall silent, or all are heard; zero: nothing is waited for.
	again earliest
}

func (e AgentSaid) apply(s *State) {
	s.buckets.count(e)
	s.buckets.agentsChanged(&s.step, &s.health, s.buckets.agents.hear(e, &s.step))
}

func (e AgentRefused) apply(s *State) {
	a := &s.buckets.agents
	said := a.said[e.Backend]
	said.refused = e.Reason
	a.said[e.Backend] = said
	a.again.add(s.now)
}

// agentsChanged what they say, or have fallen silent.
func (b *bucketState) agentsChanged(at *step, h *healthState, backends []string) {
	if at.current == nil {
		return
	}
	for _, backend := range backends {
		h.due.add(at.current.poolsOfBackend[backend]...)
		b.due.add(at.current.statelessWith(backend)...)
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
	said := agentSaid{at: now, speaks: e.Serves, accepts: e.Accepts, lacking: e.VIPsLacking, answers: e.Answers}
	a.said[backend] = said
	a.again.add(now.Add(speaksFor))
	return said.speaks != former.speaks || former.at.IsZero() || !maps.Equal(said.accepts, former.accepts)
}

// check by time: which have fallen silent, and whether from now on all were heard that speak.
func (a *agentsState) check(at *step) (silent []string, allHeard bool) {
	now := at.now
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
	if again := a.notedAt.Add(speaksFor); again.After(now) {
		a.again.add(again)
	} else {
		a.notedAt = now
		a.note(at)
	}
	return silent, allHeard
}

// adopt which are needed.
func (a *agentsState) adopt(in *inputs, now time.Time) {
	former := a.needed
	a.needed = make(map[string]time.Time, len(in.needAgents))
	for backend := range in.needAgents {
		a.needed[backend] = now
		if since, known := former[backend]; known {
			a.needed[backend] = since
		}
	}
	a.again.add(now)
}

// answersOf a backend; nil: they are not measured, or its agent is silent.
func (a *agentsState) answersOf(backend string, now time.Time) *Answers {
	said := a.said[backend]
	if now.Sub(said.at) >= silentAfter {
		return nil
	}
	return said.answers
}

// Answers of all backends whose agents measure them, by name.
func (s *State) Answers() map[string]*Answers {
	all := map[string]*Answers{}
	for backend := range s.buckets.agents.said {
		if answers := s.buckets.agents.answersOf(backend, s.now); answers != nil {
			all[backend] = answers
		}
	}
	return all
}

// States of an agent, as people are told them.
const (
	agentHeard   = "heard"
	agentBehind  = "behind"
	agentSilent  = "silent"
	agentRefused = "refused"
)

// stateOf an agent, and why; empty: it may be about to speak for the first time.
func (a *agentsState) stateOf(backend string, now time.Time) (state, reason string) {
	said := a.said[backend]
	switch isSilent := a.isSilent(backend, now); {
	case isSilent && said.refused != "":
		return agentRefused, "it is silent, and datagrams in its name are refused: " + said.refused
	case isSilent && said.at.IsZero():
		return agentSilent, "it was never heard since this controller started"
	case isSilent:
		return agentSilent, fmt.Sprintf("it was not heard for %v", silentAfter)
	case said.at.IsZero():
		return "", ""
	case said.lacking > 0:
		return agentBehind, "its config lacks VIPs of its backend's services: packets to these are dropped there"
	}
	return agentHeard, "its messages come"
}

// Of more agents that change alike at once, people are told in one line.
const agentsApart = 10

// agentChange of some agents, and why.
type agentChange struct{ from, to, reason string }

// note what changed of those that are needed. What is found first is one line.
func (a *agentsState) note(at *step) {
	former, told, changed := a.told, make(map[string]string, len(a.needed)), map[agentChange][]string{}
	for backend, since := range a.needed {
		state, reason := a.stateOf(backend, at.now)
		if state == "" {
			a.again.add(since.Add(heardAfter + 1))
			continue
		}
		if said := a.said[backend]; !said.speaks && (state == agentHeard || state == agentBehind) {
			a.again.add(said.at.Add(silentAfter + 1))
		}
		told[backend] = state
		if state != former[backend] {
			what := agentChange{former[backend], state, reason}
			changed[what] = append(changed[what], backend)
		}
	}
	switch {
	case len(told) == 0 || former == nil && len(told) < len(a.needed):
		a.told = nil // until all that speak were heard
	case former == nil:
		a.told = told
		a.noteFirst(at)
	default:
		a.told = told
		noteAgents(at, changed)
	}
}

func noteAgents(at *step, changed map[agentChange][]string) {
	order := slices.SortedFunc(maps.Keys(changed), func(a, b agentChange) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.reason, b.reason))
	})
	for _, what := range order {
		names := slices.Sorted(slices.Values(changed[what]))
		if len(names) > agentsApart {
			names = []string{enumerate(names)}
		}
		for _, name := range names {
			at.note("agent", name, what.from, what.to, what.reason)
		}
	}
}

func (a *agentsState) noteFirst(at *step) {
	cause := fmt.Sprintf("none of %d is silent", len(a.told))
	if silent := a.silent(at); len(silent) > 0 {
		cause = fmt.Sprintf("%d of %d are silent: %s", len(silent), len(a.told), enumerate(silent))
	}
	at.note("controller", "agents", "unknown", "heard", cause)
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
	return now.Sub(a.needed[backend]) > heardAfter
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
