// Package brain decides: which backends are used, what the forwarder's plan
// is, which routes are announced. Events and the time go in, the whole desired
// state comes out.
//
//	probe results ─► dampen ─► pools ─► members ─► plan
//	forwarder, gateway, commands ───────────────┴─► routes
//
// It is pure: it opens nothing, sends nothing, starts nothing and has no clock.
// Every change of state has a reason that people see (Transition, View).
//
// **Invariant:** a plan's generation only grows, also beyond that of a plan
// which the forwarder had before this controller started.
package brain

import (
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/agreement"
	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
	"github.com/guideway/guideway/speaker/judge"
)

const (
	// Health events within this time make one plan.
	coalesce = 50 * time.Millisecond
	// How long routes carry GRACEFUL_SHUTDOWN before they are withdrawn on
	// purpose: time for routers to move to another path (RFC 8326 section 4.1).
	drainDelay = 2 * time.Second
	// Backends that went down this shortly before the machine turned out to be
	// cut off keep their former state.
	collapseWindow = 30 * time.Second
)

// Route is one prefix to announce.
type Route struct {
	Prefix  netip.Prefix
	NextHop netip.Addr
	// The route is about to be withdrawn on purpose: routers that have another
	// path move to it first (RFC 8326).
	GracefulShutdown bool
	// Sorted; shared with the config.
	Communities      []config.Community
	LargeCommunities []config.LargeCommunity
}

// Equal says whether routers are told the same.
func (r Route) Equal(other Route) bool {
	return r.Prefix == other.Prefix && r.NextHop == other.NextHop && r.GracefulShutdown == other.GracefulShutdown &&
		slices.Equal(r.Communities, other.Communities) && slices.Equal(r.LargeCommunities, other.LargeCommunities)
}

// Desired is the whole wanted state after a Step.
type Desired struct {
	// nil until the forwarder told what it runs.
	Plan *planv1.Plan
	// What to announce while the forwarder is well; and the plan that it must
	// forward by for that.
	Routes     []Route
	RoutesPlan uint64
	// It is known what to announce; false: what was announced before this
	// controller started stays.
	RoutesDecided bool
	Targets       []compile.Target
	// The ports of probes by the plan that a healthy forwarder runs; nil: no probe
	// may go through a tunnel.
	Probing *planv1.Probing
	// The config that Targets and the BGP neighbors belong to; nil at first.
	Config *config.Config
	// The config, as it was loaded, of the latest plan that the forwarder accepted; nil at first.
	Trusted *config.Config
	// What differs from the Step before.
	PlanChanged, RoutesChanged, ConfigChanged bool
	// The bucket maps of stateless services; and services whose map differs from the
	// Step before, or is gone: to be kept before the plan is pushed.
	Maps        map[string]*buckets.Map
	MapsChanged []string
	// Etcd may say that moves of buckets do not wait for this machine: to be kept before
	// it does. A controller that starts does not know so by itself while etcd is away.
	Withdrawn bool
	// What is to be in etcd of it; nil: nothing. The same pointer: the same.
	Agreement *Agreement
	// A peer is seen to forward well.
	PeerWell bool
	// When a Tick is wanted, at the latest; zero: none.
	Again time.Time
	// A drain waits for Traffic.
	MeasureTraffic bool
	// What is known of the members of pools that have a source; and that it differs, to be
	// kept for a restart.
	Members        map[string]config.MemberSet
	MembersChanged bool
	// What changed, for the log.
	Transitions []Transition
}

// Transition is a change of state and its reason, for people.
type Transition struct {
	Kind     string // backend, pool, route, forwarder, config, machine
	Name     string
	From, To string
	Reason   string
	// Whose command it was; empty: nobody's, or it is not known.
	Who string
}

// State is everything the brain remembers. Its zero value is not ready; use New.
type State struct {
	now time.Time

	// What is configured, and what to return to when the forwarder refuses it.
	current  *inputs
	trusted  *inputs
	rejected *inputs
	configs  configStatus

	machine   machineState
	health    healthState
	peers     peersState
	forwarder forwarderState
	speaker   speakerState
	routes    routesState
	// By name; also services that the config does not have (any more).
	drainedServices map[string]*drain

	// Of stateless services.
	buckets   bucketState
	agreement agreementState
	agents    agentsState
	members   membersState
	// By group with a second chance; nil: no plan was seen yet.
	tables map[string]groupTables

	// Since when the plan is to be computed anew; zero: it is not.
	dirtySince time.Time
	// Of the current Step: flags and transitions; nothing happened that could
	// change a route.
	changed          Desired
	routesUnaffected bool
}

// inputs is one config with what follows from it alone.
type inputs struct {
	// With the members that sources list; and as it was loaded.
	config        *config.Config
	loaded        *config.Config
	services      []config.Service
	targets       []compile.Target
	announceables []config.Route
	checks        map[compile.PoolBackend][]targetCheck
	byName        map[string]*config.Service
	pools         map[string]*config.Pool
	// Names of those that are stateless.
	stateless []string
	// Pools that services here reach, and the groups that have them.
	reached  map[string]bool
	groupsOf map[string][]string
	// Pools that stateless services alone reach.
	statelessPools map[string]bool
	// Backends whose agents keep connections alive; and by address.
	needAgents map[string]bool
	backendsAt map[config.AgentAddress][]string
	// The members of each group.
	groups map[string][]config.Member
	// Services of each group, and what they have in common; those that spill
	// with backends left.
	servicesOf map[string]int
	rules      map[string]groupRule
	spilling   []string
	// A pool has slow_start.
	slowStarts bool
	// Pools that each target, or backend, is in.
	poolsOfTarget, poolsOfBackend map[string][]string
	offers                        map[offer]bool
	// What may be announced for a service.
	routesOf map[string][]netip.Prefix
}

