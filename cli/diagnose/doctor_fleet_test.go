package diagnose

import (
	"slices"
	"testing"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

func Test_machines_that_differ_are_found(t *testing.T) {
	here := &controllerv1.FleetMachine{Name: "lb-1", Registered: &fleetv1.Machine{}}
	absent := &controllerv1.FleetMachine{Name: "lb-2", Reason: "its controller has not been heard"}
	dropping := []string{"inet filter input: policy drop"}
	self := &controllerv1.GetStateResponse{Machine: &controllerv1.Machine{Name: "lb-1"}}
	heard := &controllerv1.FleetMachine{Name: "lb-3", Registered: &fleetv1.Machine{}}
	isAbsent := finding{gradeWarn, "fleet", "lb-2 is not compared: its controller has not been heard"}
	alike := finding{gradeOK, "fleet", "what the machines run does not differ (`guideway fleet`)"}
	etcd := &controllerv1.GetStateResponse{Config: &controllerv1.Config{Etcd: &controllerv1.Etcd{}}}
	for name, c := range map[string]struct {
		state  *controllerv1.GetStateResponse
		fleet  *controllerv1.GetFleetResponse
		chains []string
		want   []finding
	}{
		"no others": {nil, nil, nil, nil},
		"alike":     {self, &controllerv1.GetFleetResponse{Machines: []*controllerv1.FleetMachine{here}}, dropping, []finding{alike}},
		"different": {nil, &controllerv1.GetFleetResponse{Alarms: []string{"different configs"}, Machines: []*controllerv1.FleetMachine{here, absent}}, nil, []finding{{gradeFail, "fleet", "different configs"}, isAbsent}},
		"none is heard, a firewall drops": {self, &controllerv1.GetFleetResponse{Machines: []*controllerv1.FleetMachine{here, absent}}, dropping, []finding{
			isAbsent, {gradeWarn, "fleet", "no peer is heard, and a firewall of this machine may drop what they send (inet filter input: policy drop): accept UDP port 9477 from the addresses of `peers`"}, alike,
		}},
		"none is heard, nothing drops": {self, &controllerv1.GetFleetResponse{Machines: []*controllerv1.FleetMachine{here, absent}}, nil, []finding{isAbsent, alike}},
		"one is heard":                 {self, &controllerv1.GetFleetResponse{Machines: []*controllerv1.FleetMachine{here, absent, heard}}, dropping, []finding{isAbsent, alike}},
		"no secret": {nil, &controllerv1.GetFleetResponse{Away: "write secret_file", Machines: []*controllerv1.FleetMachine{absent}}, dropping, []finding{
			{gradeWarn, "fleet", "machines are not compared: write secret_file"},
		}},
		"etcd, alike": {etcd, &controllerv1.GetFleetResponse{Machines: []*controllerv1.FleetMachine{here, absent}}, dropping, nil},
		"etcd, different": {etcd, &controllerv1.GetFleetResponse{Alarms: []string{"different tables"}}, dropping, []finding{
			{gradeFail, "fleet", "different tables"},
		}},
	} {
		p := diagnosis{state: c.state, fleet: c.fleet, host: firewalledHost{chains: c.chains}}
		if p.compared(t.Context()); !slices.Equal(p.findings, c.want) {
			t.Errorf("%s: %v, want %v", name, p.findings, c.want)
		}
	}
}
