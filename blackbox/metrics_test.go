package blackbox

import (
	"testing"

	"github.com/guideway/guideway/tools/counters"
)

func TestCountersTable(t *testing.T) {
	target := Target{Name: "http://203.0.113.10:80/"}
	metrics := NewMetrics("1", []Target{target})
	metrics.ended(Round{Target: target, Tried: 1})
	counters.Write(t, "metrics of the prober", metrics.registry)
}
