package speaker

import (
	"testing"
	"time"

	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
	"github.com/guideway/guideway/tools/counters"
)

func TestCountersTable(t *testing.T) {
	state := &speakerv1.State{Neighbors: []*speakerv1.NeighborState{{Address: "10.0.0.254", Bfd: bfdDown}}}
	counters.Write(t, "metrics of the speaker", metricsOf(state, time.Now()))
}
