package brain

// The state as shown to people: made on request, copies only.

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
)

// View is a snapshot of the state.
type View struct {
	Machine   MachineView
	Config    ConfigView
	Forwarder ForwarderView
	Services  []ServiceView
	Backends  []BackendView
	Routes    []RouteView
	Peers     []PeerView
	// In order of the config.
	MemberSources []MemberSourceView
	Neighbors     map[netip.Addr]string
	// Empty: ready. Else what is missing, a sentence each.
	NotReady []string
	// Backends of stateless services and of those with a second chance.
	SilentAgents []string
	// Backends whose agents lack VIPs of their services.
	AgentsBehind []string
}

// MachineView is this machine's own state.
type MachineView struct {
	Name string
	Serving
	DrainedBackends []string
	// nil: not drained.
	Drain *DrainView
}

// ConfigView says which config serves.
type ConfigView struct {
	LoadedAt time.Time
	// A newer one was refused.
	Stale     bool
	Problem   string
	ProblemAt time.Time
	Warnings  []string
}

// ForwarderView is the forwarder as the brain sees it.
type ForwarderView struct {
	Healthy bool
	Reason  string
	Since   time.Time
	// Of the wanted plan, of the one it has accepted from us, of the one it runs.
	Wanted, Accepted, Running uint64
	Refusal, RestartRequired  string
	Warnings                  []string
}

// ServiceView is one service of this machine.
type ServiceView struct {
	Service *config.Service
	// Backends that take new connections.
	Active int
	// Those of its backup pools are used.
	OnBackup bool
	Serving
	// nil: not drained.
	Drain *DrainView
	// nil: not stateless, or no map was made yet.
	Buckets *BucketsView
}

// BucketsView is a stateless service's bucket map.
type BucketsView struct {
	buckets.Summary
	Count                    int
	Generation, Acknowledged uint64
	Waiting                  int
	// No bucket of a living backend moves to these.
	Unknown    []UnknownBackend
	MoveAgeMax time.Duration
	// nil: one load balancer alone assigns them.
	Agreement *AgreementView
}

// UnknownBackend is one whose agent and another's do not both accept one another.
type UnknownBackend struct{ Backend, By string }

// String says what that does, and what to do.
func (u UnknownBackend) String() string {
	return fmt.Sprintf("%s gets no buckets of living backends until its agent and that of %s accept one another: give both the `agents` that `guideway config backend` prints", u.Backend, u.By)
}

// BackendView is one backend as the services of one group use it.
type BackendView struct {
	Group, Name string
	// How many services the group has, and which, if it is one.
	Services int
	Service  string
	Address  netip.Addr
	Weight   uint32
	// Of Weight, in effect now; below 100 in slow start.
	WeightPercent uint32
	// Held down by damping.
	Held          bool
	State, Reason string
	Since         time.Time
	Pools         []string
	// Its next hop, while it is not known: why.
	Unresolved string
	// How it answers; nil: that is not known.
	Answers *Answers
	// See setLoads; nil: not known.
	Load *float64
}

// RouteView is one announceable prefix.
type RouteView struct {
	Route
	Services  []string
	Announced bool
	// Why it is not announced.
	Reason string
	Since  time.Time
}

// View makes a snapshot; what the config alone says is shared, and not to be
// changed. Backends are many: they are left out unless requested.
func (s *State) View(withBackends bool) View {
	v := View{Machine: s.viewMachine(), Forwarder: s.viewForwarder(), Neighbors: maps.Clone(s.routes.neighbors), NotReady: s.NotReady()}
	v.Config = s.configs.view()
	v.Config.Warnings = s.Warnings()
	if s.current == nil {
		return v
	}
	v.Peers = s.peers.view(s.current.config)
	v.MemberSources = s.members.view(&s.step)
	v.Services = make([]ServiceView, len(s.current.services))
	for i := range s.current.services {
		v.Services[i] = s.viewService(&s.current.services[i])
	}
	v.Routes = s.routes.view(&s.step)
	v.SilentAgents, v.AgentsBehind = s.buckets.agents.silent(&s.step), s.buckets.agents.behind(&s.step)
	if !withBackends {
		return v
	}
	for _, group := range slices.Sorted(maps.Keys(s.current.groups)) {
		v.Backends = append(v.Backends, s.viewGroup(group)...)
	}
	return v
}

// ViewMachine is that part of View which costs nothing, however many services
// and backends there are.
func (s *State) ViewMachine() (MachineView, ConfigView) {
	return s.viewMachine(), s.configs.view()
}

// Peers of the config, and clusters that services spill to.
func (s *State) Peers() []PeerView {
	if s.current == nil {
		return nil
	}
	return s.peers.view(s.current.config)
}

func (c *configStatus) view() ConfigView {
	return ConfigView{LoadedAt: c.loadedAt, Stale: c.stale, Problem: c.problem, ProblemAt: c.problemAt}
}

