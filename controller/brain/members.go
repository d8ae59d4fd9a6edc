package brain

// Pools whose members come from a file or DNS: what happens when a set is read, and the
// config that results.
//
//	set ─► listed ───────────────────────────────► active
//	         └─ no longer listed ─┬──────────────► draining, for drain_time ─► removed
//	                              └─ half of the pool or more: active, for shrink_delay
//
// A source that fails changes nothing.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/config"
)

type (
	// MembersRead: the source of a pool's members gave a set, or did not.
	MembersRead struct {
		Pool string
		From config.MemberSource
		// In any order, each name once.
		Members []config.PoolMember
		// Why it gave none; empty: it did.
		Problem string
	}
	// MembersRestored as a former controller kept them; before the first config.
	MembersRestored struct{ Pools map[string]config.MemberSet }
)

type membersState struct {
	// By name. Their values are replaced, never changed in place.
	pools map[string]poolMembers
	// For the next start.
	kept    map[string]config.MemberSet
	changes uint64 // how often that changed
	// When the next member has drained; zero: none drains.
	again earliest
}

// poolMembers is what is known of one pool.
type poolMembers struct {
	// Listed by the source; held though they are not listed; draining.
	listed, held []config.PoolMember
	leaving      []config.LeavingMember
	// The latest set that removed what it does not list: by this it is judged whether
	// another one shrinks the pool.
	base []config.PoolMember
	// The largest base of the last shrink_delay, against a pool that shrinks in steps.
	largest   int
	largestAt time.Time
	// Since when sets shrink the pool; zero: they do not.
	shrinksSince time.Time

	// The source was asked since the start.
	heard        bool
	lastSuccess  time.Time
	problem      string
	problemSince time.Time
}

// after a set of the source.
func (p poolMembers) after(set []config.PoolMember, pool *config.Pool, now time.Time) poolMembers {
	set = slices.SortedFunc(slices.Values(set), byMemberName)
	listed, based := namesIn(set), namesIn(p.base)
	gone := slices.DeleteFunc(slices.Concat(p.listed, p.held), func(m config.PoolMember) bool { return listed[m.Name] })
	p.leaving = slices.DeleteFunc(slices.Clone(p.leaving), func(m config.LeavingMember) bool { return listed[m.Name] })
	p.listed, p.held = set, nil
	p.heard, p.problem, p.problemSince, p.lastSuccess = true, "", time.Time{}, now

	if !p.shrinks(listed, pool.ShrinkDelay, now) {
		p.shrinksSince = time.Time{}
	} else if p.shrinksSince.IsZero() {
		p.shrinksSince = now
	}
	waits := !p.shrinksSince.IsZero() && now.Before(p.shrinksSince.Add(pool.ShrinkDelay))
	for _, m := range gone {
		if waits && based[m.Name] {
			p.held = append(p.held, m)
		} else if pool.DrainTime > 0 {
			p.leaving = append(p.leaving, config.LeavingMember{PoolMember: m, Until: now.Add(pool.DrainTime)})
		}
	}
	if !waits {
		p.settle(set, pool.ShrinkDelay, now)
	}
	return p
}

// shrinks: the set lacks half of the pool or more.
func (p poolMembers) shrinks(listed map[string]bool, delay time.Duration, now time.Time) bool {
	stay := 0
	for _, m := range p.base {
		if listed[m.Name] {
			stay++
		}
	}
	largest := len(p.base)
	if now.Before(p.largestAt.Add(delay)) {
		largest = max(largest, p.largest)
	}
	return stay < len(p.base) && (2*stay <= len(p.base) || 2*len(listed) <= largest)
}

// settle on a set that removes what it does not list.
func (p *poolMembers) settle(set []config.PoolMember, delay time.Duration, now time.Time) {
	if len(set) >= p.largest || !p.shrinksSince.IsZero() || !now.Before(p.largestAt.Add(delay)) {
		p.largest, p.largestAt = len(set), now
	}
	p.base, p.shrinksSince = set, time.Time{}
}

// all of them that the pool has, in order of name.
func (p poolMembers) all() []config.PoolMember {
	all := slices.Concat(p.listed, p.held)
	for _, m := range p.leaving {
		m.Leaves = true
		all = append(all, m.PoolMember)
	}
	slices.SortFunc(all, byMemberName)
	return all
}

