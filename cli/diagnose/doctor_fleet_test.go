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
	etcd := &controllerv1.GetStateResponse{Config: &controllerv1.Config{Etcd: &controllerv1.Etcd{}}}
	for name, c := range map[string]struct {
		state *controllerv1.GetStateResponse
		fleet *controllerv1.GetFleetResponse
		want  []finding
	}{
		"no others": {nil, nil, nil},
		"alike": {nil, &controllerv1.GetFleetResponse{Machines: []*controllerv1.FleetMachine{here}}, []finding{
			{gradeOK, "fleet", "what the machines run does not differ (`guideway fleet`)"},
		}},
		"different": {nil, &controllerv1.GetFleetResponse{Alarms: []string{"different configs"}, Machines: []*controllerv1.FleetMachine{here, absent}}, []finding{
			{gradeFail, "fleet", "different configs"}, {gradeWarn, "fleet", "lb-2 is not compared: its controller has not been heard"},
		}},
		"no secret": {nil, &controllerv1.GetFleetResponse{Away: "write secret_file", Machines: []*controllerv1.FleetMachine{absent}}, []finding{
			{gradeWarn, "fleet", "machines are not compared: write secret_file"},
		}},
		"etcd, alike": {etcd, &controllerv1.GetFleetResponse{Machines: []*controllerv1.FleetMachine{here, absent}}, nil},
		"etcd, different": {etcd, &controllerv1.GetFleetResponse{Alarms: []string{"different tables"}}, []finding{
			{gradeFail, "fleet", "different tables"},
		}},
	} {
		p := diagnosis{state: c.state, fleet: c.fleet}
		if p.compared(); !slices.Equal(p.findings, c.want) {
			t.Errorf("%s: %v, want %v", name, p.findings, c.want)
		}
	}
}
