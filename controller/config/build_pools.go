package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

const (
	flapsDefault     = 3
	flapsTimeDefault = 5 * time.Minute
)

// pools builds the pools in two passes: first each pool's own backends, then
// references between pools, when all names are known.
func (b *builder) pools() {
	names := map[string]string{}
	backends := newBackendNames(b)
	for i, given := range b.schema.GetPools() {
		path := fmt.Sprintf("pools[%d]", i)
		b.uniqueName(names, path, given.GetName())
		pool := Pool{
			Name:        given.GetName(),
			Pools:       given.GetPools(),
			EjectionMax: 100,
		}
		if given.EjectionMax != nil {
			pool.EjectionMax = *given.EjectionMax
		}
		pool.SlowStart = duration(given.GetSlowStart(), 0)
		pool.From = b.memberSource(path, given)
		for j, backend := range b.backendsOf(given) {
			backends.add(&pool, fmt.Sprintf("%s.backends[%d]", path, j), backend)
		}
		if pool.From != nil {
			pool.ShrinkDelay, pool.DrainTime = duration(given.GetShrinkDelay(), shrinkDelayDefault), duration(given.GetDrainTime(), drainTimeDefault)
			b.markLeaving(&pool)
		}
		pool.HealthChecks = b.poolChecks(path, given.GetHealthChecks())
		pool.Damping = b.damping(path+".damping", given.GetDamping(), pool.HealthChecks)
		hasOwn := len(given.GetBackends()) > 0 || pool.From != nil
		if !hasOwn && len(given.GetPools()) == 0 {
			b.missing(path+".backends", "is missing, and so is pools: give at least one backend, like `backends: [{address: 10.1.0.11}]`")
		}
		if !hasOwn && len(given.GetHealthChecks()) > 0 {
			b.warnf(path+".health_checks", "has no effect: it applies to the pool's own backends, and there are none; give it to the pools named in `pools`")
		}
		b.config.Pools = append(b.config.Pools, pool)
	}
	backends.warnNames()
	b.config.Backends = backends.sorted()
	b.poolReferences()
}

// damping warns where it can never come to hold a backend.
func (b *builder) damping(path string, given *configv1.Damping, checks []string) *Damping {
	if given == nil {
		return nil
	}
	damping := &Damping{
		Flaps:  int(or(given.GetFlaps(), flapsDefault)),
		Within: duration(given.GetWithin(), flapsTimeDefault),
		Hold:   duration(given.GetHold(), flapsTimeDefault),
	}
	if len(checks) == 0 {
		b.warnf(path, "has no effect: the pool has no health_checks that could find a backend down")
		return damping
	}
	var quickest time.Duration // from one flap to the next
	for i, name := range checks {
		check := b.config.HealthCheckNamed(name)
		if flap := time.Duration(check.Rise+check.Fall) * check.Interval; i == 0 || flap < quickest {
			quickest = flap
		}
	}
	if takes := time.Duration(damping.Flaps-1) * quickest; takes > damping.Within {
		b.warnf(path+".within", "is %s, and by the rise, fall and interval of the pool's checks %d flaps take at least %s: no backend is ever held; give a longer time, or fewer flaps",
			short(damping.Within), damping.Flaps, short(takes))
	}
	return damping
}

func (b *builder) poolChecks(path string, given []string) []string {
	var checks []string
	for i, name := range given {
		field := fmt.Sprintf("%s.health_checks[%d]", path, i)
		switch {
		case b.config.HealthCheckNamed(name) == nil:
			b.errorf(field, "there is no health check %q: %s", name,
				didYouMean(name, b.healthCheckNames(), "add it to `health_checks`"+"; "+listed(b.healthCheckNames())))
		case slices.Contains(checks, name):
			b.errorf(field, "%q is listed twice: remove one", name)
		default:
			checks = append(checks, name)
		}
	}
	return checks
}

func (b *builder) healthCheckNames() []string {
	return namesOf(b.config.HealthChecks, func(c HealthCheck) string { return c.Name })
}

func (b *builder) poolNames() []string {
	return namesOf(b.config.Pools, func(p Pool) string { return p.Name })
}

func namesOf[T any](items []T, name func(T) string) []string {
	names := make([]string, len(items))
	for i, item := range items {
		names[i] = name(item)
	}
	return names
}

// indexOf gives each name its first place.
func indexOf(names []string) map[string]int {
	index := make(map[string]int, len(names))
	for i, name := range names {
		if _, ok := index[name]; !ok {
			index[name] = i
		}
	}
	return index
}

