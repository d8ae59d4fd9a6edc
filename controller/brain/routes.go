package brain

// Which prefixes are to be announced, and why not. The speaker announces them
// while it finds the forwarder well; what is said here of a route's being
// announced repeats its judgement.

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/config"
)

// routesState is what is announced, and to whom.
type routesState struct {
	byPrefix map[netip.Prefix]*routeState
	wanted   []Route // from byPrefix, in order
	basis    basis
	// How often what the speaker is to know changed.
	changes uint64
	// Since this controller started, it was known what to announce.
	decided bool
	// The plan that the forwarder must have for them.
	plan uint64
	// Prefixes that the speaker had from the controller before this one.
	inherited map[netip.Prefix]bool
	// Routes carry GRACEFUL_SHUTDOWN and go when its time is over; and when the
	// first of them does that goes with a drained service, zero: none.
	draining bool
	drainEnd earliest
	// Of the decision under way: why the next hops of a group are not known.
	unresolved map[string]string
	neighbors  map[netip.Addr]string // states of the BGP sessions
}

// routeState is what became of one announceable prefix.
type routeState struct {
	route    Route
	services []string
	// Given to the speaker; and as far as is known, routers have it.
	desired, announced bool
	// Next hops of all active backends were resolved once; one that is lost
	// later drops packets but no route.
	nextHopsResolved bool
	// Routers have it by the controller before this one, which has not decided yet.
	inherited bool
	reason    string
	since     time.Time
}

// whyNoRoutes is what holds for every route; at most one of the reasons is
// given.
type whyNoRoutes struct {
	// None is to be announced.
	none string
	// It is not known which are: those that are desired stay so.
	undecided string
	// Those that are desired do not reach the routers, as the speaker sees by
	// itself.
	withheld string
	// They are about to be withdrawn on purpose, and carry GRACEFUL_SHUTDOWN.
	draining bool
}

func (w whyNoRoutes) reason() string { return cmp.Or(w.none, w.undecided, w.withheld) }

// decideRoutes goes over every announceable prefix.
func (s *State) decideRoutes() {
	if s.current == nil {
		return
	}
	s.routes.unresolved = map[string]string{}
	present := make(map[netip.Prefix]bool, len(s.current.announceables))
	why, before := s.whyNoRoutes(), s.routes.changes
	s.routes.draining, s.routes.drainEnd = why.draining, earliest{}
	if why.undecided == "" && !s.routes.decided {
		s.routes.decided = true
		s.routes.changes++
	}
	for _, a := range s.current.announceables {
		present[a.Prefix] = true
		s.decideRoute(a, why)
	}
	for prefix, r := range s.routes.byPrefix {
		if !present[prefix] {
			s.routes.set(&s.step, r, Route{}, false, "no service here has it any more", "")
			delete(s.routes.byPrefix, prefix)
		}
	}
	if s.routes.changes != before {
		s.routes.wanted = s.routes.list()
	}
}

func (s *State) decideRoute(a config.Route, why whyNoRoutes) {
	r := s.routes.byPrefix[a.Prefix]
	if r == nil {
		inherited := s.routes.inherited[a.Prefix]
		r = &routeState{since: s.now, nextHopsResolved: inherited, inherited: inherited}
		s.routes.byPrefix[a.Prefix] = r
	}
	r.services = a.Services
	if why.undecided != "" {
		s.routes.set(&s.step, r, r.route, r.desired, "", why.undecided)
		return
	}
	if r.inherited {
		r.announced, r.inherited = true, false // no news if it stays so
	}
	nextHop, haveNextHop := s.current.config.Machine.Address(a.Prefix.Addr())
	if !haveNextHop && a.Prefix.Addr().Is4() {
		nextHop, haveNextHop = s.current.config.Machine.Address(netip.IPv6Unspecified()) // RFC 8950
	}
	route := Route{Prefix: a.Prefix, NextHop: nextHop, GracefulShutdown: why.draining, Communities: a.Communities, LargeCommunities: a.LargeCommunities}
	reason := why.none
	switch {
	case reason != "":
	case !haveNextHop:
		reason = "the machine has no address of this family (machine.addresses)"
	default:
		reason = s.whyNotServed(a, r)
	}
	if d := s.drains.of(a); d != nil && reason == "" {
		route.GracefulShutdown = true
		reason = s.routes.drain(d, r, s.now)
	}
	s.routes.set(&s.step, r, route, reason == "", reason, why.withheld)
}

// drain of services that are drained: it goes when the time of that is over,
// at once if it is not announced.
func (rs *routesState) drain(d *drain, r *routeState, now time.Time) string {
	if !r.announced || !now.Before(d.until) {
		return d.outcome()
	}
	rs.draining = true
	rs.drainEnd.add(d.until)
	return ""
}

// set notes what was decided. A route that is desired is not announced
// while something withholds it.
func (rs *routesState) set(at *step, r *routeState, route Route, desired bool, reason, withheld string) {
	announced := desired && withheld == ""
	reason = cmp.Or(withheld, reason)
	if announced != r.announced {
		r.since = at.now
		rs.note(at, cmp.Or(route.Prefix, r.route.Prefix).String(), announced, reason)
	}
	if desired != r.desired || (desired && !route.Equal(r.route)) {
		rs.changes++
	}
	r.route, r.desired, r.announced, r.reason = route, desired, announced, reason
}

