package brain

// From verdicts to the state of each backend in each pool. Only pools in which
// something changed are looked at, and from them the sets of pools (groups)
// that services have: the work does not grow with services.

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

const (
	stateActive   = planv1.BackendState_BACKEND_STATE_ACTIVE
	stateDraining = planv1.BackendState_BACKEND_STATE_DRAINING
	stateDown     = planv1.BackendState_BACKEND_STATE_DOWN
	stateDisabled = planv1.BackendState_BACKEND_STATE_DISABLED
)

// healthState is what is known of the backends.
type healthState struct {
	verdicts map[string]*damped // by key of target
	// Failures of probes through tunnels that do not count yet.
	unconfirmed []unconfirmed
	inherited   map[backendKey]inherited
	// The backends of each pool, as last decided.
	backends map[compile.PoolBackend]*poolBackend
	pools    map[string]poolSummary
	active   map[string]int // members of a group that take new connections
	use      map[string]groupUse
	// Pools in which something changed since; or in any.
	dirtyPools map[string]bool
	allDirty   bool
	drained    map[string]bool // backends drained by command
	flaps      map[compile.PoolBackend]*flaps
	// When pools are to be judged again though nothing happens, and the first
	// of these times; zero: none.
	judgeAgain map[string]time.Time
	againFirst time.Time
	warned     map[string]bool // targets whose latest probe has a warning

	// Every target was probed once.
	firstRound bool
	gateway    gatewayState
	// Every pool fails and the gateway does not answer; zero: not so.
	cutOffSince time.Time
}

type gatewayState struct {
	address string
	known   bool
	answers bool
	since   time.Time
}

func newHealthState() healthState {
	return healthState{
		verdicts:   map[string]*damped{},
		inherited:  map[backendKey]inherited{},
		backends:   map[compile.PoolBackend]*poolBackend{},
		pools:      map[string]poolSummary{},
		active:     map[string]int{},
		use:        map[string]groupUse{},
		dirtyPools: map[string]bool{},
		drained:    map[string]bool{},
		flaps:      map[compile.PoolBackend]*flaps{},
		judgeAgain: map[string]time.Time{},
		warned:     map[string]bool{},
	}
}

// backendKey: a backend that changed its address is one not seen before.
type backendKey struct {
	name    string
	address netip.Addr
}

// inherited is the state a backend had before this controller (or this
// config) judged it itself.
type inherited struct {
	up   bool
	from string
}

// poolBackend is a backend as one pool sees it.
type poolBackend struct {
	state  planv1.BackendState
	reason string
	since  time.Time
	held   bool // by damping
	// Since when it gets its weight in steps, and how many fifths of it it has
	// now; zero: it has all.
	slowSince time.Time
	fifths    uint32
}

// condition of a backend by the checks of one pool.
type condition struct {
	up     bool
	judged bool // by probes; else by default or inheritance
	held   bool // down though its probes pass
	reason string
	since  time.Time // of the verdict
}

type poolSummary struct{ up, total, keptIn, held int }

// decideBackends gives the backends of pools in which something changed their
// states, and returns the groups that have such pools.
func (s *State) decideBackends() map[string][]config.Member {
	dirty := s.health.dirtyPools
	if s.health.allDirty {
		dirty = s.current.reached
		s.forgetBackends()
	}
	changed := map[string][]config.Member{}
	var changes changes
	for _, name := range slices.Sorted(maps.Keys(dirty)) {
		pool := s.current.pools[name]
		if pool == nil || !s.current.reached[name] {
			continue
		}
		s.judgePool(pool, &changes)
		for _, group := range s.current.groupsOf[name] {
			changed[group] = s.current.groups[group]
		}
	}
	s.health.dirtyPools, s.health.allDirty = map[string]bool{}, false
	changes.note(s)
	s.decideUse(changed)
	s.noteFirstRound()
	return changed
}