// poolReferences checks that pools name existing pools and form no cycle.
func (b *builder) poolReferences() {
	b.config.poolIndex = indexOf(b.poolNames())
	for i, pool := range b.config.Pools {
		for j, name := range pool.Pools {
			b.knownPool(fmt.Sprintf("pools[%d].pools[%d]", i, j), name)
		}
	}
	walk := &cycleWalk{builder: b, state: make([]walkState, len(b.config.Pools))}
	for i := range b.config.Pools {
		walk.visit(i)
	}
}

func (b *builder) knownPool(field, name string) {
	if _, ok := b.config.poolIndex[name]; !ok {
		b.errorf(field, "there is no pool %q: %s", name, didYouMean(name, b.poolNames(), "add it to `pools`"+"; "+listed(b.poolNames())))
	}
}

type walkState int

const (
	notVisited walkState = iota
	onPath
	visited
)

// cycleWalk goes through pools depth first; a pool met again while it is on
// the path from the start closes a cycle.
type cycleWalk struct {
	*builder
	state []walkState
	path  []string
}

func (w *cycleWalk) visit(i int) {
	if w.state[i] == visited {
		return
	}
	w.state[i] = onPath
	pool := &w.config.Pools[i]
	w.path = append(w.path, pool.Name)
	for j, name := range pool.Pools {
		next, ok := w.config.poolIndex[name]
		switch {
		case !ok:
		case w.state[next] == onPath:
			start := slices.Index(w.path, name)
			w.errorf(fmt.Sprintf("pools[%d].pools[%d]", i, j), "closes a cycle: %s > %s; remove one of these references",
				strings.Join(w.path[start:], " > "), name)
		default:
			w.visit(next)
		}
	}
	w.path = w.path[:len(w.path)-1]
	w.state[i] = visited
}

// flatten returns the backends that the service's pools reach, in order of
// name, each once. The result is shared between services of one group.
func (b *builder) flatten(service *Service) []Member {
	if members, ok := b.flattened[service.Group]; ok {
		return members
	}
	f := &flattening{builder: b, seen: map[string]bool{}, at: map[string]int{}, leaves: map[string]bool{}}
	for _, name := range service.Pools {
		f.visit(name)
	}
	f.own, f.seen = len(f.members), map[string]bool{}
	f.isBackup = true
	for _, name := range service.BackupPools {
		f.visit(name)
	}
	slices.SortFunc(f.members, func(x, y Member) int { return cmp.Compare(x.Backend.Name, y.Backend.Name) })
	if b.flattened == nil {
		b.flattened = map[string][]Member{}
	}
	b.flattened[service.Group] = f.members
	return f.members
}

type flattening struct {
	*builder
	// Pools reached; a cycle, reported elsewhere, ends here too.
	seen    map[string]bool
	members []Member
	// Index of a backend's member by its name.
	at map[string]int
	// Backends that leave every pool reached so far.
	leaves map[string]bool
	// In the backup pools: how many members the own have.
	isBackup bool
	own      int
}

func (f *flattening) visit(name string) {
	i, ok := f.config.poolIndex[name]
	if !ok || f.seen[name] {
		return
	}
	f.seen[name] = true
	pool := &f.config.Pools[i]
	for _, backend := range pool.Backends {
		f.add(pool, i, backend)
	}
	for _, nested := range pool.Pools {
		f.visit(nested)
	}
}

func (f *flattening) add(pool *Pool, poolIndex int, backend PoolBackend) {
	at, ok := f.at[backend.Name]
	added := Member{Backend: backend.Backend, Weight: backend.Weight, Pools: []string{pool.Name}, IsBackup: f.isBackup}
	if !ok {
		f.at[backend.Name] = len(f.members)
		f.members = append(f.members, added)
		f.leaves[backend.Name] = backend.Leaves
		return
	}
	member := &f.members[at]
	switch {
	case f.leaves[backend.Name] && !backend.Leaves: // it leaves another pool only
		added.IsBackup = f.isBackup && at >= f.own
		*member, f.leaves[backend.Name] = added, false
		return
	case backend.Leaves && !f.leaves[backend.Name], f.isBackup && at < f.own:
		return
	}
	if member.Weight != backend.Weight {
		f.errorf(fmt.Sprintf("pools[%d].backends", poolIndex),
			"backend %q has weight %d here and %d in pool %q, and a service uses both pools: give it the same weight in both",
			backend.Name, backend.Weight, member.Weight, member.Pools[0])
	}
	member.Pools = append(member.Pools, pool.Name)
}