func (p poolMembers) kept() config.MemberSet {
	listed := slices.SortedFunc(slices.Values(slices.Concat(p.listed, p.held)), byMemberName)
	return config.MemberSet{Listed: listed, Leaving: p.leaving, LastSuccess: p.lastSuccess}
}

func byMemberName(a, b config.PoolMember) int { return cmp.Compare(a.Name, b.Name) }

func namesIn(members []config.PoolMember) map[string]bool {
	names := make(map[string]bool, len(members))
	for _, m := range members {
		names[m.Name] = true
	}
	return names
}

func (e MembersRestored) apply(s *State) {
	for name, set := range e.Pools {
		s.members.pools[name] = restored(set, s.now)
	}
	s.members.keep()
}

func restored(set config.MemberSet, now time.Time) poolMembers {
	return poolMembers{listed: set.Listed, base: set.Listed, leaving: set.Leaving, lastSuccess: set.LastSuccess, largest: len(set.Listed), largestAt: now}
}

// A set of a source that the pool does not have any more changes nothing.
func (e MembersRead) apply(s *State) {
	if s.current == nil {
		return
	}
	pool := s.current.loaded.PoolNamed(e.Pool)
	if pool == nil || pool.From == nil || *pool.From != e.From {
		return
	}
	former := s.members.known(&s.step, pool)
	next := former
	if e.Problem == "" {
		next = former.after(e.Members, pool, s.now)
		if err := s.adoptMembers(e.Pool, former, next); err != nil {
			next, e.Problem = former, err.Error()
		}
	}
	if e.Problem != "" {
		next.fail(e.Problem, s.now)
	}
	s.members.pools[e.Pool] = next
	s.noteMembers(pool, former, next)
	s.members.keep()
}

func (p *poolMembers) fail(problem string, now time.Time) {
	p.heard = true
	if p.problem == "" {
		p.problemSince = now
	}
	p.problem = problem
}

// adoptMembers of one pool, unless they are as before.
func (s *State) adoptMembers(pool string, former, next poolMembers) error {
	if slices.Equal(former.all(), next.all()) {
		return nil
	}
	pools := s.members.of(&s.step, s.current.loaded)
	pools[pool] = next
	in, err := inputsWith(s.current.loaded, pools)
	if err != nil {
		return err
	}
	if refused := s.configs.refused; refused != nil && refused.loaded == in.loaded {
		s.configs.refused = in // else an accepted plan would not end the refusal
	}
	s.adopt(in)
	return nil
}

// inputsWith the members that pools have.
func inputsWith(loaded *config.Config, pools map[string]poolMembers) (*inputs, error) {
	members := make(map[string][]config.PoolMember, len(pools))
	for name, p := range pools {
		members[name] = p.all()
	}
	c, err := loaded.WithMembers(members)
	if err != nil {
		return nil, fmt.Errorf("the backends do not fit the config: %w", err)
	}
	in := newInputs(c)
	in.loaded = loaded
	return in, nil
}

// CheckMembers: whether the backends that sources have listed fit a config.
func (s *State) CheckMembers(c *config.Config) error {
	if len(c.MemberPools()) == 0 {
		return nil
	}
	_, err := inputsWith(c, s.members.of(&s.step, c))
	return err
}

// of the pools of a config that have a source.
func (m *membersState) of(at *step, c *config.Config) map[string]poolMembers {
	pools := map[string]poolMembers{}
	for _, pool := range c.MemberPools() {
		pools[pool.Name] = m.known(at, pool)
	}
	return pools
}

// known of a pool. One that gets a source has the backends that it had, until that
// source gives a set.
func (m *membersState) known(at *step, pool *config.Pool) poolMembers {
	if known, ok := m.pools[pool.Name]; ok {
		if former := at.formerPool(pool.Name); former != nil && (former.From == nil || *former.From != *pool.From) {
			known.heard, known.problem, known.problemSince = false, "", time.Time{}
		}
		return known
	}
	former := at.formerPool(pool.Name)
	if former == nil {
		return poolMembers{}
	}
	var set config.MemberSet
	for _, b := range former.Backends {
		member := config.PoolMember{Name: b.Name, Address: b.Address, Weight: b.Weight}
		if b.Leaves {
			set.Leaving = append(set.Leaving, config.LeavingMember{PoolMember: member, Until: at.now.Add(pool.DrainTime)})
		} else {
			set.Listed = append(set.Listed, member)
		}
	}
	slices.SortFunc(set.Listed, byMemberName)
	return restored(set, at.now)
}

