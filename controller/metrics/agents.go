package metrics

// Metrics of the messages from agents.

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/guideway/guideway/controller/sinks/session"
)

// AgentSource receives agents' messages.
type AgentSource interface {
	// How many datagrams each result has had.
	Results() session.Counts
	// When the latest state of each agent was received.
	Heard() map[string]time.Time
}

var (
	agentMessages = describe("guideway_agent_messages_total", "Datagrams from the backends' agents, by what became of them (docs/agent.md).", "result")
	agentState    = describe("guideway_agent_state_timestamp_seconds", "When the latest state of the backend's agent was received; absent where none was.", "backend")
)

type agentCollector struct{ source AgentSource }

func (c agentCollector) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- agentMessages
	descriptions <- agentState
}

func (c agentCollector) Collect(metrics chan<- prometheus.Metric) {
	for result, count := range c.source.Results() {
		metrics <- prometheus.MustNewConstMetric(agentMessages, prometheus.CounterValue, float64(count), string(result))
	}
	for backend, at := range c.source.Heard() {
		metrics <- prometheus.MustNewConstMetric(agentState, prometheus.GaugeValue, float64(at.UnixMilli())/1000, backend)
	}
}
