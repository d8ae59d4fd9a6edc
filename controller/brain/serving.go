package brain

// Whether clients are served here: one answer for the CLI, the console, readyz, doctor and
// metrics.

import (
	"fmt"
	"net/netip"

	"github.com/guideway/guideway/controller/config"
)

// Serving is what a client meets, and why.
type Serving struct{ State, Reason string }

// The states of a machine and of its services. Stopping and CutOff are a
// machine's alone; a service is NotServing then, and where the machine is drained.
const (
	ServingAll  = "serving"
	ServingPart = "serving in part" // not on all addresses
	NotServing  = "not serving"
	NoBackend   = "no backend"
	KeptWithout = "kept without a backend" // when_none, spill
	Draining    = "draining"               // still served, routes carry GRACEFUL_SHUTDOWN
	Drained     = "drained"
	CutOff      = "cut off"
)

// servingMachine reports whether clients are served by this machine at all.
func (s *State) servingMachine() Serving {
	if m := s.machineItself(); m.State != ServingAll {
		return m
	}
	var none Serving
	for i := range s.current.services {
		service := &s.current.services[i]
		serving := s.servingService(service)
		if serving.State != NotServing && serving.State != NoBackend && serving.State != Drained {
			return Serving{State: ServingAll}
		}
		if i == 0 {
			none = Serving{NotServing, fmt.Sprintf("no service is served: %s: %s", service.Name, serving.why())}
		}
	}
	if none.State == "" {
		return Serving{NotServing, "the config has no service for this machine"}
	}
	return none
}

// why is never empty for a state that needs one.
func (v Serving) why() string {
	if v.Reason == "" {
		return v.State
	}
	return v.Reason
}

// machineItself is what holds for every service.
func (s *State) machineItself() Serving {
	switch {
	case s.current == nil:
		return Serving{NotServing, "no config"}
	case s.routes.drains.machine != nil && s.routes.machineDraining(&s.step):
		return Serving{Draining, s.routes.drains.machine.progress()}
	case s.routes.drains.machine != nil:
		return Serving{Drained, "drained by command"}
	case !s.health.cutOffSince.IsZero():
		return Serving{CutOff, "every pool fails and the gateway " + s.health.gateway.address + " does not answer"}
	}
	if reason := s.routes.whyNone(s.routesFrom()).reason(); reason != "" {
		return Serving{NotServing, reason}
	}
	if s.current.config.BGP != nil && !s.routes.sessionUp() {
		return Serving{NotServing, "no BGP session up"}
	}
	return Serving{State: ServingAll}
}

// servingService reports whether clients of a service are served here.
func (s *State) servingService(service *config.Service) Serving {
	switch m := s.machineItself(); m.State {
	case ServingAll:
	case Draining:
		return m
	case NotServing:
		return m
	default:
		return Serving{NotServing, "the machine is " + m.State + ": " + m.Reason}
	}
	if s.routes.drains.services[service.Name] != nil {
		return s.servingDrained(service.Name)
	}
	if reason, tooFew := s.health.tooFew(service); tooFew {
		if keepsRoute(service) {
			return Serving{KeptWithout, reason}
		}
		return Serving{NoBackend, reason}
	}
	if s.plan.running.active[service.Group] == 0 {
		return Serving{NotServing, "waiting for the forwarder to accept the plan that serves it"}
	}
	return s.routes.serving(s.current.routesOf[service.Name])
}

// servingDrained: the service is drained by command, and served as long as a route
// of it is announced.
func (s *State) servingDrained(service string) Serving {
	if kept := s.KeptRoute(service); kept != "" {
		return Serving{Draining, "drained by command, but " + kept}
	}
	if s.routes.announcesService(&s.step, service) {
		return Serving{Draining, s.routes.drains.services[service].progress()}
	}
	return Serving{Drained, "drained by command"}
}

// servingRoutes: addresses that are not announced are not reached. One that
// never is, because it lies in no prefix of ours, is routed by others.
func (rs *routesState) serving(prefixes []netip.Prefix) Serving {
	missing, reason := 0, ""
	for _, prefix := range prefixes {
		if r := rs.byPrefix[prefix]; r != nil && !r.announced {
			missing++
			reason = fmt.Sprintf("%s is not announced: %s", prefix, r.reason)
		}
	}
	switch {
	case missing == 0:
		return Serving{State: ServingAll}
	case missing < len(prefixes):
		return Serving{ServingPart, reason}
	}
	return Serving{NotServing, reason}
}
