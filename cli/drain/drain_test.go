package drain

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// drainStates of the machine and of the service web; a router has `routes` until
// the last of them.
func drainStates(routes uint32, drains ...*controllerv1.Drain) (states []*controllerv1.GetStateResponse) {
	for i, d := range drains {
		if d != nil {
			d.Until = timestamppb.New(time.Now().Add(time.Minute))
		}
		left := routes
		if i == len(drains)-1 {
			left = 0
		}
		states = append(states, &controllerv1.GetStateResponse{
			Machine:   &controllerv1.Machine{Name: "lb-1", Drain: d},
			Services:  []*controllerv1.Service{{Name: "web", Drain: d}},
			Neighbors: []*controllerv1.Neighbor{{Address: "10.0.0.254", AnnouncedPrefixes: left}},
		})
	}
	return states
}

func TestADrainIsRequestedAsItWasGiven(t *testing.T) {
	c := &clitest.FakeController{}
	runDir := clitest.Both(t, c, nil)
	for _, line := range []string{
		"drain machine", "drain machine --force", "undrain machine", "drain service web --force", "undrain service web",
	} {
		if _, _, err := guideway(t, append(strings.Fields(line), "--run-dir", runDir)...); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	want := []proto.Message{
		&controllerv1.DrainMachineRequest{Drain: true}, &controllerv1.DrainMachineRequest{Drain: true, Force: true}, &controllerv1.DrainMachineRequest{},
		&controllerv1.DrainServiceRequest{Service: "web", Drain: true, Force: true}, &controllerv1.DrainServiceRequest{Service: "web"},
	}
	if !slices.EqualFunc(c.Drains, want, proto.Equal) {
		t.Errorf("requested were %v, want %v", c.Drains, want)
	}
	if _, said, err := guideway(t, "undrain", "backend", "web-1", "--run-dir", runDir); err != nil || said != "warning: web-1 is drained on lb-2, too\n" {
		t.Errorf("said %q, %v", said, err)
	}
	if _, _, err := guideway(t, "drain", "service", "wbe", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), `did you mean "web"?`) {
		t.Errorf("a misspelt service: %v", err)
	}
	c.Refuse = status.Error(codes.FailedPrecondition, "no other load balancer is known to take over")
	if _, _, err := guideway(t, "drain", "machine", "--wait", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), "no other load balancer") || commandline.ExitCode(err) != commandline.ExitFailed {
		t.Errorf("a refusal: %v", err)
	}
}

func TestADrainThatWaitsEndsWhenTrafficAndRoutersHaveFollowed(t *testing.T) {
	c := &clitest.FakeController{}
	runDir := clitest.Both(t, c, nil)
	waiting := &controllerv1.Drain{Waits: true, PacketsPerSecond: proto.Uint64(5000)}
	moved := &controllerv1.Drain{Waits: true, MovedAway: true, Withdrawn: true, PacketsPerSecond: proto.Uint64(3)}
	late := &controllerv1.Drain{Waits: true, Withdrawn: true, PacketsPerSecond: proto.Uint64(5000)}
	for _, line := range []struct {
		args   []string
		states []*controllerv1.GetStateResponse
		said   string
		err    error
	}{
		{[]string{"machine"}, drainStates(2, waiting, moved, moved), "traffic has moved away (3 packets/s), the routes are withdrawn: the machine may be stopped", nil},
		{[]string{"service", "web"}, drainStates(2, waiting, moved), "traffic has moved away (3 packets/s), the routes are withdrawn: other machines serve web", nil},
		{[]string{"machine"}, drainStates(2, waiting, late, &controllerv1.Drain{Waits: true, Withdrawn: true, PacketsPerSecond: proto.Uint64(0)}), "the time was up before traffic had moved away; the routes are withdrawn, and now it has (0 packets/s): the machine may be stopped", commandline.ErrTimeUp},
	} {
		c.States, c.Drains = line.states, nil
		out, stderr, err := guideway(t, append(append([]string{"drain"}, line.args...), "--wait", "--timeout", "17s", "--run-dir", runDir)...)
		if !errors.Is(err, line.err) || !strings.Contains(out, line.said) {
			t.Errorf("%v: %v\n%s%s", line.args, err, out, stderr)
		}
		if len(c.States) != 1 {
			t.Errorf("%v: ended with %d states not seen", line.args, len(c.States)-1)
		}
		if d, ok := c.Drains[0].(interface {
			GetWaitMax() *durationpb.Duration
		}); !ok || d.GetWaitMax().AsDuration() != 17*time.Second {
			t.Errorf("%v: requested was %v", line.args, c.Drains)
		}
		if service := line.args[0] == "service"; service != strings.Contains(stderr, "warning: 203.0.113.10/32 stays announced") {
			t.Errorf("%v: said was %q", line.args, stderr)
		}
	}
	c.States = drainStates(0, waiting, nil)
	if _, _, err := guideway(t, "drain", "machine", "--wait", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), "undrained meanwhile") {
		t.Errorf("an undrain meanwhile: %v", err)
	}
}