// forgetBackends of pools that are no longer there.
func (s *State) forgetBackends() {
	present := map[compile.PoolBackend]bool{}
	for name := range s.current.reached {
		for _, b := range s.current.pools[name].Backends {
			present[compile.PoolBackend{Pool: name, Backend: b.Name}] = true
		}
	}
	var removed changes
	maps.DeleteFunc(s.health.flaps, func(key compile.PoolBackend, _ *flaps) bool {
		return !present[key] || s.current.pools[key.Pool].Damping == nil
	})
	clear(s.health.judgeAgain) // all are judged now
	for key, b := range s.health.backends {
		if !present[key] {
			reason := "no longer in the config"
			if pool := s.current.pools[key.Pool]; pool != nil && pool.From != nil {
				reason = "no longer in " + pool.From.String()
			}
			removed.add(change{key.Backend, stateName(b.state), "removed", reason}, key.Pool)
			delete(s.health.backends, key)
		}
	}
	removed.note(s)
	maps.DeleteFunc(s.health.pools, func(pool string, _ poolSummary) bool { return !s.current.reached[pool] })
	maps.DeleteFunc(s.health.active, func(group string, _ int) bool { return s.current.groups[group] == nil })
	maps.DeleteFunc(s.health.use, func(group string, _ groupUse) bool { return s.current.groups[group] == nil })
}

// change of a backend; the same in several pools is one for people.
type change struct{ backend, from, to, reason string }

type changes map[change][]string

func (c *changes) add(what change, pool string) {
	if *c == nil {
		*c = changes{}
	}
	(*c)[what] = append((*c)[what], pool)
}

func (c changes) note(s *State) {
	order := slices.SortedFunc(maps.Keys(c), func(a, b change) int {
		return cmp.Or(cmp.Compare(a.backend, b.backend), cmp.Compare(a.from, b.from), cmp.Compare(a.reason, b.reason))
	})
	for _, what := range order {
		pools := slices.Sorted(slices.Values(c[what]))
		s.note("backend", strings.Join(pools, ",")+"/"+what.backend, what.from, what.to, what.reason)
	}
}

// stateOf: a backend must pass in every pool through which the service
// reaches it; what fails its probes is down even while it drains.
func (s *State) stateOf(m config.Member) (planv1.BackendState, *poolBackend) {
	var worst *poolBackend
	for _, pool := range m.Pools {
		b := s.health.backends[compile.PoolBackend{Pool: pool, Backend: m.Backend.Name}]
		if b != nil && (worst == nil || b.state > worst.state) {
			worst = b
		}
	}
	if worst == nil {
		return stateDown, nil
	}
	return worst.state, worst
}

func (s *State) judgePool(pool *config.Pool, changes *changes) {
	own := make(map[string]condition, len(pool.Backends))
	var again earliest
	held := 0
	for _, b := range pool.Backends {
		c := s.judge(pool, b.Backend)
		if pool.Damping != nil {
			c = s.holdFlapping(pool, b.Backend, c, &again)
		}
		if c.held {
			held++
		}
		own[b.Name] = c
	}
	summary := poolSummary{total: len(own), keptIn: keepIn(pool, own), held: held}
	for _, b := range pool.Backends {
		c := own[b.Name]
		if c.up {
			summary.up++
		}
		key := compile.PoolBackend{Pool: pool.Name, Backend: b.Name}
		s.setBackend(key, s.stateIn(pool, b, c), changes)
		s.stepSlowStart(pool, s.health.backends[key], &again)
	}
	s.health.pools[pool.Name] = summary
	s.setJudgeAgain(pool.Name, again)
}

// stateIn a pool: what weight and commands say of a backend that is up. One that is not,
// and whose agent speaks, is not dead: its connections of stateless services stay.
func (s *State) stateIn(pool *config.Pool, b config.PoolBackend, c condition) poolBackend {
	switch {
	case !c.up && c.judged && s.current.statelessPools[pool.Name] && s.drains(b.Name):
		return poolBackend{state: stateDraining, reason: "its agent speaks, and " + c.reason, held: c.held}
	case !c.up:
		return poolBackend{state: stateDown, reason: c.reason, held: c.held}
	case s.health.drained[b.Name]:
		return poolBackend{state: stateDraining, reason: "drained by command"}
	case b.Leaves:
		return poolBackend{state: stateDraining, reason: "no longer in " + pool.From.String()}
	case b.Weight == 0:
		return poolBackend{state: stateDraining, reason: "weight 0"}
	}
	return poolBackend{state: stateActive, reason: c.reason}
}

