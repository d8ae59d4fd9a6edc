package run

import (
	"math"
	"testing"
	"time"

	agentv1 "github.com/guideway/guideway/proto/guideway/agent/v1"
)

func TestAnAgentIsNotBelievedThatABackendTakesLongerThanADay(t *testing.T) {
	if answersOf(nil) != nil {
		t.Error("answers of an agent that measures none")
	}
	got := answersOf(&agentv1.Answers{Measured: 5, P50Us: 1500, P99Us: math.MaxUint64, OpenThousandths: 2500})
	if got.P50 != 1500*time.Microsecond || got.P99 != 24*time.Hour || got.Open != 2.5 {
		t.Errorf("%+v", got)
	}
}
