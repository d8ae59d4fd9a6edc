package brain

// From verdicts to the state of each backend in each service.

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

type memberKey struct{ service, backend string }

// member is a backend as one service uses it.
type member struct {
	state  planv1.BackendState
	reason string
	since  time.Time
}

// condition of a backend by the checks of one pool.
type condition struct {
	up     bool
	judged bool // by probes; else by default or inheritance
	reason string
	since  time.Time // of the verdict
}

type poolSummary struct{ up, total, keptIn int }

// decideMembers gives every backend of every service its state.
func (s *State) decideMembers() {
	s.conditions = s.judgePools()
	present := make(map[memberKey]bool, len(s.members))
	s.active = make(map[string]int, len(s.current.services))
	for _, service := range s.current.services {
		for _, m := range service.Members {
			key := memberKey{service.Name, m.Backend.Name}
			present[key] = true
			state, reason := s.stateOf(m)
			s.setMember(key, state, reason)
			if state == planv1.BackendState_BACKEND_STATE_ACTIVE {
				s.active[service.Name]++
			}
		}
	}
	for key, m := range s.members {
		if !present[key] {
			s.note("backend", key.service+"/"+key.backend, stateName(m.state), "removed", "no longer in the config")
			delete(s.members, key)
		}
	}
	s.noteFirstRound()
}

func (s *State) setMember(key memberKey, state planv1.BackendState, reason string) {
	m := s.members[key]
	if m == nil {
		s.members[key] = &member{state: state, reason: reason, since: s.now}
		s.note("backend", key.service+"/"+key.backend, "new", stateName(state), reason)
		return
	}
	if m.state != state {
		s.note("backend", key.service+"/"+key.backend, stateName(m.state), stateName(state), reason)
		m.since = s.now
	}
	m.state, m.reason = state, reason
}

// stateOf: a backend must pass in every pool through which the service
// reaches it; what fails its probes is down even while it drains.
func (s *State) stateOf(m config.Member) (planv1.BackendState, string) {
	var reasons []string
	for _, pool := range m.Pools {
		c := s.conditions[compile.PoolBackend{Pool: pool, Backend: m.Backend.Name}]
		if !c.up {
			return planv1.BackendState_BACKEND_STATE_DOWN, c.reason
		}
		if !slices.Contains(reasons, c.reason) {
			reasons = append(reasons, c.reason)
		}
	}
	switch {
	case s.drained[m.Backend.Name]:
		return planv1.BackendState_BACKEND_STATE_DRAINING, "drained by command"
	case m.Weight == 0:
		return planv1.BackendState_BACKEND_STATE_DRAINING, "weight 0"
	}
	return planv1.BackendState_BACKEND_STATE_ACTIVE, strings.Join(reasons, "; ")
}

// judgePools gives each backend its condition in each pool that a service
// here reaches.
func (s *State) judgePools() map[compile.PoolBackend]condition {
	conditions := map[compile.PoolBackend]condition{}
	clear(s.pools)
	for _, service := range s.current.services {
		for _, m := range service.Members {
			for _, name := range m.Pools {
				if _, done := s.pools[name]; !done {
					s.judgePool(s.current.pools[name], conditions)
				}
			}
		}
	}
	return conditions
}

func (s *State) judgePool(pool *config.Pool, conditions map[compile.PoolBackend]condition) {
	own := make(map[string]condition, len(pool.Backends))
	for _, b := range pool.Backends {
		own[b.Name] = s.judge(pool, b.Backend)
	}
	summary := poolSummary{total: len(own), keptIn: keepIn(pool, own)}
	for name, c := range own {
		conditions[compile.PoolBackend{Pool: pool.Name, Backend: name}] = c
		if c.up {
			summary.up++
		}
	}
	s.pools[pool.Name] = summary
}

// judge combines the verdicts of a pool's checks on one backend: all must
// pass, and one failure is enough.
func (s *State) judge(pool *config.Pool, b *config.Backend) condition {
	checks := s.current.checks[compile.PoolBackend{Pool: pool.Name, Backend: b.Name}]
	if len(checks) == 0 {
		return condition{up: true, reason: "no health check"}
	}
	passed := condition{up: true, judged: true}
	var unprobed string
	for _, check := range checks {
		d := s.verdicts[check.target]
		switch d.verdict {
		case unknown:
			unprobed = check.name
		case down:
			failed := condition{judged: true, reason: check.name + ": " + d.reason, since: d.since}
			return s.excuse(failed, d.former == up || d.former == unknown && s.inherited[backendKey{b.Name, b.Address}].up)
		case up:
			passed.reason = check.name + ": " + d.reason
			passed.since = d.since
		}
	}
	if unprobed == "" {
		return passed
	}
	if former, known := s.inherited[backendKey{b.Name, b.Address}]; known {
		return condition{up: former.up, reason: former.from + ", until the first probe of " + unprobed}
	}
	return condition{reason: "not yet probed by " + unprobed}
}