func (s *State) setBackend(key compile.PoolBackend, now poolBackend, changes *changes) {
	now.since = s.now
	from := "new"
	if b := s.health.backends[key]; b != nil {
		if b.state == now.state {
			b.reason, b.held = now.reason, now.held
			return
		}
		from = stateName(b.state)
		// While a machine starts, all of its backends come in the same moment.
		if now.state == stateActive && s.health.firstRound {
			now.slowSince = s.now
		}
	}
	s.health.backends[key] = &now
	changes.add(change{key.Backend, from, stateName(now.state), now.reason}, key.Pool)
}

// judge combines the verdicts of a pool's checks on one backend: all must
// pass, and one failure is enough.
func (s *State) judge(pool *config.Pool, b *config.Backend) condition {
	checks := s.current.checks[compile.PoolBackend{Pool: pool.Name, Backend: b.Name}]
	if len(checks) == 0 {
		return condition{up: true, reason: "no health check"}
	}
	passed := condition{up: true, judged: true}
	var unprobed, unsent string
	for _, check := range checks {
		d := s.health.verdicts[check.target]
		if d.unsent != "" {
			unsent = "; " + check.name + " cannot be sent: " + d.unsent
		}
		switch {
		case !d.probed:
			unprobed = check.name
		case d.verdict == down:
			failed := condition{judged: true, reason: check.name + ": " + d.reason + unsent, since: d.since}
			return s.excuse(failed, d.former == up || d.former == unknown && s.health.inherited[backendKey{b.Name, b.Address}].up)
		default:
			passed.reason = check.name + ": " + d.reason
			passed.since = d.since
		}
	}
	if unprobed == "" {
		passed.reason += unsent
		return passed
	}
	if former, known := s.health.inherited[backendKey{b.Name, b.Address}]; known {
		return condition{up: former.up, reason: former.from + ", until the first probe of " + unprobed + unsent}
	}
	return condition{reason: "not yet probed by " + unprobed + unsent}
}

// excuse keeps a backend that went down together with all others while the
// gateway did not answer: the machine is cut off.
func (s *State) excuse(c condition, wasUp bool) condition {
	if wasUp && !s.health.cutOffSince.IsZero() && s.health.cutOffSince.Sub(c.since) < collapseWindow {
		return condition{up: true, judged: true, reason: "kept: this machine is cut off (" + c.reason + ")", since: c.since}
	}
	return c
}

// keepIn applies ejection_max: of the backends that are down by their probes
// that share leaves at most, those that failed first; the rest is kept in, those
// first that pass their probes and are held for their flaps.
func keepIn(pool *config.Pool, conditions map[string]condition) (kept int) {
	ejectable := len(conditions) * int(pool.EjectionMax) / 100
	var failed []string
	for name, c := range conditions {
		if c.judged && !c.up {
			failed = append(failed, name)
		}
	}
	if len(failed) <= ejectable {
		return 0
	}
	slices.SortFunc(failed, func(a, b string) int {
		x, y := conditions[a], conditions[b]
		return cmp.Or(compareBools(x.held, y.held), x.since.Compare(y.since), cmp.Compare(a, b))
	})
	for _, name := range failed[ejectable:] {
		c := conditions[name]
		c.up = true
		c.reason = fmt.Sprintf("kept in by ejection_max %d (%s)", pool.EjectionMax, c.reason)
		conditions[name] = c
	}
	return len(failed) - ejectable
}

// compareBools puts those first that are not so.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// decideCutOff: every check of every pool fails and our own gateway does
// not answer.
func (s *State) decideCutOff() {
	cutOff := s.health.gateway.known && !s.health.gateway.answers && s.everythingFails()
	switch {
	case cutOff && s.health.cutOffSince.IsZero():
		s.health.cutOffSince = s.now
		s.forgetFlapsSince(s.now.Add(-collapseWindow))
		s.health.allDirty = true
		s.note("machine", s.machineName(), "connected", "cut off", "every pool fails and the gateway "+s.health.gateway.address+" does not answer")
	case !cutOff && !s.health.cutOffSince.IsZero():
		s.discountFailures()
		s.health.cutOffSince = time.Time{}
		s.health.allDirty = true
		s.note("machine", s.machineName(), "cut off", "connected", "the gateway or a backend answers again")
	}
}

