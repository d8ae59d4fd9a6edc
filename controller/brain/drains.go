package brain

// Drains by command: of backends, of services, of the machine. Those of services and of the
// machine withdraw routes, which carry GRACEFUL_SHUTDOWN first:
//
//	announced ─► drain ─► GRACEFUL_SHUTDOWN ─► withdrawn
//	                 for drainDelay; or until traffic has moved away, or the time is up

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/config"
)

const (
	// Traffic has moved away when a second brought no more packets than this, by
	// the forwarder's counters: a router that has moved to other paths sends none,
	// and what was under way in it is over.
	packetsMovedMax = 10
	// Of traffic: less between two samples says too little.
	sampleMin = 900 * time.Millisecond
	// For so long after the routes are withdrawn traffic is still measured.
	measureAfter = 10 * time.Second
)

type (
	// DrainBackend takes a backend out of new connections, or back in.
	DrainBackend struct {
		Backend string
		Drain   bool
		// The user who gave the command; empty: it is not known. So of the others.
		Who string
	}
	// DrainService withdraws the routes that only drained services have, on purpose,
	// or undoes it.
	DrainService struct {
		Service string
		Drain   bool
		// Not 0: until traffic has moved away, but not longer.
		WaitMax time.Duration
		Who     string
	}
	// DrainMachine withdraws this machine's routes on purpose, or undoes it.
	DrainMachine struct {
		Drain   bool
		WaitMax time.Duration
		Who     string
	}
	// Traffic is what the forwarder's counters say: packets of each service, since
	// it started.
	Traffic struct{ Packets map[string]uint64 }
)

// drainsState is what commands say of routes.
type drainsState struct {
	machine *drain // nil: it is not drained
	// By name; also services that the config does not have (any more).
	services map[string]*drain
	// How often there was a command, or traffic was measured.
	changes uint64
}

// drain of routes.
type drain struct {
	since time.Time
	// The routes carry GRACEFUL_SHUTDOWN until then.
	until time.Time
	// It lasts until traffic has moved away, or to `until`.
	waits, moved bool
	// Nothing of it is announced any more.
	withdrawn bool
	// The latest sample, and the rate since the one before.
	sampledAt time.Time
	packets   uint64
	perSecond uint64
	measured  bool
}

// DrainView is a drain as people see it.
type DrainView struct {
	Since, Until            time.Time
	Waits, Moved, Withdrawn bool
	PacketsPerSecond        uint64
	Measured                bool
}

func newDrain(now time.Time, waitMax time.Duration) *drain {
	return &drain{since: now, until: now.Add(max(drainDelay, waitMax)), waits: waitMax > 0}
}

// waitLonger: the same drain again, of routes that still carry GRACEFUL_SHUTDOWN.
func (d *drain) waitLonger(now time.Time, waitMax time.Duration) {
	if waitMax > 0 && !d.withdrawn && now.Before(d.until) {
		d.waits, d.until = true, now.Add(waitMax)
	}
}

// sample of the packets forwarded so far.
func (d *drain) sample(packets uint64, now time.Time) {
	since := now.Sub(d.sampledAt)
	switch {
	case d.sampledAt.IsZero() || packets < d.packets: // a forwarder that restarted counts anew
	case since < sampleMin:
		return
	default:
		d.perSecond = uint64(float64(packets-d.packets) / since.Seconds())
		d.measured = true
	}
	d.sampledAt, d.packets = now, packets
	// Without a route, routers need no time.
	if d.waits && d.movedAway() && now.Before(d.until) && (d.withdrawn || now.Sub(d.since) >= drainDelay) {
		d.moved, d.until = true, now
	}
}

func (d *drain) movedAway() bool { return d.measured && d.perSecond <= packetsMovedMax }

// measures: its traffic is of interest.
func (d *drain) measures(now time.Time) bool {
	return d.waits && (!d.withdrawn || !d.movedAway() && now.Before(d.until.Add(measureAfter)))
}

func (d *drain) view() *DrainView {
	if d == nil {
		return nil
	}
	return &DrainView{Since: d.since, Until: d.until, Waits: d.waits, Moved: d.moved, Withdrawn: d.withdrawn, PacketsPerSecond: d.perSecond, Measured: d.measured}
}

// progress of a drain whose routes carry GRACEFUL_SHUTDOWN, for people.
func (d *drain) progress() string {
	text := "drained by command; routes carry GRACEFUL_SHUTDOWN"
	switch {
	case d.waits && d.measured:
		return fmt.Sprintf("%s until traffic has moved away: %d packets/s", text, d.perSecond)
	case d.waits:
		return text + " until traffic has moved away"
	}
	return text
}

