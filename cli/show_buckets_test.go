package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// draining web-1: 100 buckets are prepared, 28 have moved.
func draining() *controllerv1.GetStateResponse {
	buckets := &controllerv1.Buckets{
		Count: 256, Generation: 7, GenerationAcknowledged: 6, Moving: 128, Waiting: 3, MoveAgeMax: durationpb.New(24 * time.Hour),
		Backends: []*controllerv1.BucketUse{{Backend: "web-1", Owned: 100, Earlier: 28}, {Backend: "web-2", Owned: 156, Next: 100}},
		Moves: []*controllerv1.BucketMove{
			{From: "web-1", To: "web-2", Buckets: 100},
			{From: "web-1", To: "web-2", Buckets: 28, Moved: true, Since: timestamppb.New(time.Now().Add(-time.Hour)), Connections: proto.Uint64(12)},
		},
	}
	return &controllerv1.GetStateResponse{Services: []*controllerv1.Service{{Name: "tracked"}, {Name: "web", Buckets: buckets}}}
}

func TestBucketsAndMovesAreShown(t *testing.T) {
	c := &fakeController{states: []*controllerv1.GetStateResponse{draining()}}
	runDir := both(t, c, nil)
	for _, line := range []struct {
		verb string
		rows []string
	}{
		{"buckets", []string{"web web-1 100 39.1 % - 28", "web web-2 156 60.9 % 100 -"}},
		{"moves", []string{"web web-1 web-2 100 prepared - - -", "web web-1 web-2 28 moved 1h0m0s 12 23h0m0s", "web - - 3 waiting - - -"}},
	} {
		out, _, err := guideway(t, "show", line.verb, "--run-dir", runDir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, row := range strings.Split(strings.TrimSpace(out), "\n")[1:] {
			got = append(got, strings.Join(strings.Fields(row), " "))
		}
		if strings.Join(got, "\n") != strings.Join(line.rows, "\n") {
			t.Errorf("%s:\n%s", line.verb, out)
		}
		var parsed []map[string]any
		out, _, err = guideway(t, "show", line.verb, "-o", "json", "--run-dir", runDir)
		if err != nil || json.Unmarshal([]byte(out), &parsed) != nil || len(parsed) != len(line.rows) || parsed[0]["service"] != "web" {
			t.Errorf("%s: %v %s", line.verb, err, out)
		}
	}
	if out, _, err := guideway(t, "show", "buckets", "-o", "wide", "--run-dir", runDir); err != nil || !strings.Contains(out, "7 (the forwarder has 6)") {
		t.Errorf("%v %s", err, out)
	}
}

func TestADrainedBackendIsWaitedForUntilItsMovesClose(t *testing.T) {
	done := &controllerv1.GetStateResponse{Services: []*controllerv1.Service{{Name: "web", Buckets: &controllerv1.Buckets{
		Count: 256, Backends: []*controllerv1.BucketUse{{Backend: "web-2", Owned: 256}},
	}}}}
	c := &fakeController{states: []*controllerv1.GetStateResponse{draining(), draining(), done}}
	runDir := both(t, c, &fakeForwarder{established: []uint64{0}})
	out, _, err := guideway(t, "drain", "backend", "web-1", "--wait", "--timeout", "1m", "--run-dir", runDir)
	if err != nil || !strings.Contains(out, "web-1 has no connection through this machine any more") || len(c.states) != 1 {
		t.Errorf("%v %s", err, out)
	}
	c.states = []*controllerv1.GetStateResponse{draining()}
	out, _, err = guideway(t, "drain", "backend", "web-1", "--wait", "--timeout", "1ms", "--run-dir", runDir)
	if !errors.Is(err, errTimeUp) || !strings.Contains(out, "those in 128 buckets may live on it: `guideway show moves`") {
		t.Errorf("%v %s", err, out)
	}
}