// discountFailures: probes that failed while the machine was cut off say
// nothing about backends. Those that were up must fail anew to be down; else
// their connections would move at the very moment of recovery.
func (s *State) discountFailures() {
	for _, d := range s.health.verdicts {
		if d.verdict == down && d.former == up && s.health.cutOffSince.Sub(d.since) < collapseWindow {
			d.verdict, d.former, d.streak, d.since = up, down, 0, s.now
			d.reason = "as before this machine was cut off"
		}
	}
}

func (s *State) everythingFails() bool {
	for _, d := range s.health.verdicts {
		if d.verdict != down || !d.probed {
			return false
		}
	}
	return len(s.health.verdicts) > 0
}

// Probed says whether every target was probed once.
func (s *State) Probed() bool { return s.health.firstRound }

// noteFirstRound: from here on the machine may announce.
func (s *State) noteFirstRound() {
	if !s.health.firstRound && s.unprobed() == 0 {
		s.health.firstRound = true
	}
}

func (s *State) unprobed() int {
	n := 0
	for _, d := range s.health.verdicts {
		if !d.probed {
			n++
		}
	}
	return n
}

// CountBackends of all pools, each in each pool, and name those that are down, in no order.
func (s *State) CountBackends() (all int, down []string) {
	for of, b := range s.health.backends {
		if b.state == stateDown {
			down = append(down, of.Backend)
		}
	}
	return len(s.health.backends), down
}

// rememberHealth keeps what is known of the backends over a change of config.
func (s *State) rememberHealth() {
	if s.current == nil {
		return
	}
	for _, members := range s.current.groups {
		for _, m := range members {
			state, known := s.stateOf(m)
			if known == nil || !s.judgedBefore(m) {
				continue
			}
			s.health.inherited[backendKey{m.Backend.Name, m.Backend.Address}] = inherited{up: state != stateDown, from: "as before the reload"}
		}
	}
}

// forgetRemoved: a backend that comes back later is one not seen before.
func (s *State) forgetRemoved(present []config.Backend) {
	stays := make(map[backendKey]bool, len(present))
	for _, b := range present {
		stays[backendKey{b.Name, b.Address}] = true
	}
	maps.DeleteFunc(s.health.inherited, func(key backendKey, _ inherited) bool { return !stays[key] })
}

// judgedBefore: every check had a verdict, or the state was itself inherited.
func (s *State) judgedBefore(m config.Member) bool {
	if _, known := s.health.inherited[backendKey{m.Backend.Name, m.Backend.Address}]; known {
		return true
	}
	for _, pool := range m.Pools {
		for _, check := range s.current.checks[compile.PoolBackend{Pool: pool, Backend: m.Backend.Name}] {
			if !s.health.verdicts[check.target].probed {
				return false
			}
		}
	}
	return true
}

// inheritFrom reads the states of the plan that runs in the forwarder, for
// backends that were not judged yet.
func (s *State) inheritFrom(plan *planv1.Plan) {
	addresses := addressesOf(plan)
	for _, group := range plan.GetGroups() {
		for _, m := range group.Members {
			key := backendKey{m.Backend, addresses[m.Backend]}
			if _, known := s.health.inherited[key]; known || m.State == stateDisabled {
				continue
			}
			s.health.inherited[key] = inherited{up: m.State != stateDown, from: "as in the running plan"}
		}
	}
	s.inheritVerdicts()
}

// inheritVerdicts judges backends that had a state before this controller (or
// this check) by rise and fall from there, as if it had never stopped.
func (s *State) inheritVerdicts() {
	if s.current == nil {
		return
	}
	for _, t := range s.current.targets {
		d := s.health.verdicts[t.Key()]
		if d.former != unknown || d.inherited {
			continue
		}
		for _, at := range t.For {
			if former, known := s.health.inherited[backendKey{at.Backend, t.Backend()}]; known {
				d.inherit(former.up, former.from)
				break
			}
		}
	}
}

func stateName(state planv1.BackendState) string {
	switch state {
	case stateActive:
		return "active"
	case stateDraining:
		return "draining"
	case stateDown:
		return "down"
	}
	return "disabled"
}
