// Package brain makes the decisions: which backends are used, what the forwarder's plan is,
// and which routes are announced. Its inputs are events and the time; its output is the
// whole desired state.
//
//	probe results ─► dampen ─► pools ─► members ─► plan
//	forwarder, gateway, commands ───────────────┴─► routes
//
// Each part owns its state and is given what it needs from others: health, peers, members,
// bucket maps (with agents and the data in etcd), the plan, the forwarder, routes (with
// drains and the speaker), limits. State holds the parts, what joins several of them, the
// answers for people, and the order of a Step. basis.go says when a decision is repeated.
//
// It is pure: it opens nothing, sends nothing, starts nothing and has no clock. Every
// change of state has a reason that people can see (Transition, View).
//
// **Invariant:** a plan's generation only increases, and exceeds that of the plan that the
// forwarder had before this controller started.
package brain

import (
	"net/netip"
	"slices"
	"time"

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

// step is the Step under way, as every part is given it.
type step struct {
	now time.Time
	// The config in use; nil: none yet.
	current *inputs
	// What changed, for people.
	transitions []Transition
}

func (at *step) note(kind, name, from, to, reason string) {
	at.noteBy("", kind, name, from, to, reason)
}

func (at *step) noteBy(who, kind, name, from, to, reason string) {
	at.transitions = append(at.transitions, Transition{Kind: kind, Name: name, From: from, To: to, Reason: reason, Who: who})
}

func (at *step) machineName() string {
	if at.current == nil {
		return ""
	}
	return at.current.config.Machine.Name
}

// stateless services here.
func (at *step) stateless() []string {
	if at.current == nil {
		return nil
	}
	return at.current.stateless
}

// State is everything the brain remembers. Its zero value is not ready; use New.
type State struct {
	step
	configs configStatus

	plan      planState
	health    healthState
	peers     peersState
	forwarder forwarderState
	routes    routesState

	buckets bucketState // of stateless services
	members membersState
	limits  map[string]limitState // of the forwarder, by name
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

func (c *configStatus) refuse(now time.Time, problem string, refused *inputs) {
	c.stale, c.problem, c.problemAt, c.refused = true, problem, now, refused
}

func (c *configStatus) forgive() { c.stale, c.problem, c.refused = false, "", nil }

// New makes the state of a controller that has just started.
func New(now time.Time) *State {
	return &State{
		step:      step{now: now},
		health:    newHealthState(),
		peers:     peersState{verdicts: map[path]*damped{}, inherited: map[string]bool{}},
		plan:      planState{pending: map[uint64]pendingPlan{}},
		forwarder: forwarderState{health: judge.New()},
		buckets:   newBucketState(now),
		limits:    map[string]limitState{},
		members:   membersState{pools: map[string]poolMembers{}},
		routes: routesState{
			byPrefix: map[netip.Prefix]*routeState{}, neighbors: map[netip.Addr]string{},
			speaker: speakerState{reason: "not yet connected"}, drains: drainsState{services: map[string]*drain{}},
		},
	}
}

// Step takes one event into account and says what is wanted now. Time must
// not go back.
func (s *State) Step(event Event, now time.Time) Desired {
	s.now, s.transitions, s.buckets.changed = now, nil, nil
	config, plan, routes, members := s.current, s.plan.wanted, s.routes.changes, s.members.changes
	event.apply(s)
	s.judgeForwarder(func(h *judge.Forwarder) { h.Check(now) })
	s.health.checkAgain(&s.step)
	s.checkMembers()
	s.buckets.check(&s.step, &s.health)
	if s.plan.isDue(&s.step, s.planBasis()) {
		s.flush()
	}
	if s.health.firstRound {
		s.plan.noteServed()
	}
	if from := s.routesFrom(); s.routes.areDue(from) {
		s.routes.decide(from)
		s.routes.noteWithdrawn(&s.step)
	}
	d := s.desired()
	d.ConfigChanged, d.PlanChanged = s.current != config, s.plan.wanted != plan
	d.RoutesChanged, d.MembersChanged = s.routes.changes != routes, s.members.changes != members
	return d
}

func (s *State) desired() Desired {
	d := Desired{Transitions: s.transitions, MapsChanged: s.buckets.changed}
	d.Plan, d.Maps, d.Agreement = s.plan.wanted, s.buckets.maps, s.decideAgreement()
	d.Withdrawn = s.buckets.agreement.saidWithdrawn
	d.Routes, d.RoutesPlan, d.RoutesDecided = s.routes.wanted, s.routes.plan, s.routes.decided
	if s.forwarder.health.Reason() == "" {
		d.Probing = s.plan.running.probing
	}
	if s.current != nil {
		d.Config = s.current.config
		d.Targets = s.current.targets
	}
	if s.plan.trusted != nil {
		d.Trusted = s.plan.trusted.loaded
	}
	d.PeerWell = s.peers.isOneWell(s.current)
	d.Again = s.again()
	d.MeasureTraffic = s.routes.drains.measureTraffic(s.now)
	d.Members = s.members.kept
	return d
}

// again is when the next decision falls due without an event.
func (s *State) again() time.Time {
	var next earliest
	if !s.plan.outdatedSince.IsZero() {
		next.add(s.plan.outdatedSince.Add(coalesce))
	}
	if s.routes.machineDraining(&s.step) {
		next.add(s.routes.drains.machine.until)
	}
	next.add(s.routes.drainEnd.at)
	next.add(s.forwarder.health.Again())
	next.add(s.health.againFirst.at)
	next.add(s.buckets.closes.at)
	next.add(s.buckets.agents.again.at)
	next.add(s.members.again.at)
	s.buckets.agreement.setAgain(&s.step, s.routes.drains.withdrawnAt())
	next.add(s.buckets.agreement.again.at)
	return next.at
}
