package speaker

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
	"github.com/guideway/guideway/tools/counters"
)

func TestCountersTable(t *testing.T) {
	state := &speakerv1.State{
		Neighbors: []*speakerv1.NeighborState{{Address: "10.0.0.254", Bfd: bfdDown}}, Vrrp: []*speakerv1.VirtualRouter{{Vrid: 51, State: "backup"}},
	}
	counters.Write(t, "metrics of the speaker", metricsOf(state, time.Now()))
}

func TestTheMetricsSayForHowLongNoControllerWasThere(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for absent, want := range map[*timestamppb.Timestamp]float64{nil: 0, timestamppb.New(now.Add(-7 * time.Second)): 7} {
		families, err := metricsOf(&speakerv1.State{ControllerAbsentSince: absent}, now).Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := -1.0
		for _, family := range families {
			if family.GetName() == "guideway_speaker_controller_absent_seconds" {
				got = family.GetMetric()[0].GetGauge().GetValue()
			}
		}
		if got != want {
			t.Errorf("absent since %v: %v s", absent, got)
		}
	}
}
