package metrics

// Metrics of the other machines, as seen in etcd or in their messages.

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/guideway/guideway/controller/sinks/fleet"
	"github.com/guideway/guideway/controller/sinks/session"
)

var (
	machineListed = describe("guideway_fleet_machine_registered", "1: the machine's controller is registered in etcd, or without etcd was heard within 10 s. Of each that the config or etcd names; absent where there are no others.", "machine")
	fleetDiffers  = describe("guideway_fleet_fingerprints_differ", "1: machines of one shard and config choose different backends: by their config (of: configured), or by their tables for more than 30 s (of: live); or machines without etcd run different configs for more than 30 s (of: config).", "of")
	peerMessages  = describe("guideway_peer_messages_total", "Datagrams from other load balancers, by what became of them (docs/peers.md).", "result")
)

// Fleet as it was read last.
type Fleet struct {
	// By name.
	Registered map[string]bool
	Differ     map[fleet.Aspect]bool
	// Of datagrams from peers.
	Messages session.Counts
}

// fleetCollector returns nil where there is none.
type fleetCollector func() *Fleet

func (c fleetCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- machineListed
	descriptions <- fleetDiffers
	descriptions <- peerMessages
}

func (c fleetCollector) Collect(metrics chan<- prometheus.Metric) {
	seen := c()
	if seen == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value bool, label string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, bit(value), label)
	}
	for name, registered := range seen.Registered {
		gauge(machineListed, registered, name)
	}
	for _, aspect := range fleet.Aspects {
		gauge(fleetDiffers, seen.Differ[aspect], string(aspect))
	}
	for result, count := range seen.Messages {
		metrics <- prometheus.MustNewConstMetric(peerMessages, prometheus.CounterValue, float64(count), string(result))
	}
}
