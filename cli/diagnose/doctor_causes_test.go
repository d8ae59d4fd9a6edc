package diagnose

import (
	"errors"
	"slices"
	"testing"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// As all that depends on the interface says it.
func TestWhatFollowsFromALinkThatIsDownIsNotToldAgain(t *testing.T) {
	const problem = "the routing rules of gw-probe cannot be made"
	p := &diagnosis{
		host: fakeHost{},
		status: &forwarderv1.GetStatusResponse{
			Generation:  4,
			Devices:     []*forwarderv1.Device{{Interface: "eth0"}},
			Unresolved:  []*forwarderv1.UnresolvedBackend{{Name: "be-1", Address: "10.0.0.11", Why: "no route"}},
			ProbeDevice: &forwarderv1.ProbeDevice{Name: "gw-probe", Problem: problem},
		},
		state: &controllerv1.GetStateResponse{
			Machine:   &controllerv1.Machine{State: "cut off", Reason: "every pool fails and the gateway 10.0.0.254 does not answer"},
			NotReady:  []string{"forwarder: device eth0 is down", "no BGP session up"},
			Forwarder: &controllerv1.Forwarder{GenerationWanted: 4, GenerationRunning: 4, Warnings: []string{"probes cannot be sent: " + problem}},
			Neighbors: []*controllerv1.Neighbor{{Address: "10.0.0.254", State: "active", Reason: "unreachable: this machine has no route to the router"}},
			Routes:    []*controllerv1.Route{{Prefix: "203.0.113.10/32", Reason: "this machine is cut off: every pool fails"}},
			Services:  []*controllerv1.Service{{Name: "web", State: "no backend", Backends: 1}},
		},
		down: []*controllerv1.Backend{{Name: "be-1", State: "down", Reason: "http: network is unreachable"}, {Name: "be-1", State: "down"}},
	}
	p.machine()
	p.plan()
	p.nextHops()
	p.mtu()
	p.devices(t.Context())
	p.bgp()
	p.probes(t.Context())
	p.backends()
	expect(t, p, "fail machine is cut off: see `eth0`", "ok plan wanted and running", "fail eth0 is down: ip link set eth0 up", "fail service web is in state `no backend`, with no active backend of 1")

	p.status.Devices[0].Up = true // of an old report
	p.findings, p.consequences = nil, nil
	p.machine()
	p.nextHops()
	p.backends()
	expect(t, p, "fail machine is cut off: every pool fails and the gateway 10.0.0.254 does not answer",
		"warn ready not yet: forwarder: device eth0 is down", "warn ready not yet: no BGP session up",
		"fail next hop of be-1 (10.0.0.11) is not known: no route; look at `ip route get 10.0.0.11` and `ip neigh`",
		"fail service web is in state `no backend`, with no active backend of 1", "warn backend be-1 is down: http: network is unreachable")
}

func TestWhatFollowsFromAProcessThatDoesNotAnswerIsNotToldAgain(t *testing.T) {
	p := &diagnosis{state: &controllerv1.GetStateResponse{Machine: &controllerv1.Machine{State: "not serving", Reason: "forwarder: does not answer"}}}
	p.add(gradeFail, "forwarder", "%v", errors.New("no such socket"))
	p.machine()
	expect(t, p, "fail forwarder no such socket", "fail machine is not serving: see `forwarder`")

	p = &diagnosis{status: &forwarderv1.GetStatusResponse{ControllerAbsentMs: 5000}}
	p.add(gradeFail, "controller", "%v", errors.New("no such socket"))
	p.controllerAbsent()
	expect(t, p, "fail controller no such socket")

	p = &diagnosis{state: &controllerv1.GetStateResponse{
		Machine:   &controllerv1.Machine{State: "not serving", Reason: "no BGP session up"},
		Neighbors: []*controllerv1.Neighbor{{Address: "10.0.0.254", Asn: 64513, State: "active", Reason: "hold-timer-expired"}},
	}}
	p.machine()
	p.bgp()
	expect(t, p, "fail machine is not serving: see `bgp`", "fail bgp the session with 10.0.0.254 (AS 64513) is active: hold-timer-expired")
}

func expect(t *testing.T, p *diagnosis, want ...string) {
	t.Helper()
	var told []string
	for _, f := range p.told() {
		told = append(told, f.Grade+" "+f.What+" "+f.Text)
	}
	if !slices.Equal(told, want) {
		t.Errorf("told:\n%q\nwant\n%q", told, want)
	}
}
