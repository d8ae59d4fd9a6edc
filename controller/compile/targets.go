package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/check"
	"github.com/guideway/guideway/controller/config"
)

// Probe is one thing to ask of one address, again and again. Probes are
// compared by value.
type Probe struct {
	Address netip.Addr
	Check   check.Check
	// From the start of one attempt to the start of the next.
	Interval time.Duration
	// At most the interval.
	Timeout time.Duration
}

// Target is a probe and how it is judged, however many pools and checks of the
// same content name it.
type Target struct {
	Probe
	// The first check of this content; others differ in name only.
	HealthCheck *config.HealthCheck
	// Whom the result concerns, in order of pool and backend.
	For []PoolBackend

	key string
}

// PoolBackend is a backend in one of its pools: the unit that has a state.
type PoolBackend struct {
	Pool, Backend string
}

// Key is equal for equal targets of different configs, so that a reload
// knows which probes go on.
func (t Target) Key() string { return t.key }

// targetKey spells out what a probe does; the check's name is no part of it.
func targetKey(address netip.Addr, c *config.HealthCheck) string {
	return fmt.Sprintf("%s %s every %s within %s rise %d fall %d via %s",
		address, check.Key(c.Check), c.Interval, c.Timeout, c.Rise, c.Fall, c.Via)
}

// Targets lists what this machine has to probe: the backends of the pools
// that its services reach, in order of key.
func Targets(c *config.Config) []Target {
	byKey := map[string]*Target{}
	reached := poolsReached(c)
	for i := range c.Pools {
		pool := &c.Pools[i]
		if !reached[pool.Name] {
			continue
		}
		for _, name := range pool.HealthChecks {
			addTargets(byKey, pool, c.HealthCheckNamed(name))
		}
	}
	targets := make([]Target, 0, len(byKey))
	for _, target := range byKey {
		slices.SortFunc(target.For, func(a, b PoolBackend) int {
			return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Backend, b.Backend))
		})
		target.For = slices.Compact(target.For)
		targets = append(targets, *target)
	}
	slices.SortFunc(targets, func(a, b Target) int { return cmp.Compare(a.key, b.key) })
	return targets
}

func addTargets(byKey map[string]*Target, pool *config.Pool, check *config.HealthCheck) {
	for _, backend := range pool.Backends {
		key := targetKey(backend.Address, check)
		target, ok := byKey[key]
		if !ok {
			probe := Probe{backend.Address, check.Check, check.Interval, check.Timeout}
			target = &Target{Probe: probe, HealthCheck: check, key: key}
			byKey[key] = target
		}
		target.For = append(target.For, PoolBackend{pool.Name, backend.Name})
	}
}

// poolsReached are the pools of this machine's services, nested ones too.
func poolsReached(c *config.Config) map[string]bool {
	reached := map[string]bool{}
	var reach func(names []string)
	reach = func(names []string) {
		for _, name := range names {
			if !reached[name] {
				reached[name] = true
				reach(c.PoolNamed(name).Pools)
			}
		}
	}
	for _, service := range c.ServicesHere() {
		reach(service.Pools)
	}
	return reached
}
