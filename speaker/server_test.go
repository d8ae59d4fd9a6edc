package speaker

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/rundir"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

func TestEveryCallHasARight(t *testing.T) {
	for _, m := range speakerv1.Speaker_ServiceDesc.Methods {
		if _, known := settersOnly["/"+speakerv1.Speaker_ServiceDesc.ServiceName+"/"+m.MethodName]; !known {
			t.Errorf("%s has no line in settersOnly", m.MethodName)
		}
	}
	if n := len(speakerv1.Speaker_ServiceDesc.Methods); n != len(settersOnly) {
		t.Errorf("%d calls, %d lines", n, len(settersOnly))
	}
}

// Root and we are setters; so it is taken away here.
func TestWhoMayNotSetIsRefusedAndSaysNothingLong(t *testing.T) {
	socket := filepath.Join(newMachine(t).run, "speaker.sock")
	listener, _, err := rundir.Listen(socket, rundir.ViewGroup)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	p := &process{sets: make(chan *speakerv1.SetRequest, 1)}
	p.shown.Store(&shown{desired: &speakerv1.Desired{RouterId: "192.0.2.1"}})
	s, err := newServers(p, "")
	if err != nil {
		t.Fatal(err)
	}
	s.setters = nil
	ended := make(chan struct{})
	go func() { defer close(ended); s.serve(listener) }()
	defer func() { s.stop(); listener.Close(); <-ended }()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := speakerv1.NewSpeakerClient(conn)
	if _, err := client.Set(t.Context(), &speakerv1.SetRequest{}); status.Code(err) != codes.PermissionDenied || len(p.sets) > 0 {
		t.Errorf("Set: %v", err)
	}
	if _, err := client.Poll(t.Context(), &speakerv1.PollRequest{}); status.Code(err) != codes.PermissionDenied || p.called.Load() != nil {
		t.Errorf("Poll: %v", err)
	}
	if desired, err := client.GetDesired(t.Context(), &speakerv1.GetDesiredRequest{}); err != nil || desired.RouterId != "192.0.2.1" {
		t.Errorf("GetDesired: %v, %v", desired, err)
	}
	// Any message can be long.
	long := &speakerv1.SetRequest{Desired: &speakerv1.Desired{RouterId: strings.Repeat("x", questionBytesMax)}}
	if err := conn.Invoke(context.Background(), speakerv1.Speaker_GetState_FullMethodName, long, &speakerv1.State{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a long question: %v", err)
	}
}

func TestAQueueThatEndsKeepsNobody(t *testing.T) {
	q := newQueue(nil)
	_ = q.Close()
	client, other := net.Pipe()
	q.put(other)
	if _, err := client.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is still open")
	}
}

// A step of the wall clock is no absence: with controller_absent_max all routes would go.
func TestWhenTheControllerCalledIsByTheMonotonicClock(t *testing.T) {
	p := &process{}
	p.heardController()
	// As time.Time.String says: the reading of the monotonic clock, if there is one.
	if called := p.called.Load().String(); !strings.Contains(called, " m=") {
		t.Errorf("the controller called at %s", called)
	}
}
