package brain

// From verdicts to the state of each backend in each pool. Only pools with a change are
// considered, and from them the sets of pools (groups) that services use, so the work does
// not grow with the number of services.

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
	// Pools in which something changed since; by what all of them were judged last.
	due     dueNames
	basis   basis
	drained map[string]bool // backends drained by command
	// How many such commands there were.
	commands uint64
	flaps    map[compile.PoolBackend]*flaps
	// When pools are to be judged again though nothing happens, and the first
	// of these times; zero: none.
	judgeAgain map[string]time.Time
	againFirst earliest
	warned     map[string]bool // targets whose latest probe has a warning
	// Probes through tunnels that were under way before then may not have been sent.
	stoodStillUntil time.Time

	// Every target was probed once: from here on the machine may announce.
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
		due:        dueNames{names: map[string]bool{}},
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

// take a result into account. That of a target that is no longer wanted changes nothing.
func (h *healthState) take(at *step, e ProbeResult) {
	d := h.verdicts[e.Target]
	if d == nil {
		return
	}
	d.last = Probe{Passed: e.OK, Result: e.Reason, Latency: e.Took, At: at.now, Warning: e.Warning, Expires: e.Expires}
	if e.Warning != "" {
		h.warned[e.Target] = true
	} else {
		delete(h.warned, e.Target)
	}
	wasUnsent := d.unsent != ""
	if d.step(e.OK, e.Reason, at.now) || wasUnsent {
		h.due.add(at.current.poolsOfTarget[e.Target]...)
	}
}

func (h *healthState) takeUnsent(at *step, e ProbeUnsent) {
	d := h.verdicts[e.Target]
	if d == nil {
		return
	}
	d.last = Probe{Result: "not sent: " + e.Reason, At: at.now}
	if d.unsent == e.Reason {
		return
	}
	d.unsent = e.Reason
	h.due.add(at.current.poolsOfTarget[e.Target]...)
}

// decide gives the backends of pools in which something changed their
// states, and returns the groups that have such pools.
func (h *healthState) decide(at *step, agents *agentsState, peers *peersState, connections uint64) map[string][]config.Member {
	due := h.due.names
	if h.basis.differs(at.current, connections, h.cutOffSince) {
		due = at.current.reached
		h.forgetBackends(at)
	}
	changed := map[string][]config.Member{}
	var changes changes
	for _, name := range slices.Sorted(maps.Keys(due)) {
		pool := at.current.pools[name]
		if pool == nil || !at.current.reached[name] {
			continue
		}
		h.judgePool(at, agents, pool, &changes)
		for _, group := range at.current.groupsOf[name] {
			changed[group] = at.current.groups[group]
		}
	}
	clear(h.due.names)
	changes.note(at)
	h.decideUse(at, peers, changed)
	h.firstRound = h.firstRound || h.unprobed() == 0
	return changed
}

