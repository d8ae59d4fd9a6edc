package fleet

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

func threeMachines() *controllerv1.GetFleetResponse {
	one := &fleetv1.Machine{
		Name: "lb-1", Shard: "a", Version: "1.1", ForwarderVersion: "1.1", SpeakerVersion: "1.0", Config: 17, ConfiguredFingerprint: "5b1c8d7f0a9e2c43",
		LiveFingerprint: "e00f6a1b7c2d9384", State: "serving", PacketsPerSecond: 1200, BytesPerSecond: 90_000, Api: "10.0.0.1:9471", Time: timestamppb.Now(),
	}
	return &controllerv1.GetFleetResponse{Cluster: "c1", ReadAt: timestamppb.Now(), Machines: []*controllerv1.FleetMachine{
		{Name: "lb-1", Addresses: []string{"10.0.0.1"}, Registered: one},
		{Name: "lb-2", Addresses: []string{"10.0.0.2"}, Registered: &fleetv1.Machine{Name: "lb-2", Shard: "a", Version: "1.0", Config: 16, State: "not serving", Reason: "no BGP session up", Drained: true}},
		{Name: "lb-3", Addresses: []string{"10.0.0.3"}, Reason: "its controller is not registered in etcd; unreachable: no answer"},
	}}
}

func Test_every_machine_of_the_fleet_is_shown(t *testing.T) {
	fake := &clitest.FakeController{Fleet: threeMachines()}
	runDir := clitest.Both(t, fake, &clitest.FakeForwarder{})
	out, stderr, err := guideway(t, "fleet", "--run-dir", runDir)
	if commandline.ExitCode(err) != commandline.ExitFailed { // one is absent
		t.Fatalf("%v\n%s", err, stderr)
	}
	for _, line := range []string{
		"lb-1 serving 17 5b1c8d7f e00f6a1b 1200 90000 1.1 a -",
		"lb-2 not serving, drained 16 - - 0 0 1.0 a no BGP session up",
		"lb-3 absent - - - - - - - its controller is not registered in etcd; unreachable: no answer",
	} {
		if !strings.Contains(clitest.Fields(out), line) {
			t.Errorf("no %q in\n%s", line, out)
		}
	}
	if !strings.Contains(stderr, `2 versions run: ["1.0" "1.1"]`) {
		t.Errorf("stderr %s", stderr)
	}
	out, _, err = guideway(t, "fleet", "--run-dir", runDir, "-o", "json")
	var shown controllerv1.GetFleetResponse
	if err == nil || protojson.Unmarshal([]byte(out), &shown) != nil || !proto.Equal(&shown, fake.Fleet) || !strings.Contains(out, `"config": 17`) {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err = guideway(t, "fleet", "--run-dir", runDir, "-o", "wide"); err == nil || !strings.Contains(clitest.Fields(out), "- 1.1 1.0 10.0.0.1:9471") {
		t.Errorf("%v\n%s", err, out)
	}
}

func Test_a_fleet_without_etcd_has_digests_and_backends(t *testing.T) {
	fake := &clitest.FakeController{Fleet: threeMachines()}
	one := fake.Fleet.Machines[0].Registered
	one.ConfigDigest, one.Backends, one.BackendsUp, one.BackendsDown = "1f203a6f1c5294ef", 4, 3, []string{"web-1"}
	one.DrainedBackends, one.DrainedServices = []string{"web-2"}, []string{"dns"}
	runDir := clitest.Both(t, fake, &clitest.FakeForwarder{})
	out, _, err := guideway(t, "fleet", "--run-dir", runDir, "-o", "wide")
	if err == nil || !strings.Contains(clitest.Fields(out), "1f203a6f 3/4 backend web-2, service dns") {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = guideway(t, "fleet", "--run-dir", runDir, "-o", "json")
	if err == nil || !strings.Contains(clitest.Fields(out), `"backends": 4, "backends_up": 3, "backends_down": [ "web-1" ], "drained_backends": [ "web-2" ], "drained_services": [ "dns" ]`) {
		t.Errorf("%v\n%s", err, out)
	}
}

func Test_a_canary_is_shown_and_ended(t *testing.T) {
	fake := &clitest.FakeController{Fleet: threeMachines()}
	fake.Fleet.Canary = &fleetv1.Canary{Machine: "lb-2", User: "alice", Config: &fleetv1.Current{Generation: 18}}
	runDir := clitest.Both(t, fake, &clitest.FakeForwarder{})
	if _, stderr, err := guideway(t, "fleet", "--run-dir", runDir); err == nil || !strings.Contains(stderr, "lb-2 alone runs config 18, applied by alice: `guideway config promote` or `guideway config cancel`") {
		t.Errorf("%v\n%s", err, stderr)
	}
	out, stderr, err := guideway(t, "config", "promote", "--run-dir", runDir)
	if err != nil || !fake.Ended.GetPromote() || !strings.Contains(out, "number 19") || !strings.Contains(stderr, "warning: not checked by lb-3: its controller") {
		t.Errorf("%v\n%s%s", err, out, stderr)
	}
	if _, _, err := guideway(t, "config", "cancel", "-m", "too slow", "--run-dir", runDir); err != nil || fake.Ended.GetPromote() || fake.Ended.GetMessage() != "too slow" {
		t.Errorf("%v: %v", fake.Ended, err)
	}
	fake.Refuse = status.Error(codes.FailedPrecondition, "lb-1 refuses it")
	if _, _, err := guideway(t, "config", "promote", "--run-dir", runDir); commandline.ExitCode(err) != commandline.ExitFailed || !strings.Contains(err.Error(), "lb-1 refuses it") {
		t.Error(err)
	}
}

func Test_a_machine_that_does_not_serve_fails_the_command(t *testing.T) {
	for name, c := range map[string]struct {
		machine *fleetv1.Machine
		isWell  bool
	}{
		"serving":           {&fleetv1.Machine{State: "serving"}, true},
		"serving in part":   {&fleetv1.Machine{State: "serving in part"}, true},
		"draining":          {&fleetv1.Machine{State: "draining", Drained: true}, true},
		"drained":           {&fleetv1.Machine{State: "not serving", Drained: true}, true},
		"not serving":       {&fleetv1.Machine{State: "not serving"}, false},
		"cut off":           {&fleetv1.Machine{State: "cut off"}, false},
		"none of its words": {&fleetv1.Machine{State: "of a later version"}, false},
		"absent":            {nil, false},
	} {
		fake := &clitest.FakeController{Fleet: &controllerv1.GetFleetResponse{Machines: []*controllerv1.FleetMachine{{Name: "lb-1", Registered: c.machine}}}}
		_, stderr, err := guideway(t, "fleet", "--run-dir", clitest.Both(t, fake, nil))
		if (err == nil) != c.isWell || commandline.ExitCode(err) > commandline.ExitFailed {
			t.Errorf("%s: %v\n%s", name, err, stderr)
		}
	}
}

func Test_an_alarm_of_the_fleet_fails_the_command(t *testing.T) {
	fake := &clitest.FakeController{Fleet: threeMachines()}
	fake.Fleet.Alarms = []string{"shard a, config 17: the config means different members"}
	fake.Fleet.Away = "etcd does not answer: connection refused"
	_, stderr, err := guideway(t, "fleet", "--run-dir", clitest.Both(t, fake, &clitest.FakeForwarder{}))
	if commandline.ExitCode(err) != commandline.ExitFailed || !strings.Contains(stderr, "alarm: shard a, config 17") || !strings.Contains(stderr, "as they were read last, 0s ago") {
		t.Errorf("%v\n%s", err, stderr)
	}
}

func Test_without_etcd_there_is_no_fleet(t *testing.T) {
	_, _, err := guideway(t, "fleet", "--run-dir", clitest.Both(t, &clitest.FakeController{}, &clitest.FakeForwarder{}))
	if err == nil || !strings.Contains(err.Error(), "in files alone") {
		t.Error(err)
	}
}