// outcome says why the routes of a drain are withdrawn now.
func (d *drain) outcome(now time.Time) string {
	switch {
	case !d.waits:
		return "drained by command"
	case now.Before(d.until):
		return "drained by command: no route was announced"
	case d.moved:
		return fmt.Sprintf("drained by command: traffic has moved away (%d packets/s)", d.perSecond)
	case d.measured:
		return fmt.Sprintf("drained by command: the time is up, and %d packets/s still come", d.perSecond)
	}
	return "drained by command: the time is up, and the forwarder did not say what still comes"
}

func (e DrainBackend) apply(s *State) {
	s.health.commands++
	switch isDrained := s.health.drained[e.Backend]; {
	case e.Drain && !isDrained:
		s.health.drained[e.Backend] = true
		s.noteBy(e.Who, "drain", "backend "+e.Backend, "undrained", "drained", "by command")
	case !e.Drain && isDrained:
		delete(s.health.drained, e.Backend)
		s.noteBy(e.Who, "drain", "backend "+e.Backend, "drained", "undrained", "by command")
	}
	if s.current != nil {
		s.health.due.add(s.current.poolsOfBackend[e.Backend]...)
	}
}

func (e DrainService) apply(s *State) {
	s.routes.drains.changes++
	d := s.routes.drains.services[e.Service]
	switch {
	case e.Drain && d != nil:
		d.waitLonger(s.now, e.WaitMax)
	case e.Drain:
		s.routes.drains.services[e.Service] = newDrain(s.now, e.WaitMax)
		s.noteBy(e.Who, "service", e.Service, "serving", "drained", "drained by command")
	case d != nil:
		delete(s.routes.drains.services, e.Service)
		s.noteBy(e.Who, "service", e.Service, "drained", "serving", "undrained by command")
	}
}

func (e DrainMachine) apply(s *State) {
	s.routes.drains.changes++
	d := s.routes.drains.machine
	switch {
	case e.Drain && d != nil:
		d.waitLonger(s.now, e.WaitMax)
	case e.Drain:
		s.routes.drains.machine = newDrain(s.now, e.WaitMax)
		s.noteBy(e.Who, "machine", s.machineName(), "serving", "drained", "drained by command")
	case d != nil:
		s.routes.drains.machine = nil
		s.noteBy(e.Who, "machine", s.machineName(), "drained", "serving", "undrained by command")
	}
}

func (e Traffic) apply(s *State) {
	s.routes.drains.changes++
	var all uint64
	for _, packets := range e.Packets {
		all += packets
	}
	if d := s.routes.drains.machine; d != nil {
		d.sample(all, s.now)
	}
	for name, d := range s.routes.drains.services {
		d.sample(e.Packets[name], s.now)
	}
}

// noteWithdrawn drains: their routes carry GRACEFUL_SHUTDOWN no more.
func (rs *routesState) noteWithdrawn(at *step) {
	if d := rs.drains.machine; d != nil && !d.withdrawn && !rs.machineDraining(at) {
		d.withdrawn = true
		if d.waits {
			at.note("machine", at.machineName(), "draining", "drained", d.outcome(at.now))
		}
	}
	for name, d := range rs.drains.services {
		if !d.withdrawn && at.current != nil && !rs.announcesService(at, name) {
			d.withdrawn = true
			if d.waits {
				at.note("service", name, "draining", "drained", d.outcome(at.now))
			}
		}
	}
}

// announcesService: at least one of its routes is announced.
func (rs *routesState) announcesService(at *step, name string) bool {
	return slices.ContainsFunc(at.current.routesOf[name], func(prefix netip.Prefix) bool {
		r := rs.byPrefix[prefix]
		return r != nil && r.announced
	})
}

// measureTraffic: a drain waits for it.
func (ds *drainsState) measureTraffic(now time.Time) bool {
	if d := ds.machine; d != nil && d.measures(now) {
		return true
	}
	for _, d := range ds.services {
		if d.measures(now) {
			return true
		}
	}
	return false
}

// of a route: the drain by which it goes, the latest of those of all its services; nil: one
// of these is not drained, which keeps the route.
func (ds *drainsState) of(a config.Route) *drain {
	if len(ds.services) == 0 {
		return nil
	}
	var latest *drain
	for _, name := range a.Services {
		d := ds.services[name]
		if d == nil {
			return nil
		}
		if latest == nil || d.until.After(latest.until) {
			latest = d
		}
	}
	return latest
}

// keepers are the services that are not drained on a route of this one, and the
// first such route.
func (rs *routesState) keepers(at *step, service string) (prefix string, names []string) {
	for _, a := range at.current.announceables {
		if !slices.Contains(a.Services, service) {
			continue
		}
		for _, name := range a.Services {
			if rs.drains.services[name] == nil {
				names = append(names, name)
			}
		}
		if len(names) > 0 {
			return a.Prefix.String(), names
		}
	}
	return "", nil
}

