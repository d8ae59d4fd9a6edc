package brain

// Which prefixes should be announced, and why others should not. The speaker announces them
// while it finds the forwarder healthy; whether a route is announced, as reported here,
// repeats the speaker's judgement.

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/config"
)

// routesState is what is announced, to whom, and what is withdrawn by command.
type routesState struct {
	speaker speakerState
	drains  drainsState

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

// routesFrom is what routes are decided by, beside what is theirs.
type routesFrom struct {
	*step
	health    *healthState
	forwarder *forwarderState
	plan      *planState
	buckets   *bucketState
}

func (s *State) routesFrom() routesFrom {
	return routesFrom{&s.step, &s.health, &s.forwarder, &s.plan, &s.buckets}
}

// areDue: while some are drained, time alone decides, too.
func (rs *routesState) areDue(from routesFrom) bool {
	f, p, b := from.forwarder, from.plan, from.buckets
	return rs.basis.differs(p.decisions, rs.drains.changes, rs.speaker, f.health.Reason(), p.refusal, p.accepted, f.generation,
		f.resolutions, b.agreement.away, b.isToldWithdrawn(from.step)) || rs.draining
}

// decide on every announceable prefix.
func (rs *routesState) decide(from routesFrom) {
	at := from.step
	if at.current == nil {
		return
	}
	rs.unresolved = map[string]string{}
	present := make(map[netip.Prefix]bool, len(at.current.announceables))
	why, before := rs.whyNone(from), rs.changes
	rs.draining, rs.drainEnd = why.draining, earliest{}
	if why.undecided == "" && !rs.decided {
		rs.decided = true
		rs.changes++
	}
	for _, a := range at.current.announceables {
		present[a.Prefix] = true
		rs.decideOne(from, a, why)
	}
	for prefix, r := range rs.byPrefix {
		if !present[prefix] {
			rs.set(at, r, Route{}, false, "no service here has it any more", "")
			delete(rs.byPrefix, prefix)
		}
	}
	if rs.changes != before {
		rs.wanted = rs.list()
	}
}

func (rs *routesState) decideOne(from routesFrom, a config.Route, why whyNoRoutes) {
	at := from.step
	r := rs.byPrefix[a.Prefix]
	if r == nil {
		inherited := rs.inherited[a.Prefix]
		r = &routeState{since: at.now, nextHopsResolved: inherited, inherited: inherited}
		rs.byPrefix[a.Prefix] = r
	}
	r.services = a.Services
	if why.undecided != "" {
		rs.set(at, r, r.route, r.desired, "", why.undecided)
		return
	}
	if r.inherited {
		r.announced, r.inherited = true, false // no news if it stays so
	}
	nextHop, haveNextHop := at.current.config.Machine.Address(a.Prefix.Addr())
	if !haveNextHop && a.Prefix.Addr().Is4() {
		nextHop, haveNextHop = at.current.config.Machine.Address(netip.IPv6Unspecified()) // RFC 8950
	}
	route := Route{Prefix: a.Prefix, NextHop: nextHop, GracefulShutdown: why.draining, Communities: a.Communities, LargeCommunities: a.LargeCommunities}
	reason := why.none
	switch {
	case reason != "":
	case !haveNextHop:
		reason = "the machine has no address of this family (machine.addresses)"
	default:
		reason = rs.whyNotServed(from, a, r)
	}
	if d := rs.drains.of(a); d != nil && reason == "" {
		route.GracefulShutdown = true
		reason = rs.drain(d, r, at.now)
	}
	rs.set(at, r, route, reason == "", reason, why.withheld)
}

// drain of services that are drained: it goes when the time of that is over,
// at once if it is not announced.
func (rs *routesState) drain(d *drain, r *routeState, now time.Time) string {
	if !r.announced || !now.Before(d.until) {
		return d.outcome(now)
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

// whyNone looks at what concerns the whole machine.
func (rs *routesState) whyNone(from routesFrom) whyNoRoutes {
	draining := rs.machineDraining(from.step)
	switch {
	case rs.drains.machine != nil && !draining:
		return whyNoRoutes{none: "the machine is drained"}
	case !from.health.cutOffSince.IsZero():
		return whyNoRoutes{none: "this machine is cut off: every pool fails and its gateway does not answer"}
	}
	forwarder := ""
	if reason := from.forwarder.health.Reason(); reason != "" {
		forwarder = "forwarder: " + reason
	}
	if undecided := rs.whyUndecided(from); undecided != "" {
		return whyNoRoutes{undecided: cmp.Or(forwarder, undecided)}
	}
	speaker := ""
	if from.current.config.Announces() && rs.speaker.reason != "" {
		speaker = "speaker: " + rs.speaker.reason
	}
	return whyNoRoutes{withheld: cmp.Or(forwarder, speaker), draining: draining}
}

// whyUndecided: with less than this known, a decision would be a guess.
func (rs *routesState) whyUndecided(from routesFrom) string {
	switch {
	case !from.health.firstRound:
		return fmt.Sprintf("waiting for the first probe of %d of %d targets", from.health.unprobed(), len(from.health.verdicts))
	case from.plan.accepted == 0 && from.plan.refusal != "":
		return "the forwarder refuses the plan: " + from.plan.refusal
	case from.plan.accepted == 0:
		return "waiting for the forwarder to accept the plan"
	case from.current.config.Announces() && !rs.speaker.met:
		return "speaker: " + rs.speaker.reason
	}
	return ""
}

// machineDraining: routes are about to be withdrawn on purpose.
func (rs *routesState) machineDraining(at *step) bool {
	return rs.drains.machine != nil && at.now.Before(rs.drains.machine.until) && rs.announceAnything()
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
func (rs *routesState) whyNotServed(from routesFrom, a config.Route, r *routeState) string {
	reason := "no backend"
	for _, name := range a.Services {
		service := from.current.byName[name]
		keeps := keepsRoute(service)
		why, tooFew := from.health.tooFew(service)
		switch {
		case !keeps && tooFew:
			if why != "" {
				reason = "too few backends: " + why
			}
		case !from.plan.serves(from.current, a.Prefix, name, keeps):
			reason = "waiting for the forwarder to accept the plan that serves it"
		case from.buckets.whyWaits(from.step, service) != "":
			reason = from.buckets.whyWaits(from.step, service)
		default:
			return rs.whyUnresolved(from, a, r)
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
func (rs *routesState) whyUnresolved(from routesFrom, a config.Route, r *routeState) string {
	if r.nextHopsResolved {
		return ""
	}
	for _, name := range a.Services {
		if reason := rs.whyGroupUnresolved(from.health, from.forwarder, from.current.byName[name]); reason != "" {
			return reason
		}
	}
	// A status from before the plan knows nothing of its backends.
	if from.forwarder.generation < from.plan.accepted {
		return "waiting for the forwarder's next hops"
	}
	r.nextHopsResolved = true
	return ""
}

// whyGroupUnresolved looks at a group once for all of its services.
func (rs *routesState) whyGroupUnresolved(h *healthState, f *forwarderState, service *config.Service) string {
	if len(f.unresolved) == 0 {
		return ""
	}
	reason, known := rs.unresolved[service.Group]
	if known {
		return reason
	}
	for _, m := range service.Members {
		u, missing := f.unresolved[m.Backend.Name]
		if missing && h.takesNew(service.Group, m) {
			reason = fmt.Sprintf("next hop of backend %s (%s) is not resolved: %s", u.Backend, u.Address, u.Why)
			break
		}
	}
	rs.unresolved[service.Group] = reason
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
