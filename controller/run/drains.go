package run

// Drains by command: they are refused if clients would be left without a service, and kept
// across restarts.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/sinks/fleet"
	"github.com/guideway/guideway/controller/statedir"
	"github.com/guideway/guideway/controller/store"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// DrainBackend by command. What is no longer in the config can still be undrained.
func (c *Controller) DrainBackend(ctx context.Context, r *controllerv1.DrainBackendRequest) (warnings []string, err error) {
	wasFleets := false
	refuse := func() error {
		known := c.brain.HasBackend(r.Backend)
		switch {
		case !r.Drain && (known || wasFleets || slices.Contains(c.brain.Drained().Backends, r.Backend)):
		case !r.Drain:
			return fmt.Errorf("undrain %s: %w, nor is one of this name drained", r.Backend, api.ErrUnknownBackend)
		case !known:
			return fmt.Errorf("drain %s: %w", r.Backend, api.ErrUnknownBackend)
		case !r.Force:
			return unlessForced(c.brain.LastBackend(r.Backend), "bring another backend up first")
		}
		return nil
	}
	what := fleet.Drained{Kind: fleet.KindBackend, Name: r.Backend}
	if r.Fleet && r.Drain {
		if err := c.drainInFleet(ctx, what, refuse); err != nil {
			return nil, err
		}
		return c.followLater(ctx, what)
	}
	if !r.Drain {
		if wasFleets, err = c.undrainInFleet(ctx, what); err != nil {
			return nil, err
		}
	}
	err = c.drain(ctx, brain.DrainBackend{Backend: r.Backend, Drain: r.Drain, Who: api.UserOf(ctx)}, refuse)
	// Others that are about to hear of it still have it drained.
	if err != nil || r.Drain || wasFleets {
		return nil, err
	}
	return c.warning(ctx, func() string { return c.brain.DrainedElsewhere(r.Backend) })
}

// warning by the brain; empty: none.
func (c *Controller) warning(ctx context.Context, ask func() string) (warnings []string, err error) {
	err = c.Ask(ctx, func() {
		if warning := ask(); warning != "" {
			warnings = []string{warning}
		}
	})
	return warnings, err
}

// DrainService by command.
func (c *Controller) DrainService(ctx context.Context, r *controllerv1.DrainServiceRequest) (warnings []string, err error) {
	what := fleet.Drained{Kind: fleet.KindService, Name: r.Service}
	isFleets := r.Fleet && r.Drain
	wasFleets := false
	refuse := func() error {
		known := c.brain.HasService(r.Service)
		switch {
		case !r.Drain && (known || wasFleets || slices.Contains(c.brain.Drained().Services, r.Service)):
		case !r.Drain:
			return fmt.Errorf("undrain %s: %w, nor is one of this name drained", r.Service, api.ErrUnknownService)
		case !known:
			return fmt.Errorf("drain %s: %w", r.Service, api.ErrUnknownService)
		case !r.Force && isFleets:
			return unlessForced("no machine would announce "+r.Service, "drain it on the machines that are to be without it")
		case !r.Force:
			return unlessForced(c.brain.LastMachineFor(r.Service), bringUp)
		}
		return nil
	}
	event := brain.DrainService{Service: r.Service, Drain: r.Drain, WaitMax: r.WaitMax.AsDuration(), Who: api.UserOf(ctx)}
	switch {
	case isFleets:
		err = c.drainInFleet(ctx, what, refuse)
	case !r.Drain:
		wasFleets, err = c.undrainInFleet(ctx, what)
	}
	if err == nil {
		err = c.drain(ctx, event, refuse)
	}
	if err != nil || !r.Drain {
		return nil, err
	}
	warnings, err = c.warning(ctx, func() string { return c.brain.KeptRoute(r.Service) })
	if err != nil || !isFleets {
		return warnings, err
	}
	later, err := c.followLater(ctx, what)
	return append(warnings, later...), err
}

// DrainMachine by command.
func (c *Controller) DrainMachine(ctx context.Context, r *controllerv1.DrainMachineRequest) error {
	return c.drain(ctx, brain.DrainMachine{Drain: r.Drain, WaitMax: r.WaitMax.AsDuration(), Who: api.UserOf(ctx)}, func() error {
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
	return c.changeDrains(ctx, func() error {
		if err := refuse(); err != nil {
			return err
		}
		c.Step(event)
		c.keepDrains()
		return nil
	})
}

// changeDrains in the brain's goroutine, and wait until they are on disk.
func (c *Controller) changeDrains(ctx context.Context, change func() error) error {
	var problem error
	err := c.Ask(ctx, func() { problem = change() })
	if err = errors.Join(err, problem); err != nil {
		return err
	}
	return c.keeper.Await(ctx, drainsName)
}

// Drains, for the keeper.
const drainsName = "drains by command"

func (c *Controller) keepDrains() {
	own := c.ownDrains()
	drains := store.Drains{Machine: own.Machine, Services: own.Services, Backends: own.Backends, Fleet: c.fleetDrains, Changes: c.drainChanges}
	c.keeper.Keep(drainsName, c.store.SetDrains(drains), c.tellNotKept("drains by command are not kept, which is tried again: a restart would forget them"))
}

func (c *Controller) tellNotKept(message string, args ...any) statedir.Tell {
	return statedir.TellLog(c.log, message, args...)
}

// ownDrains are those of this machine alone.
func (c *Controller) ownDrains() brain.Drains {
	own := c.brain.Drained()
	withoutFleets := func(kind fleet.Kind, names []string) []string {
		return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(c.fleetDrains, fleet.Drained{Kind: kind, Name: name}) })
	}
	own.Services, own.Backends = withoutFleets(fleet.KindService, own.Services), withoutFleets(fleet.KindBackend, own.Backends)
	return own
}

func (c *Controller) restoreDrains() error {
	kept, err := c.store.Drains()
	if err != nil {
		return err
	}
	for _, backend := range kept.Backends {
		c.Step(brain.DrainBackend{Backend: backend, Drain: true})
	}
	c.stepFleetDrains(kept.Fleet, "")
	c.drainChanges = kept.Changes
	c.exchange.SetDrains(c.drainChanges.Message())
	for _, service := range kept.Services {
		c.log.Warn("a service is drained by command and not announced: `guideway undrain service NAME` ends that", "name", service)
		c.Step(brain.DrainService{Service: service, Drain: true})
	}
	if kept.Machine {
		c.log.Warn("this machine is drained by command and announces nothing: `guideway undrain machine` ends that")
		c.Step(brain.DrainMachine{Drain: true})
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
		c.Enqueue(trafficOf(counters))
	}
}

func trafficOf(counters *forwarderv1.GetCountersResponse) brain.Traffic {
	packets := map[string]uint64{}
	for _, service := range counters.GetServices() {
		packets[service.Service] += service.Packets
	}
	return brain.Traffic{Packets: packets}
}