// Warnings of the config in use.
func (s *State) Warnings() []string {
	if s.current == nil {
		return nil
	}
	var warnings []string
	for _, warning := range s.current.config.Warnings {
		warnings = append(warnings, warning.String())
	}
	return warnings
}

// viewRoutes in order of prefix, as they are announceable.
func (rs *routesState) view(at *step) []RouteView {
	views := make([]RouteView, 0, len(rs.byPrefix))
	for _, a := range at.current.announceables {
		r := rs.byPrefix[a.Prefix]
		if r == nil {
			continue // of a config that is not yet decided on
		}
		route := r.route
		route.Prefix = a.Prefix
		views = append(views, RouteView{Route: route, Services: r.services, Announced: r.announced, Reason: r.reason, Since: r.since})
	}
	return views
}

func (s *State) viewMachine() MachineView {
	return MachineView{Name: s.machineName(), Serving: s.servingMachine(), DrainedBackends: s.Drained().Backends, Drain: s.routes.drains.machine.view()}
}

func (s *State) viewForwarder() ForwarderView {
	f, p := &s.forwarder, &s.plan
	return ForwarderView{
		Healthy:         f.health.Reason() == "",
		Reason:          f.health.Reason(),
		Since:           f.health.Since(),
		Wanted:          p.wanted.GetGeneration(),
		Accepted:        p.accepted,
		Running:         f.generation,
		Refusal:         p.refusal,
		RestartRequired: f.restartRequired,
		Warnings:        slices.Clone(p.warnings),
	}
}

func (s *State) viewService(service *config.Service) ServiceView {
	use := s.health.use[service.Group]
	return ServiceView{
		Drain:   s.routes.drains.services[service.Name].view(),
		Service: service, Active: s.health.active[service.Group], Serving: s.servingService(service),
		Buckets:  s.buckets.view(&s.step, service.Name),
		OnBackup: len(service.BackupPools) > 0 && use.own < service.BackendsMin && use.backup > 0 && use.how != compile.UseNone,
	}
}

// viewGroup has its members in order.
func (s *State) viewGroup(group string) []BackendView {
	members := s.current.groups[group]
	views := make([]BackendView, len(members))
	for i, m := range members {
		views[i] = s.viewBackend(group, m)
	}
	setLoads(views)
	return views
}

func (s *State) viewBackend(group string, m config.Member) BackendView {
	v := BackendView{
		Group: group, Services: s.current.servicesOf[group], Service: s.current.onlyService(group), Name: m.Backend.Name, Address: m.Backend.Address, Weight: m.Weight,
		Pools: m.Pools, Unresolved: s.forwarder.unresolved[m.Backend.Name].Why, WeightPercent: 100,
		Answers: s.buckets.agents.answersOf(m.Backend.Name, s.now),
	}
	if state, b := s.health.stateOf(m); b != nil {
		v.State, v.Reason, v.Since, v.Held = stateName(state), b.reason, b.since, b.held
	}
	if s.current.slowStarts {
		v.WeightPercent = percent(compile.Fifths(m, compile.States{Fifths: s.health.fifthsOf}))
	}
	if warnings := s.health.warnings(&s.step, m); len(warnings) > 0 {
		v.Reason += "; " + strings.Join(warnings, "; ")
	}
	if s.current.needAgents[m.Backend.Name] && s.buckets.agents.isSilent(m.Backend.Name, s.now) {
		v.Reason += "; its agent is silent"
	}
	state, reason := s.health.memberUse(&s.step, group, m, v.State)
	if reason != "" {
		v.State, v.Reason = state, strings.TrimSuffix(reason+"; "+v.Reason, "; ")
	}
	return v
}

// NotReady is what is missing before clients are served here, a sentence each;
// empty: nothing.
func (s *State) NotReady() []string {
	var missing []string
	if s.current == nil {
		return []string{"no config"}
	}
	if reason := s.forwarder.health.Reason(); reason != "" {
		missing = append(missing, "forwarder: "+reason)
	}
	if s.plan.accepted == 0 {
		missing = append(missing, "no plan accepted by the forwarder")
	}
	if !s.health.firstRound {
		missing = append(missing, fmt.Sprintf("first probes outstanding: %d of %d", s.health.unprobed(), len(s.health.verdicts)))
	}
	if s.current.config.BGP != nil && !s.routes.sessionUp() {
		missing = append(missing, "no BGP session up")
	}
	switch m := s.servingMachine(); m.State {
	case ServingAll:
	case NotServing:
		if len(missing) == 0 {
			missing = append(missing, m.Reason)
		}
	default:
		missing = append(missing, fmt.Sprintf("the machine is %s: %s", m.State, m.Reason))
	}
	return missing
}

// established is the state of a BGP session that carries routes.
const established = "established"

func (rs *routesState) sessionUp() bool {
	for _, state := range rs.neighbors {
		if state == established {
			return true
		}
	}
	return false
}
