package fleet

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

func wellState() *controllerv1.GetStateResponse {
	return &controllerv1.GetStateResponse{
		Version: "1.1", Config: &controllerv1.Config{LoadedAt: timestamppb.New(time.Unix(1000, 0))},
		Forwarder: &controllerv1.Forwarder{Healthy: true, GenerationWanted: 7, GenerationAccepted: 7},
		Speaker:   &controllerv1.SpeakerState{Answers: true, Version: "1.0"},
		Neighbors: []*controllerv1.Neighbor{{Address: "10.0.0.254", State: "established"}},
		Routes:    []*controllerv1.Route{{Prefix: "203.0.113.10/32", Announced: true}, {Prefix: "203.0.113.11/32", Reason: "no backend"}},
	}
}

func Test_a_machine_is_well_when_it_is_as_before(t *testing.T) {
	before := observed{state: wellState()}
	for says, change := range map[string]func(*controllerv1.GetStateResponse){
		"": func(*controllerv1.GetStateResponse) {},
		"forwarder: worker-0 hangs": func(s *controllerv1.GetStateResponse) {
			s.Forwarder.Healthy, s.Forwarder.Reason = false, "worker-0 hangs"
		},
		"not accepted the plan yet":      func(s *controllerv1.GetStateResponse) { s.Forwarder.GenerationAccepted = 6 },
		"refuses the plan: too many":     func(s *controllerv1.GetStateResponse) { s.Forwarder.Refusal = "too many" },
		"its config is refused: line 3":  func(s *controllerv1.GetStateResponse) { s.Config.Stale, s.Config.Problem = true, "line 3" },
		"speaker does not answer: gone":  func(s *controllerv1.GetStateResponse) { s.Speaker = &controllerv1.SpeakerState{Reason: "gone"} },
		"announces nothing: unhealthy":   func(s *controllerv1.GetStateResponse) { s.Speaker.Withheld = "unhealthy" },
		"no BGP session with 10.0.0.254": func(s *controllerv1.GetStateResponse) { s.Neighbors[0].State = "active" },
		"203.0.113.10/32 is not announced any more: no backend": func(s *controllerv1.GetStateResponse) {
			s.Routes[0].Announced, s.Routes[0].Reason = false, "no backend"
		},
	} {
		after := observed{state: wellState()}
		change(after.state)
		if found := after.unwell(before); says == "" && found != "" || !strings.Contains(found, says) {
			t.Errorf("%q is found as %q", says, found)
		}
	}
	for _, test := range []struct {
		before, after float64
		higher        bool
	}{{0, 0, false}, {0, 10, false}, {0, 11, true}, {100, 200, false}, {100, 211, true}} {
		if higher := higherDrops(test.before, test.after) != ""; higher != test.higher {
			t.Errorf("%v drops a second after %v: higher is %v", test.after, test.before, higher)
		}
	}
}

func Test_a_fleet_that_is_not_whole_is_not_restarted(t *testing.T) {
	whole := &controllerv1.GetFleetResponse{Machines: []*controllerv1.FleetMachine{{Name: "lb-1", Registered: &fleetv1.Machine{Api: "10.0.0.1:9471"}}}}
	if err := mayBeRestarted(whole); err != nil {
		t.Error(err)
	}
	for says, change := range map[string]func(*controllerv1.GetFleetResponse){
		"lb-2 is absent: no answer": func(f *controllerv1.GetFleetResponse) {
			f.Machines = append(f.Machines, &controllerv1.FleetMachine{Name: "lb-2", Reason: "no answer"})
		},
		"lb-1 has no API over TCP": func(f *controllerv1.GetFleetResponse) { f.Machines[0].Registered.Api = "" },
		"etcd does not answer":     func(f *controllerv1.GetFleetResponse) { f.Away = "etcd does not answer" },
		"tables have differed":     func(f *controllerv1.GetFleetResponse) { f.Alarms = []string{"tables have differed"} },
		"no machine is known":      func(f *controllerv1.GetFleetResponse) { f.Machines = nil },
	} {
		fleet := proto.CloneOf(whole)
		change(fleet)
		if err := mayBeRestarted(fleet); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	runDir := clitest.Both(t, &clitest.FakeController{Fleet: threeMachines()}, &clitest.FakeForwarder{})
	if _, _, err := guideway(t, "fleet", "restart", "--one-at-a-time", "--run-dir", runDir); commandline.ExitCode(err) != commandline.ExitFailed || !strings.Contains(err.Error(), "no machine is restarted: ") || !strings.Contains(err.Error(), "lb-3 is absent") {
		t.Error(err)
	}
	if _, _, err := guideway(t, "fleet", "restart", "--run-dir", runDir); commandline.ExitCode(err) != commandline.ExitUsage || !strings.Contains(err.Error(), "--one-at-a-time") {
		t.Error(err)
	}
}
