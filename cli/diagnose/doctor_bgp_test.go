package diagnose

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func Test_doctor_names_a_session_that_should_have_BFD_and_has_none(t *testing.T) {
	for name, c := range map[string]struct {
		bfd   string
		since time.Duration
		warns bool
	}{
		"it is down":        {"down", time.Minute, true},
		"it has just begun": {"down", time.Second, false},
		"it is up":          {"up", time.Minute, false},
		"none is desired":   {"", time.Minute, false},
	} {
		p := diagnosis{state: &controllerv1.GetStateResponse{Neighbors: []*controllerv1.Neighbor{{
			Address: "10.0.0.254", State: "established", Bfd: c.bfd, Since: timestamppb.New(time.Now().Add(-c.since)),
		}}}}
		p.bgp()
		warned := len(p.findings) == 2 && p.findings[0].Grade == gradeWarn && strings.HasPrefix(p.findings[0].Text, "the session with 10.0.0.254 has no BFD")
		if warned != c.warns || !warned && len(p.findings) != 1 {
			t.Errorf("%s: doctor finds %v", name, p.findings)
		}
	}
}
