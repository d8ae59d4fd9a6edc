package metrics

// Gauges made from the controller's state.

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/guideway/guideway/controller/brain"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	forwarderUp = describe("guideway_forwarder_up", "1: the forwarder answers, its threads run, its devices are up.")
	generation  = describe("guideway_config_generation", "Generation of the plan that the forwarder has accepted.")
	loaded      = describe("guideway_config_loaded", "1: a config is in use.")
	stale       = describe("guideway_config_stale", "1: a newer config was refused, the former one serves.")
	kept        = describe("guideway_config_kept", "1: the config in use is on disk for a restart, as far as it could be tried.")
	ready       = describe("guideway_ready", "1: as /readyz says.")
	drained     = describe("guideway_machine_drained", "1: this machine's routes are withdrawn by command.")
	backendUp   = describe("guideway_backend_up", "1: passes its health checks. No service: several have its pools.", "service", "backend")
	weight      = describe("guideway_backend_weight", "Share of new connections in effect; 0: takes none. No service: several have its pools.", "service", "backend")
	held        = describe("guideway_backend_held", "1: kept down by damping, because it flapped; absent for others. No service: several have its pools.", "service", "backend")
	serving     = describe("guideway_service_serving", "1: clients of the service are served by this machine.", "service")
	drainedOne  = describe("guideway_service_drained", "1: the service's routes are withdrawn by command; absent for others.", "service")
	active      = describe("guideway_service_backends_active", "Backends that take new connections.", "service")
	onBackup    = describe("guideway_service_on_backup", "1: too few of its own backends are active, those of its backup pools are used.", "service")
	mapped      = describe("guideway_bucket_map_generation", "Generation of a stateless service's bucket map.", "service")
	mapTaken    = describe("guideway_bucket_map_generation_acknowledged", "Generation of the bucket map that the forwarder has.", "service")
	moving      = describe("guideway_buckets_moving", "Buckets with an open move: their connections may live on several backends.", "service")
	waiting     = describe("guideway_buckets_waiting", "Buckets that should move, and cannot before a former move closes.", "service")
	moveAge     = describe("guideway_bucket_move_age_ratio", "Age of the oldest open move, of move_age_max; 0: none is open.", "service")
	leads       = describe("guideway_bucket_leader", "1: this machine assigns the service's buckets, of several; absent where one machine alone does.", "service")
	acked       = describe("guideway_bucket_map_acknowledged", "1: the machine's forwarder has the bucket map that the load balancers agreed on; 0: moves wait for it. Absent where one machine alone assigns buckets, and while etcd is away.", "service", "machine")
	silent      = describe("guideway_agents_silent", "Backends whose agents should speak to this machine and do not: connections that move break there.")
	behind      = describe("guideway_agents_behind", "Backends whose agents' configs lack VIPs of their services: packets to these are dropped there.")
	sourceUp    = describe("guideway_pool_source_up", "1: the file or DNS gave the pool's backends when it was asked last, and they fit the config; 0: those before stay.", "pool")
	sourceAge   = describe("guideway_pool_source_last_success_timestamp_seconds", "When the file or DNS gave the pool's backends last; 0: never.", "pool")
	members     = describe("guideway_pool_source_backends", "Backends of the pool by its file or DNS, without those that drain because they are no longer listed.", "pool")
	unlisted    = describe("guideway_pool_source_backends_waiting", "Backends that are no longer listed and stay for shrink_delay, because they are half of the pool or more.", "pool")
	routeUp     = describe("guideway_route_announced", "1: announced.", "prefix")
	peerUp      = describe("guideway_peer_up", "1: the peer's forwarder answers through the tunnel.", "peer")
	sessionUp   = describe("guideway_bgp_session_up", "1: established.", "neighbor")
	etcdUp      = describe("guideway_etcd_up", "1: etcd answers; absent where the config is in files alone.")
	etcdAlarms  = describe("guideway_etcd_alarms", "Alarms of etcd, such as NOSPACE.")
	etcdAge     = describe("guideway_etcd_last_read_timestamp_seconds", "When etcd answered last; 0: never.")
	etcdStored  = describe("guideway_etcd_config_generation", "Generation of the config that etcd held when it was read last; 0: none.")
	etcdInUse   = describe("guideway_shared_config_generation", "Generation of the config from etcd that is in use here.")
	etcdUnread  = describe("guideway_etcd_config_unusable", "1: what etcd holds as the config cannot be read.")
	etcdListed  = describe("guideway_etcd_registered", "1: this machine is registered in etcd, so that others see it.")
	prefixes    = describe("guideway_bgp_announced_prefixes", "Prefixes announced to the neighbor.", "neighbor")
)

// A controller that is busy for longer has no page.
const stateTimeout = 5 * time.Second

type stateCollector struct {
	state func(context.Context) (*controllerv1.GetStateResponse, error)
}

func (c stateCollector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{forwarderUp, generation, loaded, stale, kept, ready, drained, backendUp, weight, held, serving, drainedOne, active, onBackup, mapped, mapTaken, moving, waiting, moveAge, leads, acked, sourceUp, sourceAge, members, unlisted, routeUp, peerUp, sessionUp, prefixes, etcdUp, etcdAlarms, etcdAge, etcdStored, etcdInUse, etcdUnread, etcdListed} {
		descriptions <- d
	}
}