// offer: this service can be reached by this prefix.
type offer struct {
	prefix  netip.Prefix
	service string
}

// targetCheck is one health check of one backend in one pool.
type targetCheck struct{ target, name string }

type configStatus struct {
	loadedAt  time.Time
	stale     bool
	problem   string
	problemAt time.Time
	// The problem is that the forwarder refuses the plan of these.
	refused *inputs
}

type machineState struct {
	// nil: not drained.
	drain *drain
}

// New makes the state of a controller that has just started.
func New(now time.Time) *State {
	return &State{
		now:             now,
		health:          newHealthState(),
		peers:           peersState{verdicts: map[path]*damped{}, inherited: map[string]bool{}},
		forwarder:       forwarderState{health: judge.New(), pending: map[uint64]pendingPlan{}},
		speaker:         speakerState{reason: "not yet connected"},
		drainedServices: map[string]*drain{},
		buckets:         newBucketState(),
		members:         membersState{pools: map[string]poolMembers{}},
		agents:          agentsState{said: map[string]agentSaid{}, since: now, again: now.Add(heardAfter)},
		agreement:       agreementState{proposals: map[string]*agreement.Proposal{}, dirty: true},
		routes:          routesState{byPrefix: map[netip.Prefix]*routeState{}, neighbors: map[netip.Addr]string{}},
	}
}

// Step takes one event into account and says what is wanted now. Time must
// not go back.
func (s *State) Step(event Event, now time.Time) Desired {
	s.now = now
	s.changed = Desired{}
	s.routesUnaffected = false
	event.apply(s)
	s.judgeForwarder(func(h *judge.Forwarder) { h.Check(now) })
	s.checkJudgeAgain()
	s.checkAgents()
	s.checkMembers()
	s.checkBucketsDue()
	s.checkAgreementDue()
	if s.flushDue() {
		s.flush()
	}
	s.noteServed()
	if !s.routesUnaffected || s.routes.draining {
		s.decideRoutes()
		s.noteWithdrawn()
	}
	return s.desired()
}

// markPoolsDirty notes that backends of these pools may have other states.
func (s *State) markPoolsDirty(pools []string) {
	for _, pool := range pools {
		s.health.dirtyPools[pool] = true
	}
	s.markDirty()
}

// markDirty notes that the plan must be computed anew, within `coalesce`.
func (s *State) markDirty() {
	if s.dirtySince.IsZero() {
		s.dirtySince = s.now
	}
}

// markDirtyNow is for what is computed in this Step: commands, other configs.
func (s *State) markDirtyNow() { s.dirtySince = s.now.Add(-coalesce) }

func (s *State) flushDue() bool {
	return !s.dirtySince.IsZero() && s.current != nil && s.now.Sub(s.dirtySince) >= coalesce
}

func (s *State) flush() {
	s.dirtySince = time.Time{}
	s.routesUnaffected = false
	s.decideCutOff()
	s.decidePlan(s.decideBackends())
}

func (s *State) desired() Desired {
	d := s.changed
	d.Plan, d.Maps, d.Agreement = s.forwarder.wanted, s.buckets.maps, s.decideAgreement()
	d.Withdrawn = s.agreement.saidWithdrawn
	d.Routes, d.RoutesPlan, d.RoutesDecided = s.routes.wanted, s.routes.plan, s.routes.decided
	if s.forwarder.health.Reason() == "" {
		d.Probing = s.forwarder.running.probing
	}
	if s.current != nil {
		d.Config = s.current.config
		d.Targets = s.current.targets
	}
	if s.trusted != nil {
		d.Trusted = s.trusted.loaded
	}
	d.PeerWell = s.peerWell()
	d.Again = s.again()
	d.MeasureTraffic = s.measuresTraffic()
	d.Members = s.members.kept
	return d
}

// again is when the next decision falls due without an event.
func (s *State) again() time.Time {
	var next earliest
	if !s.dirtySince.IsZero() && s.current != nil {
		next.add(s.dirtySince.Add(coalesce))
	}
	if s.machineDraining() {
		next.add(s.machineDrainEnd())
	}
	next.add(s.routes.drainEnd)
	if at := s.forwarder.health.Again(); !at.IsZero() {
		next.add(at)
	}
	next.add(s.health.againFirst)
	next.add(s.buckets.closes)
	next.add(s.agents.again)
	next.add(s.members.again)
	s.agreement.again = s.agreeAgain()
	next.add(s.agreement.again)
	return next.at
}

func (s *State) note(kind, name, from, to, reason string) {
	s.noteBy("", kind, name, from, to, reason)
}

func (s *State) noteBy(who, kind, name, from, to, reason string) {
	s.changed.Transitions = append(s.changed.Transitions, Transition{Kind: kind, Name: name, From: from, To: to, Reason: reason, Who: who})
}
