package run

// Drains that apply to all machines. Machines that share their config through etcd store
// them there; others tell each other, and for each object the latest change applies. This
// machine keeps them on disk as well, and continues them while etcd or the peers are
// unreachable.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/sinks/fleet"
	"github.com/guideway/guideway/controller/sinks/peers"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// drainInFleet: on all machines; the others hear of it by etcd, or as peers.
func (c *Controller) drainInFleet(ctx context.Context, what fleet.Drained, refuse func() error) error {
	etcd := c.configs.Etcd()
	if etcd == nil {
		return c.drainByPeers(ctx, what, refuse)
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
	isKnown := false
	if err := c.Ask(ctx, func() { isKnown = slices.Contains(c.fleetDrains, what) }); err != nil {
		return false, err
	}
	etcd := c.configs.Etcd()
	if etcd == nil {
		if isKnown {
			err = c.changeDrain(ctx, what, false, func() error { return nil })
		}
		return isKnown, err
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
	_ = c.setFleetDrains(ctx, func([]fleet.Drained) []fleet.Drained { return drains.Drained }) // the keeper has told why
}

// drainByPeers, which hear of it with the next status.
func (c *Controller) drainByPeers(ctx context.Context, what fleet.Drained, refuse func() error) error {
	return c.changeDrain(ctx, what, true, func() error {
		const cure = "drain it on each"
		switch inUse := c.brain.Config(); {
		case inUse == nil || len(inUse.Peers) == 0:
			return api.Unmetf("drain %s on all machines: the config names no others, by `peers` or `etcd`, that would hear of it: %s", what.Name, cure)
		case c.exchange.Problem() != "":
			return api.Unmetf("drain %s on all machines: they would not hear of it: %s; or %s", what.Name, c.exchange.Problem(), cure)
		case !c.drainChanges.HasRoomFor(what):
			return api.Unmetf("drain %s on all machines: %d drains are the most that peers tell each other: take what is to stay away out of the config", what.Name, fleet.ChangesMax)
		}
		return refuse()
	})
}

// followLater warns of peers that a drain of all machines did not reach. Of machines that
// share etcd it is not known who has read it.
func (c *Controller) followLater(ctx context.Context, what fleet.Drained) (warnings []string, err error) {
	inUse := c.configInUse(ctx)
	if c.configs.Etcd() != nil || inUse == nil {
		return nil, nil
	}
	heard, err := c.exchange.Machines(ctx)
	if err != nil {
		return nil, err
	}
	for _, peer := range inUse.Peers {
		if !slices.ContainsFunc(heard, func(m *fleetv1.Machine) bool { return m.Name == peer.Name }) {
			warnings = append(warnings, fmt.Sprintf("%s has not been heard for %v: it drains %s when it is heard again", peer.Name, peers.SilentMax, what.Name))
		}
	}
	return warnings, nil
}

// changeDrain by a command here, unless that is refused.
func (c *Controller) changeDrain(ctx context.Context, what fleet.Drained, drain bool, refuse func() error) error {
	return c.changeDrains(ctx, func() error {
		if err := refuse(); err != nil {
			return err
		}
		now := time.Now()
		c.mergeDrains(fleet.Changes{c.drainChanges.Next(what, drain, c.configs.Machine(), now)}, now, api.UserOf(ctx))
		return nil
	})
}

// takeDrainChanges of a peer, in a goroutine that receives.
func (c *Controller) takeDrainChanges(messages []*fleetv1.DrainChange) {
	now := time.Now()
	changes, ahead := fleet.ChangesOf(messages, now)
	_ = c.Ask(context.Background(), func() { // else the controller stops
		if ahead != "" && !c.clocksTold {
			c.clocksTold = true
			c.log.Warn("drains of all machines are not taken, as a clock is more than a day ahead of this one: drain again when both are right", "machine", ahead)
		}
		c.mergeDrains(changes, now, "")
	})
}

// mergeDrains of all machines with changes, here and on disk; who: of this machine's user.
func (c *Controller) mergeDrains(changes fleet.Changes, now time.Time, who string) {
	next := c.drainChanges.Merge(changes, now)
	if next.Equal(c.drainChanges) {
		return
	}
	c.drainChanges = next
	c.exchange.SetDrains(next.Message())
	c.stepFleetDrains(next.Apply(c.fleetDrains), who)
	c.keepDrains()
}

// setFleetDrains to what they become, here and on disk.
func (c *Controller) setFleetDrains(ctx context.Context, become func([]fleet.Drained) []fleet.Drained) error {
	return c.changeDrains(ctx, func() error {
		next := slices.Compact(slices.SortedFunc(slices.Values(become(slices.Clone(c.fleetDrains))), fleet.Drained.Compare))
		if !slices.Equal(next, c.fleetDrains) {
			c.drainChanges = nil // of a time without etcd
			c.stepFleetDrains(next, api.UserOf(ctx))
			c.keepDrains()
		}
		return nil
	})
}

// stepFleetDrains makes the drains of all machines those, sorted.
func (c *Controller) stepFleetDrains(next []fleet.Drained, who string) {
	former := c.fleetDrains
	c.fleetDrains = next
	for _, what := range next {
		if !slices.Contains(former, what) {
			c.log.Info("drained on all machines", "kind", what.Kind, "name", what.Name)
			c.Step(drainOf(what, true, who))
		}
	}
	for _, what := range former {
		if !slices.Contains(next, what) {
			c.log.Info("undrained on all machines", "kind", what.Kind, "name", what.Name)
			c.Step(drainOf(what, false, who))
		}
	}
}

func drainOf(what fleet.Drained, drain bool, who string) brain.Event {
	if what.Kind == fleet.KindService {
		return brain.DrainService{Service: what.Name, Drain: drain, Who: who}
	}
	return brain.DrainBackend{Backend: what.Name, Drain: drain, Who: who}
}
