package api

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/guideway/guideway/controller/apitest"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// counter is a forwarder; one that hangs answers when its client has gone.
type counter struct {
	forwarderv1.UnimplementedForwarderServer
	hangs bool
}

func (c *counter) GetCounters(ctx context.Context, _ *forwarderv1.GetCountersRequest) (*forwarderv1.GetCountersResponse, error) {
	if c.hangs {
		<-ctx.Done()
	}
	return &forwarderv1.GetCountersResponse{
		Services: []*forwarderv1.ServiceCounters{{Service: "web", Packets: 600, Bytes: 6000, NewConnections: 7}, {Service: "web", Packets: 390, Bytes: 3900, NewConnections: 5}, {Service: "gone", Packets: 1}},
		Backends: []*forwarderv1.BackendCounters{{Service: "web", Backend: "a", Packets: 900, Bytes: 9000, NewConnections: 12}, {Backend: "b", Packets: 80}, {Service: "dns", Backend: "b", Packets: 10}},
	}, nil
}

func (c *counter) GetConnections(context.Context, *forwarderv1.GetConnectionsRequest) (*forwarderv1.GetConnectionsResponse, error) {
	return &forwarderv1.GetConnectionsResponse{Counts: []*forwarderv1.ConnectionCount{{Service: "web", Connections: 40}, {Service: "web", Connections: 2}, {Service: "gone", Connections: 9}}}, nil
}

func besideForwarder(t *testing.T, c *counter) *host {
	t.Helper()
	socket := filepath.Join(looptest.Dir(t), "forwarder.sock")
	apitest.Serve(t, socket, func(s *grpc.Server) { forwarderv1.RegisterForwarderServer(s, c) })
	return &host{
		forwarder: forwarderv1.NewForwarderClient(apitest.Connect(t, socket)),
		services:  []*controllerv1.Service{{Name: "web"}, {Name: "dns"}},
		backends:  []*controllerv1.Backend{{Service: "web", Name: "a"}, {Name: "b", Services: 2}, {Service: "web", Name: "b"}},
	}
}

func Test_a_state_has_what_the_forwarder_counted_if_that_is_requested(t *testing.T) {
	_, viewer := dial(t, besideForwarder(t, &counter{}))
	plain, err := viewer.GetState(t.Context(), &controllerv1.GetStateRequest{})
	if err != nil || plain.Services[0].Packets != nil || plain.Services[0].Connections != nil || plain.Backends[0].Packets != nil {
		t.Errorf("not requested: %v %v", plain, err)
	}
	state, err := viewer.GetState(t.Context(), &controllerv1.GetStateRequest{WithCounters: true})
	if err != nil || state.NotCounted != "" {
		t.Fatalf("%v %v", err, state)
	}
	if web, dns := state.Services[0], state.Services[1]; web.GetPackets() != 990 || web.GetBytes() != 9900 || web.GetNewConnections() != 12 || web.GetConnections() != 42 || dns.Packets == nil || dns.GetPackets() != 0 {
		t.Errorf("services %v", state.Services)
	}
	var packets []uint64
	for _, b := range state.Backends {
		packets = append(packets, b.GetPackets())
	}
	// Of b in groups that several services have, and of b in web, where nothing is counted.
	if !slices.Equal(packets, []uint64{900, 90, 0}) {
		t.Errorf("backends %v", state.Backends)
	}
	one, err := viewer.GetBackend(t.Context(), &controllerv1.GetBackendRequest{Name: "web-1", WithCounters: true})
	if err != nil || one.Backends[0].Packets == nil || one.NotCounted != "" {
		t.Errorf("one backend: %v %v", one, err)
	}
}

func Test_a_state_comes_without_counters_where_the_forwarder_hangs_or_is_not_there(t *testing.T) {
	hangs := besideForwarder(t, &counter{hangs: true})
	_, viewer := dial(t, hangs)
	began := time.Now()
	state, err := viewer.GetState(t.Context(), &controllerv1.GetStateRequest{WithCounters: true})
	if err != nil || len(state.Services) != 2 || state.Services[0].Packets != nil || !strings.Contains(state.NotCounted, "the forwarder: no answer within 3s") || time.Since(began) > 2*countTimeout {
		t.Errorf("%v after %v: %v", err, time.Since(began), state)
	}
	hangs.forwarder = forwarderv1.NewForwarderClient(apitest.Connect(t, "/nowhere/forwarder.sock"))
	if state, err = viewer.GetState(t.Context(), &controllerv1.GetStateRequest{WithCounters: true}); err != nil || !strings.Contains(state.NotCounted, "/nowhere/forwarder.sock") {
		t.Errorf("%v %v", err, state)
	}
}

func Test_states_without_counters_do_not_wait_for_a_forwarder_that_hangs(t *testing.T) {
	_, viewer := dial(t, besideForwarder(t, &counter{hangs: true}))
	var waiting sync.WaitGroup
	for range 4 * statesMax { // fewer than a connection may have
		waiting.Go(func() {
			_, err := viewer.GetState(t.Context(), &controllerv1.GetStateRequest{WithCounters: true})
			if err != nil {
				t.Error(err)
			}
		})
	}
	for end := time.Now().Add(countTimeout / 2); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		began := time.Now()
		if _, err := viewer.GetState(t.Context(), &controllerv1.GetStateRequest{}); err != nil || time.Since(began) > countTimeout/2 {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
	}
	waiting.Wait()
}
