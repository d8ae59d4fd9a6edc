package blackbox

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"
)

// Metrics of all rounds.
type Metrics struct {
	registry  *prometheus.Registry
	answered  *prometheus.GaugeVec
	attempts  *prometheus.CounterVec
	durations *prometheus.HistogramVec
	endedAt   *prometheus.GaugeVec
}

// NewMetrics registers everything, with each target at zero: one that was never
// answered is not one that is not there.
func NewMetrics(version string, targets []Target) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		answered: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "guideway_probe_answered_ratio", Help: "Share of the source ports that were answered in the latest round: 1 is all, 0 none.",
		}, []string{"target", "service", "vip", "protocol", "port"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "guideway_probe_attempts_total", Help: "Attempts, one for each source port in each round, by result: pass, fail.",
		}, []string{"target", "service", "vip", "protocol", "port", "result"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "guideway_probe_duration_seconds", Help: "How long attempts took that were answered, from the connection's beginning to the answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}, []string{"target", "service", "vip", "protocol", "port"}),
		endedAt: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "guideway_probe_last_round_timestamp_seconds", Help: "When the latest round ended; 0: none has.",
		}, []string{"target", "service", "vip", "protocol", "port"}),
	}
	build := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "guideway_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}, func() float64 { return 1 })
	m.registry.MustRegister(m.answered, m.attempts, m.durations, m.endedAt, build, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, target := range targets {
		labels := labelsOf(target)
		m.attempts.WithLabelValues(append(labels, "pass")...)
		m.attempts.WithLabelValues(append(labels, "fail")...)
		m.durations.WithLabelValues(labels...)
		m.endedAt.WithLabelValues(labels...)
	}
	return m
}

func labelsOf(t Target) []string {
	return []string{t.Name, t.Service, t.Address.String(), t.Protocol, strconv.Itoa(int(t.Port))}
}

func (m *Metrics) attempted(target Target, a attempt) {
	labels := labelsOf(target)
	if a.err != nil {
		m.attempts.WithLabelValues(append(labels, "fail")...).Inc()
		return
	}
	m.attempts.WithLabelValues(append(labels, "pass")...).Inc()
	m.durations.WithLabelValues(labels...).Observe(a.took.Seconds())
}

func (m *Metrics) ended(r Round) {
	labels := labelsOf(r.Target)
	m.answered.WithLabelValues(labels...).Set(float64(len(r.Latencies)) / float64(r.Tried))
	m.endedAt.WithLabelValues(labels...).Set(float64(r.Ended.UnixMilli()) / 1000)
}

// Page is everything there is now, in Prometheus' text format.
func (m *Metrics) Page(context.Context) ([]byte, error) {
	families, err := m.registry.Gather()
	if err != nil {
		return nil, fmt.Errorf("gather metrics: %w", err)
	}
	var page bytes.Buffer
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&page, family); err != nil {
			return nil, fmt.Errorf("write metric %s: %w", family.GetName(), err)
		}
	}
	return page.Bytes(), nil
}
