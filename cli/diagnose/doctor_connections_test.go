package diagnose

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/apitest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func TestConnectionsThatNoServerAnswersAreAFailure(t *testing.T) {
	count := func(service, backend, class string, n uint64) *forwarderv1.ConnectionCount {
		return &forwarderv1.ConnectionCount{Service: service, Backend: backend, Class: class, Connections: n}
	}
	p := &diagnosis{
		unanswered: unanswered([]*forwarderv1.ConnectionCount{
			count("dead", "d-1", "unconfirmed", 3), count("dead", "d-2", "unconfirmed", 3),
			count("half", "h-1", "unconfirmed", 9), count("half", "h-2", "unconfirmed", 2), count("half", "h-2", "established", 5),
			count("young", "y-1", "unconfirmed", 3),
			count("ended", "e-1", "unconfirmed", 7), count("ended", "e-1", "closing", 1),
		}),
		state: &controllerv1.GetStateResponse{},
	}
	for _, name := range []string{"dead", "half", "young", "ended"} {
		p.state.Services = append(p.state.Services, &controllerv1.Service{Name: name, State: "serving", BackendsActive: 2, Backends: 2})
	}
	p.tunnelChecks = []*controllerv1.BackendCheck{{Last: &controllerv1.Probe{Passed: true}}}
	p.backends()
	const causes = ", so no answer of a server arrives, or each ends within 0.1 s. Health checks through the tunnel pass. Usually a server's way back to clients, or a firewall or rp_filter there, drops the answers; else the SYNs are a flood"
	want := []finding{
		{gradeFail, "connections", "of dead, half at h-1: none of 15 is confirmed by its client" + causes},
		{gradeOK, "service", "young and 1 more are served by all 2 backends"},
	}
	if fmt.Sprint(p.findings) != fmt.Sprint(want) {
		t.Errorf("found\n%v\nwant\n%v", p.findings, want)
	}
}

// Of four services whose connections are all unconfirmed, one's clients repeat their SYNs, and
// one's send requests.
func TestConnectionsOfClientsThatAreGoneAreNoFailure(t *testing.T) {
	f := &repeating{}
	runDir := clitest.Both(t, &clitest.FakeController{}, nil)
	apitest.Serve(t, filepath.Join(runDir, "forwarder-view.sock"), func(s *grpc.Server) { forwarderv1.RegisterForwarderServer(s, f) })
	p := &diagnosis{host: fakeHost{""}}
	m := machine.Machine{RunDir: runDir}
	p.ask(t.Context(), m)
	p.lookAgain(t.Context(), m)
	if want := (map[member]uint64{{"tried", ""}: 5}); !maps.Equal(p.unanswered, want) {
		t.Errorf("unanswered are %v", p.unanswered)
	}
}

type repeating struct {
	clitest.FakeForwarder
	looks atomic.Int32
}

func (f *repeating) GetConnections(context.Context, *forwarderv1.GetConnectionsRequest) (*forwarderv1.GetConnectionsResponse, error) {
	f.looks.Add(1)
	class := "unconfirmed"
	if f.looks.Load() > 1 {
		class = "established"
	}
	return &forwarderv1.GetConnectionsResponse{Counts: []*forwarderv1.ConnectionCount{
		{Service: "tried", Backend: "web-1", Class: "unconfirmed", Connections: 5},
		{Service: "left", Backend: "web-1", Class: "unconfirmed", Connections: 5},
		{Service: "slow", Backend: "web-1", Class: class, Connections: 5},
		{Service: "brief", Backend: "web-1", Class: "unconfirmed", Connections: 5},
	}}, nil
}

func (f *repeating) GetCounters(context.Context, *forwarderv1.GetCountersRequest) (*forwarderv1.GetCountersResponse, error) {
	packets := uint64(10 * f.looks.Load())
	return &forwarderv1.GetCountersResponse{Services: []*forwarderv1.ServiceCounters{
		{Service: "tried", Packets: packets, Bytes: 100 * packets}, {Service: "left", Packets: 7}, {Service: "slow", Packets: packets},
		{Service: "brief", Packets: packets, Bytes: 101 * packets},
	}}, nil
}