func (c stateCollector) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), stateTimeout)
	defer cancel()
	state, err := c.state(ctx)
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(loaded, err)
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(forwarderUp, bit(state.Forwarder.GetHealthy()))
	gauge(generation, float64(state.Forwarder.GetGenerationAccepted()))
	gauge(loaded, bit(state.Config.GetLoadedAt() != nil))
	gauge(stale, bit(state.Config.GetStale()))
	gauge(kept, bit(state.Config.GetNotKept() == ""))
	gauge(ready, bit(len(state.NotReady) == 0))
	gauge(silent, float64(len(state.SilentAgents)))
	gauge(behind, float64(len(state.AgentsBehind)))
	gauge(drained, bit(state.Machine.GetState() == "drained" || state.Machine.GetState() == "draining"))
	if e := state.Config.GetEtcd(); e != nil {
		gauge(etcdUp, bit(e.Away == ""))
		gauge(etcdAlarms, float64(len(e.Alarms)))
		gauge(etcdAge, float64(e.AnsweredAt.GetSeconds()))
		gauge(etcdStored, float64(e.ConfigStored))
		gauge(etcdInUse, float64(e.Config))
		gauge(etcdUnread, bit(e.Unusable != ""))
		gauge(etcdListed, bit(e.NotRegistered == ""))
	}
	for key, b := range byServiceAndName(state.Backends) {
		gauge(backendUp, b.up, key.service, key.name)
		gauge(weight, b.weight, key.service, key.name)
		if b.held {
			gauge(held, 1, key.service, key.name)
		}
	}
	for _, s := range state.Services {
		gauge(active, float64(s.BackendsActive), s.Name)
		if len(s.BackupPools) > 0 {
			gauge(onBackup, bit(s.OnBackup), s.Name)
		}
		if s.Drain != nil {
			gauge(drainedOne, 1, s.Name)
		}
		if s.Buckets != nil {
			gauge(mapped, float64(s.Buckets.Generation), s.Name)
			gauge(mapTaken, float64(s.Buckets.GenerationAcknowledged), s.Name)
			gauge(moving, float64(s.Buckets.Moving), s.Name)
			gauge(waiting, float64(s.Buckets.Waiting), s.Name)
			gauge(moveAge, oldestMove(s.Buckets), s.Name)
			if agreement := s.Buckets.Agreement; agreement != nil {
				gauge(leads, bit(agreement.Leader != "" && agreement.Leader == state.Machine.GetName()), s.Name)
				for _, machine := range agreement.LoadBalancers {
					isLagging := slices.ContainsFunc(agreement.Lags, func(lag *controllerv1.BucketLag) bool { return lag.Machine == machine })
					gauge(acked, bit(!isLagging), s.Name, machine)
				}
			}
		}
		gauge(serving, bit(s.State == brain.ServingAll || s.State == brain.Draining), s.Name)
	}
	collectSources(gauge, state.MemberSources)
	for _, r := range state.Routes {
		gauge(routeUp, bit(r.Announced), r.Prefix)
	}
	for _, p := range state.Peers {
		gauge(peerUp, bit(p.Healthy), p.Name)
	}
	for _, n := range state.Neighbors {
		gauge(sessionUp, bit(n.State == "established"), n.Address)
		gauge(prefixes, float64(n.AnnouncedPrefixes), n.Address)
	}
}

func collectSources(gauge func(*prometheus.Desc, float64, ...string), sources []*controllerv1.MemberSource) {
	for _, s := range sources {
		gauge(sourceUp, bit(s.Problem == "" && s.LastSuccess != nil), s.Name)
		gauge(sourceAge, float64(s.LastSuccess.GetSeconds()), s.Name)
		gauge(members, float64(s.Backends), s.Name)
		gauge(unlisted, float64(s.Waiting), s.Name)
	}
}

// oldestMove that is open: its age as a share of what it may be.
func oldestMove(b *controllerv1.Buckets) float64 {
	oldest := time.Duration(0)
	for _, move := range b.Moves {
		if move.Since != nil {
			oldest = max(oldest, time.Since(move.Since.AsTime()))
		}
	}
	return oldest.Seconds() / b.MoveAgeMax.AsDuration().Seconds()
}

type backendKey struct{ service, name string }

type backendGauges struct {
	up, weight float64
	held       bool
}

// byServiceAndName makes one of those that differ only in the set of pools,
// each of which several services have: the worst counts.
func byServiceAndName(backends []*controllerv1.Backend) map[backendKey]backendGauges {
	gauges := make(map[backendKey]backendGauges, len(backends))
	for _, b := range backends {
		key := backendKey{b.Service, b.Name}
		now := backendGauges{up: bit(b.State == "active" || b.State == "draining" || b.State == "standby"), weight: weightInEffect(b), held: b.Held}
		if former, twice := gauges[key]; twice {
			now = backendGauges{up: min(former.up, now.up), weight: min(former.weight, now.weight), held: former.held || now.held}
		}
		gauges[key] = now
	}
	return gauges
}

func weightInEffect(b *controllerv1.Backend) float64 {
	if b.State != "active" {
		return 0
	}
	return float64(b.Weight) * float64(b.WeightPercent) / 100
}

func bit(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
