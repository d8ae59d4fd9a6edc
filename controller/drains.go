package controller

// Drains by command: refused where clients would be left without a service, kept
// over restarts.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/fleet"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// DrainBackend by command.
func (c *Controller) DrainBackend(ctx context.Context, r *controllerv1.DrainBackendRequest) (warnings []string, err error) {
	refuse := func() error {
		switch {
		case !r.Drain: // what is no longer in the config must still be undrainable
		case !c.brain.HasBackend(r.Backend):
			return fmt.Errorf("drain %s: %w", r.Backend, api.ErrUnknownBackend)
		case !r.Force:
			return unlessForced(c.brain.LastBackend(r.Backend), "bring another backend up first")
		}
		return nil
	}
	if r.Fleet && r.Drain {
		return nil, c.drainInFleet(ctx, r.Backend, refuse)
	}
	if !r.Drain {
		if err := c.undrainInFleet(ctx, r.Backend); err != nil {
			return nil, err
		}
	}
	err = c.drain(ctx, brain.DrainBackend{Backend: r.Backend, Drain: r.Drain}, refuse)
	if err != nil || r.Drain {
		return nil, err
	}
	return c.warning(ctx, func() string { return c.brain.DrainedElsewhere(r.Backend) })
}

// drainInFleet: on all machines; the others hear of it by etcd.
func (c *Controller) drainInFleet(ctx context.Context, backend string, refuse func() error) error {
	if c.shared == nil {
		return api.Unmetf("drain %s on all machines: there is no `etcd` in the config by which they would hear of it: drain it on each", backend)
	}
	var problem error
	if err := c.ask(ctx, func() { problem = refuse() }); err != nil || problem != nil {
		return errors.Join(err, problem)
	}
	if err := c.shared.store.DrainBackend(ctx, backend, c.shared.machineName()); err != nil {
		return api.Unmetf("drain %s on all machines: %s: without `--fleet` it is drained on this machine alone", backend, err)
	}
	return c.setFleetDrains(ctx, func(drains []string) []string { return append(drains, backend) })
}

// undrainInFleet: where it was drained on all machines.
func (c *Controller) undrainInFleet(ctx context.Context, backend string) error {
	if c.shared == nil {
		return nil
	}
	isOurs := false
	if err := c.ask(ctx, func() { isOurs = slices.Contains(c.fleetDrains, backend) }); err != nil {
		return err
	}
	was, err := c.shared.store.UndrainBackend(ctx, backend)
	switch {
	case err != nil && isOurs:
		return api.Unmetf("undrain %s, which is drained on all machines: %s", backend, err)
	case err != nil || !was && !isOurs:
		return nil // one of this machine's
	}
	return c.setFleetDrains(ctx, func(drains []string) []string {
		return slices.DeleteFunc(drains, func(name string) bool { return name == backend })
	})
}

// takeFleetDrains as etcd holds them, unless that is an older etcd's, or an empty one's,
// which would bring drained backends back.
func (c *Controller) takeFleetDrains(ctx context.Context, drains fleet.Drains) {
	if drains.Current == nil || fleet.CheckNext(c.shared.running(), drains.Current) != nil {
		return
	}
	if err := c.setFleetDrains(ctx, func([]string) []string { return drains.Backends }); err != nil && ctx.Err() == nil {
		c.log.Error("drains of all machines are not kept on disk", "error", err)
	}
}

// setFleetDrains to what they become, here and on disk.
func (c *Controller) setFleetDrains(ctx context.Context, become func([]string) []string) error {
	var problem error
	err := c.ask(ctx, func() {
		next := slices.Compact(slices.Sorted(slices.Values(become(slices.Clone(c.fleetDrains)))))
		if !slices.Equal(next, c.fleetDrains) {
			c.stepFleetDrains(next)
			problem = c.keepDrains()
		}
	})
	return errors.Join(err, problem)
}

// stepFleetDrains makes the drains of all machines those, sorted.
func (c *Controller) stepFleetDrains(backends []string) {
	former := c.fleetDrains
	c.fleetDrains = backends
	for _, backend := range c.fleetDrains {
		if !slices.Contains(former, backend) {
			c.log.Info("a backend is drained on all machines", "name", backend)
			c.step(brain.DrainBackend{Backend: backend, Drain: true})
		}
	}
	for _, backend := range former {
		if !slices.Contains(c.fleetDrains, backend) {
			c.log.Info("a backend is not drained on all machines any more", "name", backend)
			c.step(brain.DrainBackend{Backend: backend})
		}
	}
}

