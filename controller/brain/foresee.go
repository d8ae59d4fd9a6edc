package brain

// Predicts what a config would change, without adopting it: a copy of the state decides, by
// the same rules.

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Snapshot is the state at one moment, for looking ahead: copied in the
// goroutine that owns the state, asked in any.
type Snapshot struct{ state *State }

// Foresight is what a config would bring about.
type Foresight struct {
	// The plan as it is when the probes of new targets have passed.
	Plan   *planv1.Plan
	Routes []RouteChange
	// Sessions that are established and end.
	Sessions []config.SessionEnd
	// No session that is established goes on: all routes go, at least until one begins.
	LastSessionEnds bool
	// Routes that the sessions have now.
	RoutesHeard int
	// Backends that no probe has judged yet: they count as active in Plan.
	AssumedActive []string
	// What would be probed that is not probed now.
	NewProbes []compile.Target
	// Pools whose sources were not asked yet, and why backends would get no buckets of
	// living ones, a sentence each.
	Unknown []string
}

// RouteChange is a route that would be announced or withdrawn.
type RouteChange struct {
	Prefix netip.Prefix
	// Else it would be withdrawn.
	Announced bool
	Reason    string
	Services  []string
}

// Snapshot copies what the state decides by: all that the brain changes in place.
func (s *State) Snapshot() Snapshot {
	c := *s
	c.transitions, c.buckets.changed = nil, nil
	h, p, b := &c.health, &c.plan, &c.buckets
	copyMaps(&h.due.names, &h.drained, &h.warned, &b.due.names, &b.uncertain, &b.lacking, &c.peers.inherited)
	copyMaps(&h.active, &p.running.active)
	copyMaps(&h.inherited)
	copyMaps(&h.pools)
	copyMaps(&h.use)
	copyMaps(&h.judgeAgain)
	h.unconfirmed = slices.Clone(h.unconfirmed)
	copyMaps(&b.maps, &b.next)
	copyMaps(&b.acknowledged, &p.running.maps)
	copyMaps(&b.unknown)
	copyMaps(&b.counts)
	for service, counts := range b.counts {
		b.counts[service] = maps.Clone(counts)
	}
	copyMaps(&c.buckets.agreement.proposals)
	copyMaps(&c.members.pools)
	copyMaps(&c.limits)
	copyMaps(&c.members.kept)
	copyMaps(&c.buckets.agents.said)
	copyMaps(&c.buckets.agents.needed)
	copyMaps(&c.buckets.agents.told)
	p.tables = maps.Clone(p.tables)
	copyMaps(&p.pending)
	copyMaps(&c.forwarder.unresolved)
	copyMaps(&c.routes.neighbors)
	copyMaps(&c.routes.unresolved)
	copyMaps(&c.routes.inherited)
	c.routes.byPrefix, c.routes.drains.services = copyValues(c.routes.byPrefix), copyValues(c.routes.drains.services)
	c.peers.verdicts, h.verdicts = copyValues(c.peers.verdicts), copyValues(h.verdicts)
	h.backends, h.flaps = copyValues(h.backends), copyValues(h.flaps)
	if d := c.routes.drains.machine; d != nil {
		machine := *d
		c.routes.drains.machine = &machine
	}
	return Snapshot{&c}
}

func copyMaps[K comparable, V any](each ...*map[K]V) {
	for _, m := range each {
		*m = maps.Clone(*m)
	}
}

func copyValues[K comparable, V any](from map[K]*V) map[K]*V {
	copied := make(map[K]*V, len(from))
	for key, value := range from {
		v := *value
		copied[key] = &v
	}
	return copied
}

// Accepted returns the config that the forwarder runs, if that is what is wanted;
// false: a plan is under way, or was refused, or there is none.
func (s *State) Accepted() (running *config.Config, accepted bool) {
	p := &s.plan
	if s.current == nil || p.running.inputs != s.current || p.wanted == nil {
		return nil, false
	}
	return s.current.loaded, p.accepted == p.wanted.Generation
}

// Refused returns why this config, which was loaded, is not the one that plans
// are made of; false: it is.
func (s *State) Refused(c *config.Config) (problem string, refused bool) {
	return s.configs.problem, s.current == nil || s.current.loaded != c
}

// ForwarderConnected: plans can be pushed to it.
func (s *State) ForwarderConnected() bool { return s.forwarder.connected }

// Config is the one in use.
func (s Snapshot) Config() *config.Config { return s.state.Config() }

// Config that plans are made of, as it was loaded; nil: none yet.
func (s *State) Config() *config.Config {
	if s.current == nil {
		return nil
	}
	return s.current.loaded
}

