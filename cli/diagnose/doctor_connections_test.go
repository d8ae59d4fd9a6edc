package diagnose

import (
	"fmt"
	"testing"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func TestConnectionsThatNoServerAnswersAreAFailure(t *testing.T) {
	count := func(service, backend, class string, n uint64) *forwarderv1.ConnectionCount {
		return &forwarderv1.ConnectionCount{Service: service, Backend: backend, Class: class, Connections: n}
	}
	p := &diagnosis{
		counts: []*forwarderv1.ConnectionCount{
			count("dead", "d-1", "unconfirmed", 3), count("dead", "d-2", "unconfirmed", 3),
			count("half", "h-1", "unconfirmed", 9), count("half", "h-2", "unconfirmed", 2), count("half", "h-2", "established", 5),
			count("young", "y-1", "unconfirmed", 3),
			count("ended", "e-1", "unconfirmed", 7), count("ended", "e-1", "closing", 1),
		},
		state: &controllerv1.GetStateResponse{},
	}
	for _, name := range []string{"dead", "half", "young", "ended"} {
		p.state.Services = append(p.state.Services, &controllerv1.Service{Name: name, State: "serving", BackendsActive: 2, Backends: 2})
	}
	p.tunnelChecks = []*controllerv1.BackendCheck{{Last: &controllerv1.Probe{Passed: true}}}
	p.backends()
	const causes = ", so no answer of a server arrives. Health checks through the tunnel pass. Usually a server's way back to clients, or a firewall or rp_filter there, drops the answers; else the SYNs are a flood"
	want := []finding{
		{gradeFail, "connections", "of dead: none of 6 is confirmed by its client" + causes},
		{gradeFail, "connections", "of half at h-1: none of 9 is confirmed by its client" + causes},
		{gradeOK, "service", "young is served by all of its 2 backends"},
		{gradeOK, "service", "ended is served by all of its 2 backends"},
	}
	if fmt.Sprint(p.findings) != fmt.Sprint(want) {
		t.Errorf("found\n%v\nwant\n%v", p.findings, want)
	}
}