// note where routers can have it.
func (rs *routesState) note(at *step, prefix string, announced bool, reason string) {
	switch {
	case !at.current.config.Announces():
	case !announced:
		at.note("route", prefix, "announced", "withdrawn", reason)
	case at.current.config.BGP != nil && !rs.sessionUp():
		at.note("route", prefix, "withdrawn", "announced", "its services have backends; no BGP session is established yet")
	default:
		at.note("route", prefix, "withdrawn", "announced", "its services have backends")
	}
}

// whyNoRoutes looks at what concerns the whole machine.
func (s *State) whyNoRoutes() whyNoRoutes {
	f := &s.forwarder
	draining := s.machineDraining()
	switch {
	case s.drains.machine != nil && !draining:
		return whyNoRoutes{none: "the machine is drained"}
	case !s.health.cutOffSince.IsZero():
		return whyNoRoutes{none: "this machine is cut off: every pool fails and its gateway does not answer"}
	}
	forwarder := ""
	if reason := f.health.Reason(); reason != "" {
		forwarder = "forwarder: " + reason
	}
	if undecided := s.whyUndecided(); undecided != "" {
		return whyNoRoutes{undecided: cmp.Or(forwarder, undecided)}
	}
	speaker := ""
	if s.current.config.Announces() && s.speaker.reason != "" {
		speaker = "speaker: " + s.speaker.reason
	}
	return whyNoRoutes{withheld: cmp.Or(forwarder, speaker), draining: draining}
}

// whyUndecided: with less than this known, a decision would be a guess.
func (s *State) whyUndecided() string {
	switch {
	case !s.health.firstRound:
		return fmt.Sprintf("waiting for the first probe of %d of %d targets", s.health.unprobed(), len(s.health.verdicts))
	case s.plan.accepted == 0 && s.plan.refusal != "":
		return "the forwarder refuses the plan: " + s.plan.refusal
	case s.plan.accepted == 0:
		return "waiting for the forwarder to accept the plan"
	case s.current.config.Announces() && !s.speaker.met:
		return "speaker: " + s.speaker.reason
	}
	return ""
}

// machineDraining: routes are about to be withdrawn on purpose.
func (s *State) machineDraining() bool {
	return s.drains.machine != nil && s.now.Before(s.drains.machine.until) && s.routes.announceAnything()
}

// announce one of them.
func (rs *routesState) announce(prefixes []netip.Prefix) bool {
	return slices.ContainsFunc(prefixes, func(prefix netip.Prefix) bool {
		r := rs.byPrefix[prefix]
		return r != nil && r.announced
	})
}

func (rs *routesState) announceAnything() bool {
	for _, r := range rs.byPrefix {
		if r.announced {
			return true
		}
	}
	return false
}

// whyNotServed: at least one service on the prefix must have a backend, in the
// plan that the forwarder runs too, or keep its route without one.
func (s *State) whyNotServed(a config.Route, r *routeState) string {
	reason := "no backend"
	for _, name := range a.Services {
		service := s.current.byName[name]
		keeps := keepsRoute(service)
		why, tooFew := s.health.tooFew(service)
		switch {
		case !keeps && tooFew:
			if why != "" {
				reason = "too few backends: " + why
			}
		case !s.plan.serves(s.current, a.Prefix, name, keeps):
			reason = "waiting for the forwarder to accept the plan that serves it"
		case s.buckets.whyWaits(&s.step, service) != "":
			reason = s.buckets.whyWaits(&s.step, service)
		default:
			return s.whyUnresolved(a, r)
		}
	}
	return reason
}

// serves: the plan that the forwarder has accepted serves the prefix already.
func (p *planState) serves(in *inputs, prefix netip.Prefix, service string, keeps bool) bool {
	running := p.running
	return running.inputs != nil && running.inputs.offers[offer{prefix, service}] &&
		(keeps || running.active[running.inputs.byName[service].Group] >= in.byName[service].BackendsMin)
}

func keepsRoute(service *config.Service) bool {
	return service.WhenNone == config.WhenNoneKeep || service.WhenNone == config.WhenNoneFailOpen || len(service.Spill) > 0
}

// whyUnresolved: before a prefix is announced the first time, the next hops of
// its active backends must be known, or its first packets are dropped.
func (s *State) whyUnresolved(a config.Route, r *routeState) string {
	if r.nextHopsResolved {
		return ""
	}
	for _, name := range a.Services {
		if reason := s.whyGroupUnresolved(s.current.byName[name]); reason != "" {
			return reason
		}
	}
	// A status from before the plan knows nothing of its backends.
	if s.forwarder.generation < s.plan.accepted {
		return "waiting for the forwarder's next hops"
	}
	r.nextHopsResolved = true
	return ""
}

// whyGroupUnresolved looks at a group once for all of its services.
func (s *State) whyGroupUnresolved(service *config.Service) string {
	if len(s.forwarder.unresolved) == 0 {
		return ""
	}
	reason, known := s.routes.unresolved[service.Group]
	if known {
		return reason
	}
	for _, m := range service.Members {
		u, missing := s.forwarder.unresolved[m.Backend.Name]
		if missing && s.health.takesNew(service.Group, m) {
			reason = fmt.Sprintf("next hop of backend %s (%s) is not resolved: %s", u.Backend, u.Address, u.Why)
			break
		}
	}
	s.routes.unresolved[service.Group] = reason
	return reason
}

func (rs *routesState) list() []Route {
	var routes []Route
	for _, r := range rs.byPrefix {
		if r.desired {
			routes = append(routes, r.route)
		}
	}
	slices.SortFunc(routes, func(a, b Route) int { return comparePrefixes(a.Prefix, b.Prefix) })
	return routes
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