// Foresee what the config would bring about; to be called once. nil: the
// forwarder never told what it runs, so no plan is made.
func (s Snapshot) Foresee(c *config.Config) *Foresight {
	state := s.state
	if !state.forwarder.met {
		return nil
	}
	running := state.Config()
	before := state.routes.announced(running == nil || running.BGP == nil && c.BGP != nil)
	foreseen := &Foresight{RoutesHeard: len(before)}
	foreseen.endSessions(state, c)
	var probed []compile.Target
	if state.current != nil {
		probed = state.current.targets
	}
	ConfigLoaded{Config: c}.apply(state)
	foreseen.Unknown = state.members.assumeHeard(&state.step)
	foreseen.NewProbes = targetsBeyond(probed, state.current.targets)
	foreseen.AssumedActive = state.health.assumeActive(&state.step)
	state.flush()
	foreseen.Plan = state.plan.wanted
	state.assumeAccepted()
	state.routes.decide(state.routesFrom())
	bgpGone := running != nil && running.BGP != nil && c.BGP == nil
	foreseen.Routes = routeChanges(before, state.routes.announced(bgpGone), state.routes.byPrefix)
	if foreseen.LastSessionEnds {
		foreseen.addLastSession(before)
	}
	for _, service := range state.stateless() {
		for _, unknown := range state.buckets.unknown[service] {
			foreseen.Unknown = append(foreseen.Unknown, fmt.Sprintf("service %s: %s", service, unknown))
		}
	}
	return foreseen
}

// assumeActive has the first probes pass of targets that are new.
func (h *healthState) assumeActive(at *step) []string {
	assumed := map[string]bool{}
	for _, t := range at.current.targets {
		d := h.verdicts[t.Key()]
		if d.probed || d.inherited {
			continue
		}
		d.step(true, "assumed", at.now)
		for _, at := range t.For {
			assumed[at.Backend] = true
		}
	}
	return slices.Sorted(maps.Keys(assumed))
}

// targetsBeyond those that there were.
func targetsBeyond(before, targets []compile.Target) (added []compile.Target) {
	known := make(map[string]bool, len(before))
	for i := range before {
		known[before[i].Key()] = true
	}
	for i := range targets {
		if !known[targets[i].Key()] {
			added = append(added, targets[i])
		}
	}
	return added
}

// assumeAccepted has the forwarder take the plan and find its next hops.
func (s *State) assumeAccepted() {
	s.plan.accept(PlanAccepted{Generation: s.plan.wanted.GetGeneration()})
	s.plan.accepted, s.plan.refusal = s.plan.wanted.GetGeneration(), ""
	s.forwarder.generation, s.forwarder.unresolved = s.plan.accepted, nil
}

// announcedRoutes as the controller decided; where BGP is gone, none.
func (rs *routesState) announced(bgpGone bool) map[netip.Prefix]*routeState {
	announced := copyValues(rs.byPrefix)
	maps.DeleteFunc(announced, func(_ netip.Prefix, r *routeState) bool { return bgpGone || !r.announced })
	return announced
}

// endSessions of the running config by the next.
func (f *Foresight) endSessions(s *State, next *config.Config) {
	running := s.Config()
	if running == nil || !s.routes.sessionUp() {
		return
	}
	for _, end := range config.SessionEnds(running, next) {
		if s.routes.neighbors[end.Neighbor.Address] == established {
			f.Sessions = append(f.Sessions, end)
		}
	}
	ends := func(address netip.Addr) bool {
		return slices.ContainsFunc(f.Sessions, func(end config.SessionEnd) bool { return end.Neighbor.Address == address })
	}
	f.LastSessionEnds = true
	for address, state := range s.routes.neighbors {
		f.LastSessionEnds = f.LastSessionEnds && (state != established || ends(address))
	}
}

// addLastSession: the routes that stay desired leave with it.
func (f *Foresight) addLastSession(before map[netip.Prefix]*routeState) {
	listed := map[netip.Prefix]bool{}
	for _, change := range f.Routes {
		listed[change.Prefix] = true
	}
	for prefix, r := range before {
		if !listed[prefix] {
			f.Routes = append(f.Routes, RouteChange{Prefix: prefix, Reason: "every BGP session ends; it is announced again when one has begun", Services: r.services})
		}
	}
	slices.SortFunc(f.Routes, func(a, b RouteChange) int { return comparePrefixes(a.Prefix, b.Prefix) })
}

// routeChanges between what routers hear of before and after; all has the reasons.
func routeChanges(before, after, all map[netip.Prefix]*routeState) []RouteChange {
	prefixes := maps.Clone(before)
	maps.Copy(prefixes, after)
	var changes []RouteChange
	for _, prefix := range slices.SortedFunc(maps.Keys(prefixes), comparePrefixes) {
		_, was := before[prefix]
		_, is := after[prefix]
		if was == is {
			continue
		}
		change := RouteChange{Prefix: prefix, Announced: is, Reason: "no service here has it any more", Services: prefixes[prefix].services}
		if is {
			change.Reason = "its services have backends"
		} else if r := all[prefix]; r != nil {
			change.Reason = cmp.Or(r.reason, "bgp is removed")
		}
		changes = append(changes, change)
	}
	return changes
}
