// Package metrics exports what the controller knows in Prometheus' text format, followed by
// the forwarder's own metrics.
//
// Gauges are read from the controller's state at each scrape, so they are never out of
// date; only events (probes, reloads) are counted as they happen.
package metrics

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// A forwarder that hangs must not take the controller's page with it.
const forwarderTimeout = time.Second

// Metrics counts events and answers scrapes.
type Metrics struct {
	registry     *prometheus.Registry
	healthChecks *prometheus.CounterVec
	durations    prometheus.Histogram
	delays       prometheus.Histogram
	delayMax     prometheus.Gauge
	delayed      time.Duration // of the goroutine that counts probes
	certificates *prometheus.GaugeVec
	reloadOK     prometheus.Gauge
	reloadAt     prometheus.Gauge
	sources      Sources
}

// Sources are where a scrape's numbers come from.
type Sources struct {
	State func(context.Context) (*controllerv1.GetStateResponse, error)
	// The forwarder's own page.
	Forwarder func(context.Context) (string, error)
	// Probes that were left out because too many were under way.
	LateProbes func() uint64
	// When the API's certificates expire, by the config's field.
	Certificates func() map[string]time.Time
	// nil: the config is in files alone.
	Fleet func() *Fleet
	// What agents on backends send.
	Agents AgentSource
}

// New registers everything.
func New(version string, sources Sources) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		healthChecks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "guideway_health_checks_total", Help: "Probes by result: pass, fail; unsent: this machine could not send it, which says nothing about the backend.",
		}, []string{"result"}),
		durations: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "guideway_health_check_duration_seconds", Help: "How long probes took.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		delays: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "guideway_health_check_start_delay_seconds", Help: "How long after they were due probes started.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1},
		}),
		delayMax: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "guideway_health_check_start_delay_max_seconds", Help: "The longest time after it was due that a probe started, since the controller started.",
		}),
		certificates: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "guideway_backend_certificate_expiry_timestamp_seconds", Help: "When the certificate that the latest passed probe met expires.",
		}, []string{"backend", "check"}),
		reloadOK: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "guideway_config_last_reload_success", Help: "1: the last reading of the config succeeded.",
		}),
		reloadAt: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "guideway_config_last_reload_timestamp_seconds", Help: "When the config was last read with success.",
		}),
		sources: sources,
	}
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "guideway_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
	late := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "guideway_health_checks_late_total", Help: "Probes left out because too many were under way.",
	}, func() float64 { return float64(sources.LateProbes()) })
	m.registry.MustRegister(m.healthChecks, m.durations, m.delays, m.delayMax, m.certificates, m.reloadOK, m.reloadAt, build, late, stateCollector{sources.State}, certificateCollector(sources.Certificates), fleetCollector(sources.Fleet), agentCollector{sources.Agents},
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.healthChecks.WithLabelValues("pass")
	m.healthChecks.WithLabelValues("fail")
	m.healthChecks.WithLabelValues("unsent")
	return m
}

// Probed counts one probe, from one goroutine.
func (m *Metrics) Probed(ok bool, took, delay time.Duration) {
	result := "fail"
	if ok {
		result = "pass"
	}
	m.healthChecks.WithLabelValues(result).Inc()
	m.durations.Observe(took.Seconds())
	m.delays.Observe(delay.Seconds())
	m.delayed = max(m.delayed, delay)
	m.delayMax.Set(m.delayed.Seconds())
}

// Certificate notes when the one expires that a backend's server has.
func (m *Metrics) Certificate(backend, check string, expires time.Time) {
	m.certificates.WithLabelValues(backend, check).Set(float64(expires.Unix()))
}

// ForgetCertificates of former targets; those that stay are told by their next probes.
func (m *Metrics) ForgetCertificates() { m.certificates.Reset() }

// ProbeUnsent counts a probe that this machine could not send.
func (m *Metrics) ProbeUnsent() { m.healthChecks.WithLabelValues("unsent").Inc() }

// Reloaded notes that the config was read.
func (m *Metrics) Reloaded(ok bool, at time.Time) {
	if !ok {
		m.reloadOK.Set(0)
		return
	}
	m.reloadOK.Set(1)
	m.reloadAt.Set(float64(at.UnixMilli()) / 1000)
}

// Page is everything there is now, in Prometheus' text format.
func (m *Metrics) Page(ctx context.Context) ([]byte, error) {
	families, err := m.registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	var page bytes.Buffer
	ours := map[string]bool{}
	for _, family := range families {
		ours[family.GetName()] = true
		if _, err := expfmt.MetricFamilyToText(&page, family); err != nil {
			return nil, fmt.Errorf("write metric %s: %w", family.GetName(), err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, forwarderTimeout)
	defer cancel()
	// A dead forwarder shows as guideway_forwarder_up 0.
	if text, err := m.sources.Forwarder(ctx); err == nil {
		appendFamilies(&page, text, ours)
	}
	return page.Bytes(), nil
}

// appendFamilies adds a page, but for the metrics that are there already: one
// page must not have one name twice (both processes have build_info).
func appendFamilies(page *bytes.Buffer, text string, ours map[string]bool) {
	skip := false
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "#" && (words[1] == "HELP" || words[1] == "TYPE") {
			skip = ours[words[2]]
		}
		if !skip && !strings.HasPrefix(line, "# EOF") {
			page.WriteString(line)
		}
	}
}
