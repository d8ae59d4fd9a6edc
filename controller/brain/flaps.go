package brain

// Damping: each time a backend goes up or down, connections move. One that does so
// repeatedly is kept down until its checks have passed for a while.

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
)

// flaps of a backend in one pool.
type flaps struct {
	address netip.Addr
	wasUp   bool
	// When its checks found it down, at most as often as holds it.
	downs []time.Time
	// Since when it is held; zero: it is not.
	heldSince time.Time
	// While it is held: since when its checks pass; zero: they do not.
	passesSince time.Time
}

// holdFlapping keeps a backend down that its checks may find up.
func (h *healthState) holdFlapping(at *step, pool *config.Pool, b *config.Backend, c condition, again *earliest) condition {
	key := compile.PoolBackend{Pool: pool.Name, Backend: b.Name}
	f := h.flaps[key]
	if f == nil || f.address != b.Address {
		f = &flaps{address: b.Address}
		h.flaps[key] = f
	}
	f.step(c.up, pool.Damping, at.now)
	if f.heldSince.IsZero() {
		return c
	}
	held := fmt.Sprintf("held by damping (down %d times within %v) until its checks pass for %v", pool.Damping.Flaps,
		pool.Damping.Within, pool.Damping.Hold)
	if !c.up {
		c.reason += "; " + held
		return c
	}
	again.add(f.passesSince.Add(pool.Damping.Hold))
	return condition{judged: true, held: true, since: f.heldSince, reason: held + "; now " + c.reason}
}

func (f *flaps) step(isUp bool, rule *config.Damping, now time.Time) {
	if f.wasUp && !isUp {
		recent := slices.DeleteFunc(slices.Clone(f.downs), func(at time.Time) bool { return now.Sub(at) >= rule.Within })
		recent = append(recent, now)
		f.downs = recent[max(0, len(recent)-rule.Flaps):]
		if f.heldSince.IsZero() && len(f.downs) >= rule.Flaps {
			f.heldSince = now
		}
	}
	f.wasUp = isUp
	switch {
	case f.heldSince.IsZero() || !isUp:
		f.passesSince = time.Time{}
	case f.passesSince.IsZero():
		f.passesSince = now
	case now.Sub(f.passesSince) >= rule.Hold:
		*f = flaps{address: f.address, wasUp: true}
	}
}

// forgetFlapsSince: what went down while the machine was about to be cut off
// says nothing about backends.
func (h *healthState) forgetFlapsSince(began time.Time) {
	for _, f := range h.flaps {
		f.downs = slices.DeleteFunc(slices.Clone(f.downs), func(at time.Time) bool { return at.After(began) })
		if f.heldSince.After(began) {
			f.heldSince = time.Time{}
		}
	}
}