func (at *step) formerPool(name string) *config.Pool {
	if at.current == nil {
		return nil
	}
	return at.current.config.PoolNamed(name)
}

// How much older than the latest success the one that is kept may be.
const keptSuccessAge = time.Minute

// keep for the next start, and note when the next one has drained.
func (m *membersState) keep() {
	m.again = earliest{}
	kept := make(map[string]config.MemberSet, len(m.pools))
	changed := len(m.pools) != len(m.kept)
	for name, p := range m.pools {
		for _, member := range p.leaving {
			m.again.add(member.Until)
		}
		now, was := p.kept(), m.kept[name]
		changed = changed || !slices.Equal(now.Listed, was.Listed) || !slices.Equal(now.Leaving, was.Leaving) ||
			now.LastSuccess.Sub(was.LastSuccess) >= keptSuccessAge
		kept[name] = now
	}
	if changed {
		m.kept = kept
		m.changes++
	}
}

// checkMembers removes those that have drained.
func (s *State) checkMembers() {
	if !s.members.again.isDue(s.now) || s.current == nil {
		return
	}
	for name, p := range s.members.pools {
		next := p
		next.leaving = slices.DeleteFunc(slices.Clone(p.leaving), func(m config.LeavingMember) bool { return !s.now.Before(m.Until) })
		if err := s.adoptMembers(name, p, next); err != nil {
			// Fewer backends fit where more did; should they not, the next set has them removed.
			next.fail(err.Error(), s.now)
		}
		s.members.pools[name] = next
	}
	s.members.keep()
}

// areAwaited: a source was not asked yet whose pool would be empty in the first plan.
func (m *membersState) areAwaited(plan *planState) bool {
	if plan.wanted != nil {
		return false
	}
	for _, p := range m.pools {
		if !p.heard && len(p.all()) == 0 {
			return true
		}
	}
	return false
}

// assumeHeard has the plan not wait for sources, and says which were not asked.
func (m *membersState) assumeHeard(at *step) (notAsked []string) {
	for _, pool := range at.current.loaded.MemberPools() {
		p := m.pools[pool.Name]
		if !p.heard {
			notAsked = append(notAsked, fmt.Sprintf("pool %s: %s is not asked before the config is in use; this is with the %d backends that are known", pool.Name, pool.From, len(p.all())))
		}
		p.heard = true
		m.pools[pool.Name] = p
	}
	return notAsked
}

func (at *step) noteMembers(pool *config.Pool, former, now poolMembers) {
	source := pool.From.String()
	switch {
	case now.problem != "" && former.problem == "":
		at.note("pool", pool.Name, "", "failing", fmt.Sprintf("%s: %s; its %d backends stay", source, now.problem, len(now.all())))
	case now.problem == "" && former.problem != "":
		at.note("pool", pool.Name, "failing", "listed", source+" gives its backends again")
	}
	switch {
	case len(now.held) > 0 && len(former.held) == 0:
		at.note("pool", pool.Name, "", "shrinking", fmt.Sprintf("%s lists %d backends and lacks %d of the pool's: these stay for shrink_delay, %s", source, len(now.listed), len(now.held), pool.ShrinkDelay))
	case len(now.held) == 0 && len(former.held) > 0:
		at.note("pool", pool.Name, "shrinking", "listed", fmt.Sprintf("%s lists %d backends", source, len(now.listed)))
	}
}

// MemberSourceView is where a pool's members come from, and how that goes.
type MemberSourceView struct {
	Pool, Source string
	// In use; and of these, waiting for shrink_delay. Leaving ones drain.
	Backends, Waiting, Leaving int
	WaitingSince, WaitingUntil time.Time
	// Zero: never.
	LastSuccess  time.Time
	Problem      string
	ProblemSince time.Time
}

func (m *membersState) view(at *step) []MemberSourceView {
	var views []MemberSourceView
	for _, pool := range at.current.loaded.MemberPools() {
		p := m.pools[pool.Name]
		v := MemberSourceView{
			Pool: pool.Name, Source: pool.From.String(), Backends: len(p.listed) + len(p.held), Waiting: len(p.held), Leaving: len(p.leaving),
			LastSuccess: p.lastSuccess, Problem: p.problem, ProblemSince: p.problemSince,
		}
		if len(p.held) > 0 {
			v.WaitingSince, v.WaitingUntil = p.shrinksSince, p.shrinksSince.Add(pool.ShrinkDelay)
		}
		views = append(views, v)
	}
	return views
}
