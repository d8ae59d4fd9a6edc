package brain

// The events, and the immediate change of state by each. What follows from it (members,
// plan, routes) is decided afterwards, in one place each.

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
	"github.com/guideway/guideway/speaker/judge"
)

// Event is something that happened.
type Event interface{ apply(*State) }

type (
	// ConfigLoaded brings a valid config.
	ConfigLoaded struct{ Config *config.Config }
	// ConfigRefused: a reload failed; what was there before goes on.
	ConfigRefused struct {
		Problem string
		// Who brought it; empty: nobody, or it is not known.
		Who string
	}

	// ProbeResult is the outcome of one probe of the target with this key.
	ProbeResult struct {
		Target string
		OK     bool
		Reason string
		// It went through a tunnel.
		Tunnelled bool
		// How long it took.
		Took time.Duration
		// What will make probes fail later; and when the server's certificate
		// expires, if there is one.
		Warning string
		Expires time.Time
	}

	// ProbeUnsent: this machine could not send it, which says nothing about the
	// backend.
	ProbeUnsent struct{ Target, Reason string }

	// ForwarderHealth is the forwarder's answer to whether it forwards. It has a
	// way of its own to the brain and from the forwarder; nothing else decides
	// whether the forwarder counts as healthy.
	ForwarderHealth judge.Answer
	// ForwarderLost: it gives no answer to that.
	ForwarderLost struct{ Reason string }
	// ForwarderWaits: what was asked then is not answered, for want of a processor.
	ForwarderWaits struct {
		Asked  time.Time
		Reason string
	}

	// ForwarderConnected comes first after plans can be (or can again be)
	// pushed to it.
	ForwarderConnected struct{ Plan *planv1.Plan }
	// ForwarderDisconnected: they cannot. It may forward all the same.
	ForwarderDisconnected struct{ Reason string }
	// ForwarderStatus comes with every look at what is no matter of health.
	ForwarderStatus struct {
		Generation      uint64
		Unresolved      []Unresolved
		RestartRequired string
		Limits          []Limit
	}
	// ForwarderHandingOver: a successor is about to go on in its place; or,
	// with false, one process or the other goes on by itself.
	ForwarderHandingOver struct{ Now bool }
	// PlanAccepted: every worker forwards by this generation.
	PlanAccepted struct {
		Generation uint64
		Warnings   []string
	}
	// PlanRefused: the forwarder stays on its former plan.
	PlanRefused struct {
		Generation uint64
		Reason     string
	}

	// PlanPostponed: the forwarder will take the plan, but not yet.
	PlanPostponed struct {
		Generation uint64
		Reason     string
	}

	// SpeakerConnected: the speaker answers, and has these prefixes from a
	// controller.
	SpeakerConnected struct{ Prefixes []netip.Prefix }
	// SpeakerLost: it does not answer.
	SpeakerLost struct{ Reason string }
	// NeighborState is a BGP session's new state.
	NeighborState struct {
		Address netip.Addr
		State   string
	}
	// GatewayState reports whether the machine's own gateway answers.
	GatewayState struct {
		Address string
		Answers bool
	}

	// Tick: nothing but time has passed.
	Tick struct{}
)

type (
	// Thread and Device of an answer.
	Thread = judge.Thread
	Device = judge.Device
	// Unresolved next hop.
	Unresolved struct{ Backend, Address, Why string }
)

func (e ConfigLoaded) apply(s *State) {
	if problem := s.current.changedBuckets(e.Config); problem != "" {
		ConfigRefused{Problem: problem}.apply(s)
		return
	}
	pools := s.members.of(&s.step, e.Config)
	in, err := inputsWith(e.Config, pools)
	if err != nil {
		ConfigRefused{Problem: err.Error()}.apply(s)
		return
	}
	s.configs = configStatus{loadedAt: s.now}
	s.plan.rejected = nil
	s.members.pools = pools
	s.members.keep()
	s.adopt(in)
}

func (e ConfigRefused) apply(s *State) {
	s.configs.refuse(s.now, e.Problem, nil)
	s.noteBy(e.Who, "config", "config", "", "stale", e.Problem)
}

// adopt makes in the current config. Backends that stay keep their state
// until new checks have their first verdict.
func (s *State) adopt(in *inputs) {
	s.health.remember(&s.step)
	s.current = in
	wanted := make(map[string]bool, len(in.targets))
	for _, t := range in.targets {
		key := t.Key()
		wanted[key] = true
		if s.health.verdicts[key] == nil {
			s.health.verdicts[key] = &damped{rise: t.HealthCheck.Rise, fall: t.HealthCheck.Fall, since: s.now}
		}
	}
	maps.DeleteFunc(s.health.verdicts, func(key string, _ *damped) bool { return !wanted[key] })
	maps.DeleteFunc(s.health.warned, func(key string, _ bool) bool { return !wanted[key] })
	s.peers.adopt(in.config, s.now)
	s.buckets.agents.adopt(in, s.now)
	s.health.forgetRemoved(in.config.Backends)
	s.health.inheritVerdicts(&s.step)
	maps.DeleteFunc(s.routes.neighbors, func(address netip.Addr, _ string) bool { return !in.hasNeighbor(address) })
}

