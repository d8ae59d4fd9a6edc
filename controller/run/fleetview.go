package run

// The other machines as seen in etcd or in their messages: for people and metrics. No
// decision here depends on it.

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/metrics"
	"github.com/guideway/guideway/controller/sinks/fleet"
	"github.com/guideway/guideway/controller/sinks/peers"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// How often the machines are read where no one looks: differences that last are
// found by it.
const machinesInterval = 5 * time.Second

// fleetSource is where machines are seen.
type fleetSource interface {
	// Machines that live, in order of name.
	Machines(context.Context) ([]*fleetv1.Machine, error)
}

// fleetSource of the machines of this config; nil: it names no others.
func (c *Controller) fleetSource(inUse *config.Config) fleetSource {
	if etcd := c.configs.Etcd(); etcd != nil {
		return etcd.Store
	}
	if inUse == nil || len(inUse.Peers) == 0 {
		return nil
	}
	return c.exchange
}

// machinesSeen as they were read last.
type machinesSeen struct {
	mu          sync.Mutex
	differences fleet.Differences
	machines    []*fleetv1.Machine
	found       []fleet.Difference
	readAt      time.Time // zero: never
}

// read the machines anew; where that fails the former ones stay.
func (s *machinesSeen) read(ctx context.Context, source fleetSource) (ended, begun []string, err error) {
	machines, err := source.Machines(ctx)
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
		if source := c.fleetSource(c.configInUse(ctx)); source != nil {
			_ = c.readMachines(ctx, source) // what is wrong with it is in the log already
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// configInUse; nil: none yet.
func (c *Controller) configInUse(ctx context.Context) (inUse *config.Config) {
	_ = c.Ask(ctx, func() { inUse = c.brain.Config() }) // else the controller stops
	return inUse
}

var machinesOfFleet = events.Object{Kind: "fleet", Name: "machines"}

func (c *Controller) readMachines(ctx context.Context, source fleetSource) error {
	ended, begun, err := c.machines.read(ctx, source)
	for _, alarm := range begun {
		c.Tell(events.Event{Object: machinesOfFleet, From: "alike", To: "different", Cause: alarm})
	}
	for _, alarm := range ended {
		c.Tell(events.Event{Object: machinesOfFleet, From: "different", To: "alike", Cause: "no longer: " + alarm})
	}
	return err
}

// Fleet is every machine that etcd or the config names.
func (c *Controller) Fleet(ctx context.Context) (*controllerv1.GetFleetResponse, error) {
	var tunnels []brain.PeerView
	var inUse *config.Config
	if err := c.Ask(ctx, func() { tunnels, inUse = c.brain.Peers(), c.brain.Config() }); err != nil {
		return nil, err
	}
	source := c.fleetSource(inUse)
	if source == nil {
		return nil, api.Unmetf("this machine's config names no others: write them under `peers` (docs/peers.md), or give `etcd` (docs/etcd.md)")
	}
	response := &controllerv1.GetFleetResponse{}
	if err := c.readMachines(ctx, source); err != nil {
		response.Away = err.Error()
	}
	machines, found, readAt := c.machines.now()
	response.Alarms, response.ReadAt = alarms(found), api.Timestamp(readAt)
	var absent string
	if etcd := c.configs.Etcd(); etcd != nil {
		absent = "its controller is not registered in etcd"
		response.Cluster, response.Canary = etcd.Settings.Cluster, etcd.Canary()
	} else {
		response.Cluster = inUse.Cluster.Name
		absent = fmt.Sprintf("its controller has not been heard for %v (UDP port %d)", peers.SilentMax, peers.Port)
	}
	response.Machines = fleetMachines(inUse, machines, tunnels, absent)
	return response, nil
}

// fleetMetrics as the machines were read last; nil: there is no fleet.
func (c *Controller) fleetMetrics() *metrics.Fleet {
	inUse := c.configInUse(context.Background())
	if c.fleetSource(inUse) == nil {
		return nil
	}
	machines, found, readAt := c.machines.now()
	if readAt.IsZero() {
		return nil
	}
	seen := &metrics.Fleet{Registered: map[string]bool{}, Differ: map[fleet.Aspect]bool{}}
	if c.configs.Etcd() == nil {
		seen.Messages = c.exchange.Results()
	}
	for name := range configuredMachines(inUse) {
		seen.Registered[name] = false
	}
	for _, machine := range machines {
		seen.Registered[machine.Name] = true
	}
	for _, difference := range found {
		seen.Differ[difference.Of] = true
	}
	return seen
}

// fleetMachines are those that the config names, and those that live; of the others it is
// told why they are absent.
func fleetMachines(inUse *config.Config, registered []*fleetv1.Machine, tunnels []brain.PeerView, absent string) []*controllerv1.FleetMachine {
	byName := map[string]*controllerv1.FleetMachine{}
	for name, addresses := range configuredMachines(inUse) {
		byName[name] = &controllerv1.FleetMachine{Name: name, Addresses: addresses, Reason: absent}
	}
	for _, peer := range tunnels {
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
