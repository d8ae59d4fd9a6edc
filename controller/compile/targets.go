package compile

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/check"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
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
	// The zero value: it goes to the backend's own address.
	Tunnel Tunnel
}

// By the mark the kernel hands probes to the forwarder's device
// (forwarder/src/netlink/probe_routes.rs).
const (
	ProbeMark   = 26487
	ProbeDevice = "gw-probe"
)

// Tunnel is how a probe goes to a VIP, which is then its Address.
type Tunnel struct {
	Backend string
	// The backend's own address, where the tunnel ends.
	End   netip.Addr
	Encap planv1.Encap
	// The probe's source; the port is that of backend and encapsulation in the
	// plan.
	From netip.AddrPort
}

// Via is the way it goes.
func (p Probe) Via() config.Via {
	if p.Tunnel.End.IsValid() {
		return config.ViaTunnel
	}
	return config.ViaDirect
}

// Backend is the address of the backend that is probed.
func (p Probe) Backend() netip.Addr {
	if p.Via() == config.ViaTunnel {
		return p.Tunnel.End
	}
	return p.Address
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
func targetKey(probe Probe, c *config.HealthCheck) string {
	return fmt.Sprintf("%s %s every %s within %s rise %d fall %d via %s",
		probe.Address, check.Key(probe.Check), probe.Interval, probe.Timeout, c.Rise, c.Fall, probe.Via())
}

// Targets lists what this machine has to probe: the backends of the pools
// that its services reach, in order of key.
func Targets(c *config.Config) []Target {
	byKey := map[string]*Target{}
	reached, withoutView := poolsReached(c), poolsWithoutView(c)
	viewsOf := map[string][]string{}
	for _, view := range c.PoolViews {
		viewsOf[view.Of] = append(viewsOf[view.Of], view.Name)
	}
	for i := range c.Pools {
		pool := &c.Pools[i]
		if !reached[pool.Name] {
			continue
		}
		for _, name := range pool.HealthChecks {
			switch check := c.HealthCheckNamed(name); {
			case check.Via == config.ViaDirect:
				addTargets(byKey, slices.Concat(viewsOf[pool.Name], []string{pool.Name}), pool, check)
			case check.Via == config.ViaAuto && withoutView[pool.Name]:
				addTargets(byKey, []string{pool.Name}, pool, check)
			}
		}
	}
	for _, probe := range c.TunnelProbes {
		addTunnelTarget(byKey, probe, c.HealthCheckNamed(probe.Check))
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

// addTargets counts a direct check for all views of the pool.
func addTargets(byKey map[string]*Target, names []string, pool *config.Pool, check *config.HealthCheck) {
	for _, backend := range pool.Backends {
		probe := Probe{Address: backend.Address, Check: check.Check, Interval: check.Interval, Timeout: check.Timeout}
		target := targetOf(byKey, targetKey(probe, check), probe, check)
		for _, name := range names {
			target.For = append(target.For, PoolBackend{name, backend.Name})
		}
	}
}

// addTunnelTarget: another backend with the same address has probes of its own,
// because a tunnel has a name in the plan.
func addTunnelTarget(byKey map[string]*Target, given config.TunnelProbe, check *config.HealthCheck) {
	backend := given.Backend
	probe := Probe{
		Address: given.VIP, Check: check.Check, Interval: check.Interval, Timeout: check.Timeout,
		Tunnel: Tunnel{Backend: backend.Name, End: backend.Address, Encap: encaps[given.Encap], From: given.From},
	}
	key := fmt.Sprintf("%s %s %s of %s", targetKey(probe, check), given.Encap, backend.Address, backend.Name)
	target := targetOf(byKey, key, probe, check)
	for _, view := range given.Views {
		target.For = append(target.For, PoolBackend{view, backend.Name})
	}
}

func targetOf(byKey map[string]*Target, key string, probe Probe, check *config.HealthCheck) *Target {
	if byKey[key] == nil {
		byKey[key] = &Target{Probe: probe, HealthCheck: check, key: key}
	}
	return byKey[key]
}

// poolsWithoutView are those that services here use as they are: no check of theirs goes
// through a tunnel for these services.
func poolsWithoutView(c *config.Config) map[string]bool {
	used := map[string]bool{}
	for _, service := range c.ServicesHere() {
		for _, member := range service.Members {
			for _, pool := range member.Pools {
				used[pool] = true
			}
		}
	}
	return used
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
		reach(service.BackupPools)
	}
	return reached
}
