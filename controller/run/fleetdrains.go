package run

// Drains of all machines that share their config by etcd, which is where they stand.
// This machine keeps them on disk beside its own, and goes on with them while etcd is
// away.

import (
	"context"
	"errors"
	"slices"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/sinks/fleet"
)

// drainInFleet: on all machines; the others hear of it by etcd.
func (c *Controller) drainInFleet(ctx context.Context, what fleet.Drained, refuse func() error) error {
	etcd := c.configs.Etcd()
	if etcd == nil {
		return api.Unmetf("drain %s on all machines: there is no `etcd` in the config by which they would hear of it: drain it on each", what.Name)
	}
	var problem error
	if err := c.Ask(ctx, func() { problem = refuse() }); err != nil || problem != nil {
		return errors.Join(err, problem)
	}
	if err := etcd.Store.Drain(ctx, what, c.configs.Machine()); err != nil {
		return api.Unmetf("drain %s on all machines: %s: without `--fleet` it is drained on this machine alone", what.Name, err)
	}
	return c.setFleetDrains(ctx, func(drains []fleet.Drained) []fleet.Drained { return append(drains, what) })
}

// undrainInFleet: if it was drained on all machines, which is returned.
func (c *Controller) undrainInFleet(ctx context.Context, what fleet.Drained) (was bool, err error) {
	etcd := c.configs.Etcd()
	if etcd == nil {
		return false, nil
	}
	isKnown := false
	if err := c.Ask(ctx, func() { isKnown = slices.Contains(c.fleetDrains, what) }); err != nil {
		return false, err
	}
	was, err = etcd.Store.Undrain(ctx, what)
	switch {
	case err != nil && isKnown:
		return false, api.Unmetf("undrain %s, which is drained on all machines: %s", what.Name, err)
	case err != nil || !was && !isKnown:
		return false, nil // one of this machine's
	}
	return true, c.setFleetDrains(ctx, func(drains []fleet.Drained) []fleet.Drained {
		return slices.DeleteFunc(drains, func(drained fleet.Drained) bool { return drained == what })
	})
}

// takeFleetDrains as etcd holds them, unless that is an older etcd's, or an empty one's,
// which would bring back what is drained.
func (c *Controller) takeFleetDrains(ctx context.Context, drains fleet.Drains) {
	if drains.Current == nil || fleet.CheckNext(c.configs.Etcd().Generation(), drains.Current) != nil {
		return
	}
	if err := c.setFleetDrains(ctx, func([]fleet.Drained) []fleet.Drained { return drains.Drained }); err != nil && ctx.Err() == nil {
		c.log.Error("drains of all machines are not kept on disk", "error", err)
	}
}

// setFleetDrains to what they become, here and on disk.
func (c *Controller) setFleetDrains(ctx context.Context, become func([]fleet.Drained) []fleet.Drained) error {
	var problem error
	err := c.Ask(ctx, func() {
		next := slices.Compact(slices.SortedFunc(slices.Values(become(slices.Clone(c.fleetDrains))), fleet.Drained.Compare))
		if !slices.Equal(next, c.fleetDrains) {
			c.stepFleetDrains(next)
			problem = c.keepDrains()
		}
	})
	return errors.Join(err, problem)
}

// stepFleetDrains makes the drains of all machines those, sorted.
func (c *Controller) stepFleetDrains(next []fleet.Drained) {
	former := c.fleetDrains
	c.fleetDrains = next
	for _, what := range next {
		if !slices.Contains(former, what) {
			c.log.Info("drained on all machines", "kind", what.Kind, "name", what.Name)
			c.Step(drainOf(what, true))
		}
	}
	for _, what := range former {
		if !slices.Contains(next, what) {
			c.log.Info("undrained on all machines", "kind", what.Kind, "name", what.Name)
			c.Step(drainOf(what, false))
		}
	}
}

func drainOf(what fleet.Drained, drain bool) brain.Event {
	if what.Kind == fleet.KindService {
		return brain.DrainService{Service: what.Name, Drain: drain}
	}
	return brain.DrainBackend{Backend: what.Name, Drain: drain}
}
