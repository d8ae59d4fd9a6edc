package brain

// Which prefixes are announced, and why not.

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
	// Routes carry GRACEFUL_SHUTDOWN and go when its time is over; and when the
	// first of them does that goes with a drained service, zero: none.
	draining bool
	drainEnd time.Time
	// Of the decision under way: why the next hops of a group are not known.
	unresolved map[string]string
	neighbors  map[netip.Addr]string // states of the BGP sessions
}

// routeState is what became of one announceable prefix.
type routeState struct {
	route     Route
	services  []string
	announced bool
	// Next hops of all active backends were resolved once since the forwarder
	// was last unhealthy; one that is lost later drops packets but no route.
	nextHopsResolved bool
	reason           string
	since            time.Time
}

// decideRoutes goes over every announceable prefix.
func (s *State) decideRoutes() {
	if s.current == nil {
		return
	}
	s.routes.unresolved = map[string]string{}
	present := make(map[netip.Prefix]bool, len(s.current.announceables))
	machineReason, draining := s.whyNoRoutes()
	s.routes.draining, s.routes.drainEnd = draining, time.Time{}
	for _, a := range s.current.announceables {
		present[a.Prefix] = true
		s.decideRoute(a, machineReason, draining)
	}
	for prefix, r := range s.routes.byPrefix {
		if !present[prefix] {
			s.setRoute(r, Route{}, false, "no service here has it any more")
			delete(s.routes.byPrefix, prefix)
		}
	}
	if s.changed.RoutesChanged {
		s.routes.wanted = s.listRoutes()
	}
}

func (s *State) decideRoute(a config.Route, machineReason string, draining bool) {
	r := s.routes.byPrefix[a.Prefix]
	if r == nil {
		r = &routeState{since: s.now}
		s.routes.byPrefix[a.Prefix] = r
	}
	r.services = a.Services
	if s.forwarder.accepted == 0 || s.forwarder.reason != "" {
		r.nextHopsResolved = false
	}
	nextHop, haveNextHop := s.current.config.Machine.Address(a.Prefix.Addr())
	if !haveNextHop && a.Prefix.Addr().Is4() {
		nextHop, haveNextHop = s.current.config.Machine.Address(netip.IPv6Unspecified()) // RFC 8950
	}
	route := Route{Prefix: a.Prefix, NextHop: nextHop, GracefulShutdown: draining, Communities: a.Communities, LargeCommunities: a.LargeCommunities}
	reason := machineReason
	switch {
	case reason != "":
	case !haveNextHop:
		reason = "the machine has no address of this family (machine.addresses)"
	default:
		reason = s.whyNotServed(a, r)
	}
	if d := s.routeDrain(a); d != nil && reason == "" {
		route.GracefulShutdown = true
		reason = s.drainRoute(d, r)
	}
	s.setRoute(r, route, reason == "", reason)
}

// drainRoute of services that are drained: it goes when the time of that is over,
// at once if it is not announced.
func (s *State) drainRoute(d *drain, r *routeState) string {
	if !r.announced || !s.now.Before(d.until) {
		return d.outcome()
	}
	s.routes.draining = true
	if s.routes.drainEnd.IsZero() || d.until.Before(s.routes.drainEnd) {
		s.routes.drainEnd = d.until
	}
	return ""
}

func (s *State) setRoute(r *routeState, route Route, announced bool, reason string) {
	if announced != r.announced {
		r.since = s.now
		name := cmp.Or(route.Prefix, r.route.Prefix).String()
		if announced {
			s.note("route", name, "withdrawn", "announced", "its services have backends")
		} else {
			s.note("route", name, "announced", "withdrawn", reason)
		}
	}
	if announced != r.announced || (announced && !route.Equal(r.route)) {
		s.changed.RoutesChanged = true
	}
	r.route, r.announced, r.reason = route, announced, reason
}

// whyNoRoutes is what withdraws everything; and whether that is on purpose
// and still under way, so that the routes carry GRACEFUL_SHUTDOWN.
func (s *State) whyNoRoutes() (reason string, draining bool) {
	f := &s.forwarder
	switch {
	case f.reason != "":
		return "forwarder: " + f.reason, false
	case !s.health.cutOffSince.IsZero():
		return "this machine is cut off: every pool fails and its gateway does not answer", false
	case s.machineDraining():
		return "", true
	case s.machine.stopping:
		return "the controller is stopping", false
	case s.machine.drain != nil:
		return "the machine is drained", false
	case !s.health.firstRound:
		return fmt.Sprintf("waiting for the first probe of %d of %d targets", s.unprobed(), len(s.health.verdicts)), false
	case f.accepted == 0 && f.refusal != "":
		return "the forwarder refuses the plan: " + f.refusal, false
	case f.accepted == 0:
		return "waiting for the forwarder to accept the plan", false
	}
	return "", false
}

// machineDraining: routes are about to be withdrawn on purpose.
func (s *State) machineDraining() bool {
	return (s.machine.drain != nil || s.machine.stopping) && s.now.Before(s.machineDrainEnd()) && s.announcesAnything()
}

// machineDrainEnd is when its routes are withdrawn.
func (s *State) machineDrainEnd() time.Time {
	if s.machine.stopping {
		return s.machine.stopUntil
	}
	return s.machine.drain.until
}

func (s *State) announcesAnything() bool {
	for _, r := range s.routes.byPrefix {
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
		why, tooFew := s.tooFew(service)
		switch {
		case !keeps && tooFew:
			if why != "" {
				reason = "too few backends: " + why
			}
		case !s.runs(a.Prefix, name, keeps):
			reason = "waiting for the forwarder to accept the plan that serves it"
		default:
			return s.whyUnresolved(a, r)
		}
	}
	return reason
}

// runs: the plan that the forwarder has accepted serves the prefix already.
func (s *State) runs(prefix netip.Prefix, service string, keeps bool) bool {
	running := s.forwarder.running
	return running.inputs != nil && running.inputs.offers[offer{prefix, service}] &&
		(keeps || running.active[running.inputs.byName[service].Group] >= s.current.byName[service].BackendsMin)
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
	if s.forwarder.generation < s.forwarder.accepted {
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
		if missing && s.takesNew(service.Group, m) {
			reason = fmt.Sprintf("next hop of backend %s (%s) is not resolved: %s", u.Backend, u.Address, u.Why)
			break
		}
	}
	s.routes.unresolved[service.Group] = reason
	return reason
}

func (s *State) listRoutes() []Route {
	var routes []Route
	for _, r := range s.routes.byPrefix {
		if r.announced {
			routes = append(routes, r.route)
		}
	}
	slices.SortFunc(routes, func(a, b Route) int { return comparePrefixes(a.Prefix, b.Prefix) })
	return routes
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