func (e ProbeResult) apply(s *State) {
	if e.Tunnelled && !e.OK {
		s.health.awaitConfirmation(&s.step, e)
		return
	}
	s.health.take(&s.step, e)
}

func (e ProbeUnsent) apply(s *State) { s.health.takeUnsent(&s.step, e) }

func (e NeighborState) apply(s *State) { s.routes.neighbors[e.Address] = e.State }

func (e GatewayState) apply(s *State) {
	if s.health.gateway.known && s.health.gateway.answers == e.Answers && s.health.gateway.address == e.Address {
		return
	}
	s.health.gateway = gatewayState{address: e.Address, known: true, answers: e.Answers, since: s.now}
}

func (Tick) apply(*State) {}

func newInputs(c *config.Config) *inputs {
	in := &inputs{
		config:        c,
		services:      c.ServicesHere(),
		targets:       compile.Targets(c),
		announceables: c.Routes(),
		checks:        map[compile.PoolBackend][]targetCheck{},
		byName:        map[string]*config.Service{},
		pools:         map[string]*config.Pool{},
		offers:        map[offer]bool{},
		routesOf:      map[string][]netip.Prefix{},

		reached:        map[string]bool{},
		groupsOf:       map[string][]string{},
		statelessPools: map[string]bool{},
		needAgents:     map[string]bool{},
		backendsAt:     map[config.AgentAddress][]string{},
		groups:         map[string][]config.Member{},
		servicesOf:     map[string]int{},
		rules:          map[string]groupRule{},
		poolsOfTarget:  map[string][]string{},
		poolsOfBackend: map[string][]string{},
	}
	for i := range c.Pools {
		in.pools[c.Pools[i].Name] = &c.Pools[i]
		in.slowStarts = in.slowStarts || c.Pools[i].SlowStart > 0
	}
	for i := range c.PoolViews {
		in.pools[c.PoolViews[i].Name] = &c.PoolViews[i].Pool
	}
	for i := range in.services {
		in.byName[in.services[i].Name] = &in.services[i]
		in.groups[in.services[i].Group] = in.services[i].Members
		in.servicesOf[in.services[i].Group]++
		in.rules[in.services[i].Group] = ruleOf(&in.services[i])
		if in.services[i].Mode == config.ModeStateless {
			in.stateless = append(in.stateless, in.services[i].Name)
		}
	}
	in.indexPools()
	in.indexAgents()
	for _, a := range in.announceables {
		for _, service := range a.Services {
			in.offers[offer{a.Prefix, service}] = true
			in.routesOf[service] = append(in.routesOf[service], a.Prefix)
		}
	}
	for _, t := range in.targets {
		key := t.Key()
		for _, at := range t.For {
			in.checks[at] = append(in.checks[at], targetCheck{target: key, name: t.HealthCheck.Name})
			if pools := in.poolsOfTarget[key]; !slices.Contains(pools, at.Pool) {
				in.poolsOfTarget[key] = append(pools, at.Pool)
			}
		}
	}
	return in
}

// indexPools notes which groups have which pools, and which pools which
// backends.
func (in *inputs) indexPools() {
	for _, group := range slices.Sorted(maps.Keys(in.groups)) {
		pools := map[string]bool{}
		for _, m := range in.groups[group] {
			for _, pool := range m.Pools {
				pools[pool], in.reached[pool] = true, true
			}
		}
		for pool := range pools {
			in.groupsOf[pool] = append(in.groupsOf[pool], group)
		}
		if rule := in.rules[group]; rule.min > 1 && len(rule.spill) > 0 {
			in.spilling = append(in.spilling, group)
		}
	}
	for pool := range in.reached {
		for _, b := range in.pools[pool].Backends {
			in.poolsOfBackend[b.Name] = append(in.poolsOfBackend[b.Name], pool)
		}
	}
}

// indexAgents notes what is for stateless services alone, and which backends need an agent.
func (in *inputs) indexAgents() {
	for i := range in.config.Backends {
		at := config.AgentAddressOf(in.config.Backends[i].Address)
		in.backendsAt[at] = append(in.backendsAt[at], in.config.Backends[i].Name)
	}
	for i := range in.services {
		service := &in.services[i]
		isStateless := service.Mode == config.ModeStateless
		for _, m := range service.Members {
			if in.config.Agents != nil && (isStateless || service.SecondChance) {
				in.needAgents[m.Backend.Name] = true
			}
			for _, pool := range m.Pools {
				others, isThere := in.statelessPools[pool]
				in.statelessPools[pool] = isStateless && (others || !isThere)
			}
		}
	}
}

func (in *inputs) hasNeighbor(address netip.Addr) bool {
	return in.config.BGP != nil && slices.ContainsFunc(in.config.BGP.Neighbors, func(n config.Neighbor) bool { return n.Address == address })
}