func TestAMachineWithTrafficIsNotSaidToBeIdle(t *testing.T) {
	for _, c := range []struct {
		rate *uint64
		said string
	}{
		{proto.Uint64(700), "and 700 packets/s: connections break that still come here when the machine is stopped"},
		{nil, "and it is not known how many packets still come: connections break"},
	} {
		var out bytes.Buffer
		err := conclude(&out, drainedMachine{}, &controllerv1.Drain{Withdrawn: true, PacketsPerSecond: c.rate}, "")
		if !errors.Is(err, commandline.ErrTimeUp) || !strings.Contains(out.String(), c.said) {
			t.Errorf("%v %q", err, out.String())
		}
	}
	unknown := &controllerv1.GetStateResponse{Speaker: &controllerv1.SpeakerState{Reason: "no such socket"}, Neighbors: []*controllerv1.Neighbor{{Address: "10.0.0.254"}}}
	if left := (drainedMachine{}).left(unknown); !strings.Contains(left, "the speaker does not answer (no such socket), so it is not known what routers have") {
		t.Errorf("without a speaker %q", left)
	}
	var out bytes.Buffer
	err := conclude(&out, drainedMachine{}, &controllerv1.Drain{Withdrawn: true, MovedAway: true}, "10.0.0.254 still has 2 routes")
	if err == nil || errors.Is(err, commandline.ErrTimeUp) || !strings.Contains(err.Error(), "10.0.0.254 still has 2 routes") {
		t.Errorf("routes that are left: %v", err)
	}
}

func TestABackendIsWaitedForUntilItsConnectionsHaveEnded(t *testing.T) {
	f := &clitest.FakeForwarder{Established: []uint64{40, 7, 0}}
	runDir := clitest.Both(t, &clitest.FakeController{}, f)
	out, _, err := guideway(t, "drain", "backend", "web-1", "--wait", "--timeout", "1m", "--run-dir", runDir)
	if err != nil || !strings.Contains(out, "web-1 has no connection through this machine any more") || len(f.Established) != 1 {
		t.Errorf("%v %s; not seen %v", err, out, f.Established)
	}
	f.Established = []uint64{40}
	out, _, err = guideway(t, "drain", "backend", "web-1", "--wait", "--timeout", "1ms", "--run-dir", runDir)
	if !errors.Is(err, commandline.ErrTimeUp) || !strings.Contains(out, "the time was up before the connections of web-1 had ended: this machine tracks 40") {
		t.Errorf("%v %s", err, out)
	}
}

func TestADrainedBackendIsWaitedForUntilItsMovesClose(t *testing.T) {
	done := &controllerv1.GetStateResponse{Services: []*controllerv1.Service{{Name: "web", Buckets: &controllerv1.Buckets{
		Count: 256, Backends: []*controllerv1.BucketUse{{Backend: "web-2", Owned: 256}},
	}}}}
	c := &clitest.FakeController{States: []*controllerv1.GetStateResponse{clitest.Draining(), clitest.Draining(), done}}
	runDir := clitest.Both(t, c, &clitest.FakeForwarder{Established: []uint64{0}})
	out, _, err := guideway(t, "drain", "backend", "web-1", "--wait", "--timeout", "1m", "--run-dir", runDir)
	if err != nil || !strings.Contains(out, "web-1 has no connection through this machine any more") || len(c.States) != 1 {
		t.Errorf("%v %s", err, out)
	}
	c.States = []*controllerv1.GetStateResponse{clitest.Draining()}
	out, _, err = guideway(t, "drain", "backend", "web-1", "--wait", "--timeout", "1ms", "--run-dir", runDir)
	if !errors.Is(err, commandline.ErrTimeUp) || !strings.Contains(out, "those in 128 buckets may live on it: `guideway show moves`") {
		t.Errorf("%v %s", err, out)
	}
}