// KeptRoute says of a drained service which of its routes stays, and why.
func (s *State) KeptRoute(service string) string {
	if s.current == nil {
		return ""
	}
	prefix, names := s.routes.keepers(&s.step, service)
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("%s stays announced: %s %s it too; drain %s as well, or give %s VIPs of its own", prefix, listed("service", names), verb(names, "has", "have"), verb(names, "it", "them"), service)
}

// Drains by command, for keeping.
type Drains struct {
	Machine            bool
	Services, Backends []string
}

// Drained is what is drained by command.
func (s *State) Drained() Drains {
	return Drains{Machine: s.routes.drains.machine != nil, Services: slices.Sorted(maps.Keys(s.routes.drains.services)), Backends: slices.Sorted(maps.Keys(s.health.drained))}
}

// HasBackend reports whether a service of this machine has that backend.
func (s *State) HasBackend(name string) bool {
	return s.current != nil && len(s.current.poolsOfBackend[name]) > 0
}

// HasService reports whether this machine has that service.
func (s *State) HasService(name string) bool {
	return s.current != nil && s.current.byName[name] != nil
}

// LastBackend says which services a backend's drain would leave without enough
// backends that take new connections, and how the others are; empty: none.
func (s *State) LastBackend(name string) string {
	if !s.HasBackend(name) || s.health.drained[name] {
		return ""
	}
	var services, others []string
	for i := range s.current.services {
		service := &s.current.services[i]
		if !hasMember(service, name) {
			continue
		}
		if with, without := s.health.activeWithout(&s.step, &s.peers, service, name); enough(service, with) && !enough(service, without) {
			services = append(services, service.Name)
			others = s.health.inactive(service, name)
			if service.BackendsMin > 1 {
				others = append([]string{fmt.Sprintf("backends_min is %d", service.BackendsMin)}, others...)
			}
		}
	}
	if len(services) == 0 {
		return ""
	}
	text := fmt.Sprintf("%s %s no backend to spare but %s", listed("service", services), verb(services, "has", "have"), name)
	if len(others) > 0 {
		text += " (" + enumerate(others) + ")"
	}
	return text
}

// activeWithout counts the backends that take a service's new connections, with
// this one and without it.
func (h *healthState) activeWithout(at *step, peers *peersState, service *config.Service, name string) (with, without int) {
	var now, then groupUse
	for _, m := range service.Members {
		if state, _ := h.stateOf(m); state != stateActive {
			continue
		}
		uses := []*groupUse{&now, &then}
		if m.Backend.Name == name {
			uses = uses[:1]
		}
		for _, use := range uses {
			if m.IsBackup {
				use.backup++
			} else {
				use.own++
			}
		}
	}
	rule := at.current.rules[service.Group]
	return useOf(rule, &now, peers), useOf(rule, &then, peers)
}

// inactive backends of a service but this one, and why.
func (h *healthState) inactive(service *config.Service, but string) (list []string) {
	for _, m := range service.Members {
		if state, b := h.stateOf(m); state != stateActive && b != nil && m.Backend.Name != but {
			list = append(list, fmt.Sprintf("%s is %s: %s", m.Backend.Name, stateName(state), b.reason))
		}
	}
	return list
}

// LastMachine says why no other load balancer is known to take over what this one
// announces; empty: one is, or nothing is announced.
func (s *State) LastMachine() string {
	if s.current == nil || s.routes.drains.machine != nil || !s.routes.announceAnything() {
		return ""
	}
	return s.peers.noneKnown(&s.step)
}

// LastMachineFor is the same for one service.
func (s *State) LastMachineFor(service string) string {
	if s.current == nil || s.routes.drains.services[service] != nil || !s.routes.announcesService(&s.step, service) {
		return ""
	}
	return s.peers.noneKnown(&s.step)
}

// noPeerKnown: as far as one machine can know it. Whether a peer that answers
// announces, too, it cannot know.
func (p *peersState) noneKnown(at *step) string {
	var silent []string
	for _, peer := range at.current.config.Peers {
		if p.isHealthy(peer.Name) {
			return ""
		}
		reason, _ := p.reason(peer.Name)
		silent = append(silent, fmt.Sprintf("%s (%s)", peer.Name, reason))
	}
	if len(silent) == 0 {
		return "no other load balancer is known to take over: the config names none under `peers`"
	}
	return "no other load balancer is known to take over: no answer through the tunnel from " + enumerate(silent)
}

// Of a list that people read.
const namesMax = 3

func enumerate(items []string) string { return config.Enumerate(items, namesMax) }

func listed(what string, names []string) string {
	return verb(names, what, what+"s") + " " + enumerate(names)
}

func verb(names []string, one, several string) string {
	if len(names) == 1 {
		return one
	}
	return several
}
