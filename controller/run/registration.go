package run

// The registration of this machine, through which others find it in etcd or hear of it.
// What cannot be determined in time is left out, or stays as it was: registration waits for
// no other process.

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/fleet"
	"github.com/guideway/guideway/controller/sinks/peers"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

const (
	// A forwarder that is busy for longer is left out.
	describeTimeout = time.Second
	// How often the forwarder's counters are read for rates, and its tables'
	// fingerprints where its plan has changed: of 10,000 services both are large.
	countersInterval     = 10 * time.Second
	fingerprintsInterval = 5 * time.Second
)

// Register is what the others are to know; nil: there is no config yet. It is for the
// goroutine of the registrar, or of the exchange with peers.
func (c *Controller) Register(ctx context.Context) *fleetv1.Machine {
	return c.registration.describe(ctx)
}

// registration is of the goroutine that Register is for.
type registration struct {
	c *Controller

	// The configured fingerprint of that config.
	configured         *config.Config
	configuredIs       string
	live               liveTables
	packets, bytes     uint64 // for services, when they were read last
	readAt             time.Time
	readFrom           uint32 // process
	packetRate, octets uint64 // per second
}

// liveTables are a forwarder's, as they were read last.
type liveTables struct {
	process     uint32
	generation  uint64
	fingerprint string
	readAt      time.Time
}

// describe this machine; nil: it has no config yet.
func (r *registration) describe(ctx context.Context) *fleetv1.Machine {
	var view brain.MachineView
	var loaded brain.ConfigView
	var inUse *config.Config
	var number uint64
	var backends int
	var down []string
	var drained brain.Drains
	if r.c.Ask(ctx, func() {
		view, loaded = r.c.brain.ViewMachine()
		inUse = r.c.brain.Config()
		// Not that loaded last, which the forwarder may have refused.
		number = r.c.configs.NumberOf(inUse)
		backends, down = r.c.brain.CountBackends()
		drained = r.c.ownDrains()
	}) != nil || inUse == nil {
		return nil
	}
	machine := &fleetv1.Machine{
		Name: inUse.Machine.Name, Shard: inUse.Machine.Shard, Version: r.c.options.Version, Config: number,
		State: view.State, Reason: cmp.Or(view.Reason, loaded.Problem), Drained: view.Drain != nil, Api: apiAddress(inUse),
		DrainedBackends: firstDrains(drained.Backends), DrainedServices: firstDrains(drained.Services),
	}
	if etcd := r.c.configs.Etcd(); etcd != nil {
		machine.ChecksCandidates, machine.Checked = true, etcd.LastCheck()
	} else {
		machine.ConfigDigest = inUse.SharedDigest
		machine.Backends, machine.BackendsUp, machine.BackendsDown = uint32(backends), uint32(backends-len(down)), slices.Compact(slices.Sorted(slices.Values(down)))
	}
	for _, address := range inUse.Machine.Addresses {
		machine.Addresses = append(machine.Addresses, address.String())
	}
	if inUse != r.configured {
		r.configured, r.configuredIs = inUse, fleet.ConfiguredFingerprint(inUse)
	}
	machine.ConfiguredFingerprint = r.configuredIs
	if speaker, _ := r.c.routes.State(); speaker != nil {
		machine.SpeakerVersion = speaker.GetVersion()
	}
	r.describeForwarder(ctx, machine)
	return machine
}

func firstDrains(names []string) []string { return names[:min(len(names), peers.DrainsMax)] }

// apiAddress that other machines reach; empty: the API is not served over TCP.
func apiAddress(c *config.Config) string {
	if c.API == nil {
		return ""
	}
	listen, err := netip.ParseAddrPort(c.API.Listen)
	if err == nil && !listen.Addr().IsUnspecified() {
		return c.API.Listen
	}
	_, port, err := net.SplitHostPort(c.API.Listen)
	if err != nil {
		return c.API.Listen
	}
	return net.JoinHostPort(c.Machine.Addresses[0].String(), port)
}

func (r *registration) describeForwarder(ctx context.Context, machine *fleetv1.Machine) {
	ctx, cancel := context.WithTimeout(ctx, describeTimeout)
	defer cancel()
	status, err := r.c.forwarder.Client().GetStatus(ctx, &forwarderv1.GetStatusRequest{})
	if err != nil {
		return
	}
	machine.ForwarderVersion = status.GetVersion()
	r.readTables(ctx, status)
	if r.live.process == status.GetPid() {
		machine.LiveFingerprint = r.live.fingerprint
	}
	r.readRates(ctx, status.GetPid())
	machine.PacketsPerSecond, machine.BytesPerSecond = r.packetRate, r.octets
}

// readTables where the forwarder's plan is another than when they were read.
func (r *registration) readTables(ctx context.Context, status *forwarderv1.GetStatusResponse) {
	now := time.Now()
	if status.GetGeneration() == 0 || r.live.process == status.GetPid() && (r.live.generation == status.GetGeneration() || now.Sub(r.live.readAt) < fingerprintsInterval) {
		return
	}
	page, err := r.c.forwarder.Client().GetMetrics(ctx, &forwarderv1.GetMetricsRequest{Fresh: true})
	if err != nil {
		return
	}
	fingerprint, err := fleet.LiveFingerprint(page.GetText())
	if err != nil {
		r.c.log.Warn("the fingerprints of the forwarder's tables cannot be read", "error", err)
	}
	r.live = liveTables{process: status.GetPid(), generation: status.GetGeneration(), fingerprint: fingerprint, readAt: now}
}

// readRates from two readings of one process's counters.
func (r *registration) readRates(ctx context.Context, process uint32) {
	now := time.Now()
	if process == r.readFrom && now.Sub(r.readAt) < countersInterval {
		return
	}
	counters, err := r.c.forwarderCounters(ctx)
	if err != nil {
		return
	}
	var packets, bytes uint64
	for _, service := range counters.GetServices() {
		packets += service.GetPackets()
		bytes += service.GetBytes()
	}
	r.packetRate, r.octets = 0, 0 // of a new process nothing is known yet
	if process == r.readFrom && packets >= r.packets && bytes >= r.bytes {
		seconds := now.Sub(r.readAt).Seconds()
		r.packetRate, r.octets = uint64(float64(packets-r.packets)/seconds), uint64(float64(bytes-r.bytes)/seconds)
	}
	r.packets, r.bytes, r.readAt, r.readFrom = packets, bytes, now, process
}