// excuse keeps a backend that went down together with all others while the
// gateway did not answer: the machine is the sick one.
func (s *State) excuse(c condition, wasUp bool) condition {
	if wasUp && !s.sickSince.IsZero() && s.sickSince.Sub(c.since) < collapseWindow {
		return condition{up: true, judged: true, reason: "kept: this machine is cut off (" + c.reason + ")", since: c.since}
	}
	return c
}

// keepIn applies ejection_max: of the backends that are down by their probes
// only so many leave, those that failed first; the rest is kept in.
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
		return cmp.Or(conditions[a].since.Compare(conditions[b].since), cmp.Compare(a, b))
	})
	for _, name := range failed[ejectable:] {
		c := conditions[name]
		c.up = true
		c.reason = fmt.Sprintf("kept in by ejection_max %d (%s)", pool.EjectionMax, c.reason)
		conditions[name] = c
	}
	return len(failed) - ejectable
}

// decideSickness: every check of every pool fails and our own gateway does
// not answer.
func (s *State) decideSickness() {
	sick := s.gateway.known && !s.gateway.answers && s.everythingFails()
	switch {
	case sick && s.sickSince.IsZero():
		s.sickSince = s.now
		s.note("machine", s.machineName(), "well", "cut off", "every pool fails and the gateway "+s.gateway.address+" does not answer")
	case !sick && !s.sickSince.IsZero():
		s.discountFailures()
		s.sickSince = time.Time{}
		s.note("machine", s.machineName(), "cut off", "well", "the gateway or a backend answers again")
	}
}

// discountFailures: probes that failed while the machine was cut off say
// nothing about backends. Those that were up must fail anew to be down; else
// their connections would move at the very moment of recovery.
func (s *State) discountFailures() {
	for _, d := range s.verdicts {
		if d.verdict == down && d.former == up && s.sickSince.Sub(d.since) < collapseWindow {
			d.verdict, d.former, d.streak, d.since = up, down, 0, s.now
			d.reason = "as before this machine was cut off"
		}
	}
}

func (s *State) everythingFails() bool {
	for _, d := range s.verdicts {
		if d.verdict != down {
			return false
		}
	}
	return len(s.verdicts) > 0
}

// noteFirstRound: from here on the machine may announce.
func (s *State) noteFirstRound() {
	if !s.firstRound && s.unprobed() == 0 {
		s.firstRound = true
	}
}

func (s *State) unprobed() int {
	n := 0
	for _, d := range s.verdicts {
		if d.verdict == unknown {
			n++
		}
	}
	return n
}

// rememberHealth keeps what is known of the backends over a change of config.
func (s *State) rememberHealth() {
	if s.current == nil {
		return
	}
	for _, service := range s.current.services {
		for _, m := range service.Members {
			state := s.members[memberKey{service.Name, m.Backend.Name}]
			if state == nil || !s.judgedBefore(m) {
				continue
			}
			isUp := state.state != planv1.BackendState_BACKEND_STATE_DOWN
			s.inherited[backendKey{m.Backend.Name, m.Backend.Address}] = inherited{up: isUp, from: "as before the reload"}
		}
	}
}

// forgetRemoved: a backend that comes back later is one not seen before.
func (s *State) forgetRemoved(present []config.Backend) {
	stays := make(map[backendKey]bool, len(present))
	for _, b := range present {
		stays[backendKey{b.Name, b.Address}] = true
	}
	maps.DeleteFunc(s.inherited, func(key backendKey, _ inherited) bool { return !stays[key] })
}

// judgedBefore: every check had a verdict, or the state was itself inherited.
func (s *State) judgedBefore(m config.Member) bool {
	if _, known := s.inherited[backendKey{m.Backend.Name, m.Backend.Address}]; known {
		return true
	}
	for _, pool := range m.Pools {
		for _, check := range s.current.checks[compile.PoolBackend{Pool: pool, Backend: m.Backend.Name}] {
			if s.verdicts[check.target].verdict == unknown {
				return false
			}
		}
	}
	return true
}

// inheritFrom reads the states of the plan that runs in the forwarder, for
// backends that were not judged yet.
func (s *State) inheritFrom(plan *planv1.Plan) {
	addresses := make(map[string]netip.Addr, len(plan.GetBackends()))
	for _, b := range plan.GetBackends() {
		if address, err := netip.ParseAddr(b.Address); err == nil {
			addresses[b.Name] = address
		}
	}
	for _, group := range plan.GetGroups() {
		for _, m := range group.Members {
			key := backendKey{m.Backend, addresses[m.Backend]}
			if _, known := s.inherited[key]; known || m.State == planv1.BackendState_BACKEND_STATE_DISABLED {
				continue
			}
			isUp := m.State != planv1.BackendState_BACKEND_STATE_DOWN
			s.inherited[key] = inherited{up: isUp, from: "as in the running plan"}
		}
	}
}

func stateName(state planv1.BackendState) string {
	switch state {
	case planv1.BackendState_BACKEND_STATE_ACTIVE:
		return "active"
	case planv1.BackendState_BACKEND_STATE_DRAINING:
		return "draining"
	case planv1.BackendState_BACKEND_STATE_DOWN:
		return "down"
	}
	return "disabled"
}