// forgetBackends of pools that are no longer there.
func (h *healthState) forgetBackends(at *step) {
	present := map[compile.PoolBackend]bool{}
	for name := range at.current.reached {
		for _, b := range at.current.pools[name].Backends {
			present[compile.PoolBackend{Pool: name, Backend: b.Name}] = true
		}
	}
	var removed changes
	maps.DeleteFunc(h.flaps, func(key compile.PoolBackend, _ *flaps) bool {
		return !present[key] || at.current.pools[key.Pool].Damping == nil
	})
	clear(h.judgeAgain) // all are judged now
	for key, b := range h.backends {
		if !present[key] {
			reason := "no longer in the config"
			if pool := at.current.pools[key.Pool]; pool != nil && pool.From != nil {
				reason = "no longer in " + pool.From.String()
			}
			removed.add(change{key.Backend, stateName(b.state), "removed", reason}, key.Pool)
			delete(h.backends, key)
		}
	}
	removed.note(at)
	maps.DeleteFunc(h.pools, func(pool string, _ poolSummary) bool { return !at.current.reached[pool] })
	maps.DeleteFunc(h.active, func(group string, _ int) bool { return at.current.groups[group] == nil })
	maps.DeleteFunc(h.use, func(group string, _ groupUse) bool { return at.current.groups[group] == nil })
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

func (c changes) note(at *step) {
	order := slices.SortedFunc(maps.Keys(c), func(a, b change) int {
		return cmp.Or(cmp.Compare(a.backend, b.backend), cmp.Compare(a.from, b.from), cmp.Compare(a.reason, b.reason))
	})
	for _, what := range order {
		pools := slices.Sorted(slices.Values(c[what]))
		at.note("backend", strings.Join(pools, ",")+"/"+what.backend, what.from, what.to, what.reason)
	}
}

// stateOf: a backend must pass in every pool through which the service
// reaches it; what fails its probes is down even while it drains.
func (h *healthState) stateOf(m config.Member) (planv1.BackendState, *poolBackend) {
	var worst *poolBackend
	for _, pool := range m.Pools {
		b := h.backends[compile.PoolBackend{Pool: pool, Backend: m.Backend.Name}]
		if b != nil && (worst == nil || b.state > worst.state) {
			worst = b
		}
	}
	if worst == nil {
		return stateDown, nil
	}
	return worst.state, worst
}

func (h *healthState) judgePool(at *step, agents *agentsState, pool *config.Pool, changes *changes) {
	own := make(map[string]condition, len(pool.Backends))
	var again earliest
	held := 0
	for _, b := range pool.Backends {
		c := h.judge(at, pool, b.Backend)
		if pool.Damping != nil {
			c = h.holdFlapping(at, pool, b.Backend, c, &again)
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
		h.setBackend(at, key, h.stateIn(at, agents, pool, b, c), changes)
		h.stepSlowStart(at, pool, h.backends[key], &again)
	}
	h.pools[pool.Name] = summary
	h.setJudgeAgain(pool.Name, again)
}

// stateIn a pool: what weight and commands say of a backend that is up. One that is not,
// and whose agent speaks, is not dead: its connections of stateless services stay.
func (h *healthState) stateIn(at *step, agents *agentsState, pool *config.Pool, b config.PoolBackend, c condition) poolBackend {
	switch {
	case !c.up && c.judged && at.current.statelessPools[pool.Name] && agents.speaks(b.Name):
		return poolBackend{state: stateDraining, reason: "its agent speaks, and " + c.reason, held: c.held}
	case !c.up:
		return poolBackend{state: stateDown, reason: c.reason, held: c.held}
	case h.drained[b.Name]:
		return poolBackend{state: stateDraining, reason: "drained by command"}
	case b.Leaves:
		return poolBackend{state: stateDraining, reason: "no longer in " + pool.From.String()}
	case b.Weight == 0:
		return poolBackend{state: stateDraining, reason: "weight 0"}
	}
	return poolBackend{state: stateActive, reason: c.reason}
}

func (h *healthState) setBackend(at *step, key compile.PoolBackend, now poolBackend, changes *changes) {
	now.since = at.now
	from := "new"
	if b := h.backends[key]; b != nil {
		if b.state == now.state {
			b.reason, b.held = now.reason, now.held
			return
		}
		from = stateName(b.state)
		// While a machine starts, all of its backends come in the same moment.
		if now.state == stateActive && h.firstRound {
			now.slowSince = at.now
		}
	}
	h.backends[key] = &now
	changes.add(change{key.Backend, from, stateName(now.state), now.reason}, key.Pool)
}

// judge combines the verdicts of a pool's checks on one backend: all must
// pass, and one failure is enough.
func (h *healthState) judge(at *step, pool *config.Pool, b *config.Backend) condition {
	checks := at.current.checks[compile.PoolBackend{Pool: pool.Name, Backend: b.Name}]
	if len(checks) == 0 {
		return condition{up: true, reason: "no health check"}
	}
	passed := condition{up: true, judged: true}
	var unprobed, unsent string
	for _, check := range checks {
		d := h.verdicts[check.target]
		if d.unsent != "" {
			unsent = "; " + check.name + " cannot be sent: " + d.unsent
		}
		switch {
		case !d.probed:
			unprobed = check.name
		case d.verdict == down:
			failed := condition{judged: true, reason: check.name + ": " + d.reason + unsent, since: d.since}
			return h.excuse(failed, d.former == up || d.former == unknown && h.inherited[backendKey{b.Name, b.Address}].up)
		default:
			passed.reason = check.name + ": " + d.reason
			passed.since = d.since
		}
	}
	if unprobed == "" {
		passed.reason += unsent
		return passed
	}
	if former, known := h.inherited[backendKey{b.Name, b.Address}]; known {
		return condition{up: former.up, reason: former.from + ", until the first probe of " + unprobed + unsent}
	}
	return condition{reason: "not yet probed by " + unprobed + unsent}
}

// excuse keeps a backend that went down together with all others while the
// gateway did not answer: the machine is cut off.
func (h *healthState) excuse(c condition, wasUp bool) condition {
	if wasUp && !h.cutOffSince.IsZero() && h.cutOffSince.Sub(c.since) < collapseWindow {
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
func (h *healthState) decideCutOff(at *step) {
	cutOff := h.gateway.known && !h.gateway.answers && h.everythingFails()
	switch {
	case cutOff && h.cutOffSince.IsZero():
		h.cutOffSince = at.now
		h.forgetFlapsSince(at.now.Add(-collapseWindow))
		at.note("machine", at.machineName(), "connected", "cut off", "every pool fails and the gateway "+h.gateway.address+" does not answer")
	case !cutOff && !h.cutOffSince.IsZero():
		h.discountFailures(at)
		h.cutOffSince = time.Time{}
		at.note("machine", at.machineName(), "cut off", "connected", "the gateway or a backend answers again")
	}
}

// discountFailures: probes that failed while the machine was cut off say
// nothing about backends. Those that were up must fail anew to be down; else
// their connections would move at the very moment of recovery.
func (h *healthState) discountFailures(at *step) {
	for _, d := range h.verdicts {
		if d.verdict == down && d.former == up && h.cutOffSince.Sub(d.since) < collapseWindow {
			d.verdict, d.former, d.streak, d.since = up, down, 0, at.now
			d.reason = "as before this machine was cut off"
		}
	}
}

func (h *healthState) everythingFails() bool {
	for _, d := range h.verdicts {
		if d.verdict != down || !d.probed {
			return false
		}
	}
	return len(h.verdicts) > 0
}

// Probed says whether every target was probed once.
func (s *State) Probed() bool { return s.health.firstRound }

func (h *healthState) unprobed() int {
	n := 0
	for _, d := range h.verdicts {
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

// remember keeps what is known of the backends over a change of config.
func (h *healthState) remember(at *step) {
	if at.current == nil {
		return
	}
	for _, members := range at.current.groups {
		for _, m := range members {
			state, known := h.stateOf(m)
			if known == nil || !h.judgedBefore(at, m) {
				continue
			}
			h.inherited[backendKey{m.Backend.Name, m.Backend.Address}] = inherited{up: state != stateDown, from: "as before the reload"}
		}
	}
}

// forgetRemoved: a backend that comes back later is one not seen before.
func (h *healthState) forgetRemoved(present []config.Backend) {
	stays := make(map[backendKey]bool, len(present))
	for _, b := range present {
		stays[backendKey{b.Name, b.Address}] = true
	}
	maps.DeleteFunc(h.inherited, func(key backendKey, _ inherited) bool { return !stays[key] })
}

// judgedBefore: every check had a verdict, or the state was itself inherited.
func (h *healthState) judgedBefore(at *step, m config.Member) bool {
	if _, known := h.inherited[backendKey{m.Backend.Name, m.Backend.Address}]; known {
		return true
	}
	for _, pool := range m.Pools {
		for _, check := range at.current.checks[compile.PoolBackend{Pool: pool, Backend: m.Backend.Name}] {
			if !h.verdicts[check.target].probed {
				return false
			}
		}
	}
	return true
}

// inheritFrom reads the states of the plan that runs in the forwarder, for
// backends that were not judged yet.
func (h *healthState) inheritFrom(at *step, plan *planv1.Plan) {
	addresses := addressesOf(plan)
	for _, group := range plan.GetGroups() {
		for _, m := range group.Members {
			key := backendKey{m.Backend, addresses[m.Backend]}
			if _, known := h.inherited[key]; known || m.State == stateDisabled {
				continue
			}
			h.inherited[key] = inherited{up: m.State != stateDown, from: "as in the running plan"}
		}
	}
	h.inheritVerdicts(at)
}

// inheritVerdicts judges backends that had a state before this controller (or
// this check) by rise and fall from there, as if it had never stopped.
func (h *healthState) inheritVerdicts(at *step) {
	if at.current == nil {
		return
	}
	for _, t := range at.current.targets {
		d := h.verdicts[t.Key()]
		if d.former != unknown || d.inherited {
			continue
		}
		for _, of := range t.For {
			if former, known := h.inherited[backendKey{of.Backend, t.Backend()}]; known {
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
