package metrics

// What this machine sees of the others in etcd.

import "github.com/prometheus/client_golang/prometheus"

var (
	machineListed = describe("guideway_fleet_machine_registered", "1: the machine's controller is registered in etcd. Of each that the config or etcd names; absent where the config is in files alone.", "machine")
	fleetDiffers  = describe("guideway_fleet_fingerprints_differ", "1: machines of one shard and config choose different backends: by their config (of: configured), or by their tables for more than 30 s (of: live).", "of")
)

// Fleet as it was read last.
type Fleet struct {
	// By name.
	Registered map[string]bool
	// Of what the config says, and of the forwarders' tables.
	ConfiguredDiffer, LiveDiffer bool
}

// fleetCollector returns nil where there is none.
type fleetCollector func() *Fleet

func (c fleetCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- machineListed
	descriptions <- fleetDiffers
}

func (c fleetCollector) Collect(metrics chan<- prometheus.Metric) {
	fleet := c()
	if fleet == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value bool, label string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, bit(value), label)
	}
	for name, registered := range fleet.Registered {
		gauge(machineListed, registered, name)
	}
	gauge(fleetDiffers, fleet.ConfiguredDiffer, "configured")
	gauge(fleetDiffers, fleet.LiveDiffer, "live")
}