// warning by the brain; empty: none.
func (c *Controller) warning(ctx context.Context, ask func() string) (warnings []string, err error) {
	err = c.ask(ctx, func() {
		if warning := ask(); warning != "" {
			warnings = []string{warning}
		}
	})
	return warnings, err
}

// DrainService by command.
func (c *Controller) DrainService(ctx context.Context, r *controllerv1.DrainServiceRequest) (warnings []string, err error) {
	err = c.drain(ctx, brain.DrainService{Service: r.Service, Drain: r.Drain, WaitMax: r.WaitMax.AsDuration()}, func() error {
		switch {
		case !r.Drain:
		case !c.brain.HasService(r.Service):
			return fmt.Errorf("drain %s: %w", r.Service, api.ErrUnknownService)
		case !r.Force:
			return unlessForced(c.brain.LastMachineFor(r.Service), bringUp)
		}
		return nil
	})
	if err != nil || !r.Drain {
		return nil, err
	}
	return c.warning(ctx, func() string { return c.brain.KeptRoute(r.Service) })
}

// DrainMachine by command.
func (c *Controller) DrainMachine(ctx context.Context, r *controllerv1.DrainMachineRequest) error {
	return c.drain(ctx, brain.DrainMachine{Drain: r.Drain, WaitMax: r.WaitMax.AsDuration()}, func() error {
		if r.Drain && !r.Force {
			return unlessForced(c.brain.LastMachine(), bringUp)
		}
		return nil
	})
}

const bringUp = "bring another one up and name it under `peers`"

func unlessForced(why, cure string) error {
	if why == "" {
		return nil
	}
	return api.Unmetf("%s: %s, or give --force (`force` in the API) and leave clients without", why, cure)
}

// drain or undrain, unless it is refused.
func (c *Controller) drain(ctx context.Context, event brain.Event, refuse func() error) error {
	var problem error
	err := c.ask(ctx, func() {
		if problem = refuse(); problem != nil {
			return
		}
		c.step(event)
		problem = c.keepDrains()
	})
	return errors.Join(err, problem)
}

func (c *Controller) keepDrains() error {
	kept := c.brain.Drained()
	isFleets := func(backend string) bool { return slices.Contains(c.fleetDrains, backend) }
	return c.store.setDrains(drains{
		Machine: kept.Machine, Services: kept.Services,
		Backends: slices.DeleteFunc(kept.Backends, isFleets), Fleet: c.fleetDrains,
	})
}

func (c *Controller) restoreDrains() error {
	kept, err := c.store.drains()
	if err != nil {
		return err
	}
	for _, backend := range kept.Backends {
		c.step(brain.DrainBackend{Backend: backend, Drain: true})
	}
	c.stepFleetDrains(kept.Fleet)
	for _, service := range kept.Services {
		c.log.Warn("a service is drained by command and not announced: `guideway undrain service NAME` ends that", "name", service)
		c.step(brain.DrainService{Service: service, Drain: true})
	}
	if kept.Machine {
		c.log.Warn("this machine is drained by command and announces nothing: `guideway undrain machine` ends that")
		c.step(brain.DrainMachine{Drain: true})
	}
	return nil
}

// How often the forwarder's counters are read while a drain waits.
const trafficInterval = time.Second

// traffic is measured while a drain waits.
type traffic struct{ wanted atomic.Bool }

// watchTraffic gives the brain the forwarder's counters while it needs them. A
// forwarder that does not answer is no reason to withdraw earlier.
func watchTraffic(ctx context.Context, c *Controller) {
	ticker := time.NewTicker(trafficInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if !c.traffic.wanted.Load() {
			continue
		}
		counters, err := c.forwarderCounters(ctx)
		if err != nil {
			c.log.Warn("a drain waits for traffic to move away, and it is not known what still comes", "error", err)
			continue
		}
		c.enqueue(trafficOf(counters))
	}
}

func trafficOf(counters *forwarderv1.GetCountersResponse) brain.Traffic {
	packets := map[string]uint64{}
	for _, service := range counters.GetServices() {
		packets[service.Service] += service.Packets
	}
	return brain.Traffic{Packets: packets}
}
