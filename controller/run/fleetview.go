package run

// What this machine sees of the others, in etcd: for people and metrics. Nothing
// that is decided here depends on it.

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/metrics"
	"github.com/guideway/guideway/controller/sinks/fleet"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// How often the machines are read where no one looks: differences that last are
// found by it.
const machinesInterval = 5 * time.Second

// machinesSeen in etcd, as they were read last.
type machinesSeen struct {
	mu          sync.Mutex
	differences fleet.Differences
	machines    []*fleetv1.Machine
	found       []fleet.Difference
	readAt      time.Time // zero: never
}

// read the machines anew; where that fails the former ones stay.
func (s *machinesSeen) read(ctx context.Context, store *fleet.Store) (ended, begun []string, err error) {
	machines, err := store.Machines(ctx)
	if err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	former := alarms(s.found)
	s.machines, s.readAt = machines, time.Now()
	s.found = s.differences.Observe(machines, s.readAt)
	return without(former, alarms(s.found)), without(alarms(s.found), former), nil
}

func alarms(found []fleet.Difference) (texts []string) {
	for _, difference := range found {
		texts = append(texts, difference.String())
	}
	return texts
}

func without(texts, others []string) (rest []string) {
	for _, text := range texts {
		if !slices.Contains(others, text) {
			rest = append(rest, text)
		}
	}
	return rest
}

func (s *machinesSeen) now() (machines []*fleetv1.Machine, found []fleet.Difference, readAt time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machines, s.found, s.readAt
}

// watchMachines until the context ends.
func watchMachines(ctx context.Context, c *Controller) {
	ticker := time.NewTicker(machinesInterval)
	defer ticker.Stop()
	for {
		_ = c.readMachines(ctx) // the follower says what is wrong with etcd
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (c *Controller) readMachines(ctx context.Context) error {
	ended, begun, err := c.machines.read(ctx, c.configs.Etcd().Store)
	for _, alarm := range begun {
		c.log.Error("machines of the fleet differ", "problem", alarm)
	}
	for _, alarm := range ended {
		c.log.Info("machines of the fleet no longer differ", "problem", alarm)
	}
	return err
}

// Fleet is every machine that etcd or the config names.
func (c *Controller) Fleet(ctx context.Context) (*controllerv1.GetFleetResponse, error) {
	etcd := c.configs.Etcd()
	if etcd == nil {
		return nil, api.Unmetf("this machine's config is in files alone, so it knows no fleet: give `etcd` in its config (docs/etcd.md), or look at each machine by --server")
	}
	response := &controllerv1.GetFleetResponse{Cluster: etcd.Settings.Cluster}
	if err := c.readMachines(ctx); err != nil {
		response.Away = err.Error()
	}
	var peers []brain.PeerView
	var inUse *config.Config
	if err := c.Ask(ctx, func() { peers, inUse = c.brain.Peers(), c.brain.Config() }); err != nil {
		return nil, err
	}
	machines, found, readAt := c.machines.now()
	response.Alarms, response.ReadAt = alarms(found), api.Timestamp(readAt)
	response.Machines = fleetMachines(inUse, machines, peers)
	response.Canary = etcd.Canary()
	return response, nil
}

// fleetMetrics as the machines were read last; nil: there is no fleet.
func (c *Controller) fleetMetrics() *metrics.Fleet {
	if c.configs.Etcd() == nil {
		return nil
	}
	var inUse *config.Config
	_ = c.Ask(context.Background(), func() { inUse = c.brain.Config() }) // else the controller stops
	machines, found, readAt := c.machines.now()
	if readAt.IsZero() {
		return nil
	}
	seen := &metrics.Fleet{Registered: map[string]bool{}}
	for name := range configuredMachines(inUse) {
		seen.Registered[name] = false
	}
	for _, machine := range machines {
		seen.Registered[machine.Name] = true
	}
	for _, difference := range found {
		seen.LiveDiffer = seen.LiveDiffer || difference.Live
		seen.ConfiguredDiffer = seen.ConfiguredDiffer || !difference.Live
	}
	return seen
}

// fleetMachines are those that the config names, and those that are registered.
func fleetMachines(inUse *config.Config, registered []*fleetv1.Machine, peers []brain.PeerView) []*controllerv1.FleetMachine {
	byName := map[string]*controllerv1.FleetMachine{}
	for name, addresses := range configuredMachines(inUse) {
		byName[name] = &controllerv1.FleetMachine{Name: name, Addresses: addresses, Reason: "its controller is not registered in etcd"}
	}
	for _, peer := range peers {
		m := byName[peer.Name]
		switch {
		case m == nil: // a cluster that services spill to
		case peer.Healthy:
			m.Reason += "; its forwarder answers through the tunnel"
		default:
			m.Reason += "; unreachable: its forwarder does not answer through the tunnel: " + peer.Reason
		}
	}
	for _, machine := range registered {
		byName[machine.Name] = &controllerv1.FleetMachine{Name: machine.Name, Addresses: machine.Addresses, Registered: machine}
	}
	return slices.SortedFunc(maps.Values(byName), func(a, b *controllerv1.FleetMachine) int { return cmp.Compare(a.Name, b.Name) })
}

// configuredMachines are this one and its peers, with their addresses.
func configuredMachines(inUse *config.Config) map[string][]string {
	configured := map[string][]string{}
	if inUse == nil {
		return configured
	}
	for _, peer := range append(slices.Clone(inUse.Peers), config.Peer{Name: inUse.Machine.Name, Addresses: inUse.Machine.Addresses}) {
		for _, address := range peer.Addresses {
			configured[peer.Name] = append(configured[peer.Name], address.String())
		}
	}
	return configured
}
