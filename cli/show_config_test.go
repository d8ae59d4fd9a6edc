package main

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// etcdsTroubles: what of etcd is wrong, what `show config` says, what doctor says.
var etcdsTroubles = []struct {
	etcd  *controllerv1.Etcd
	shown []string
	found finding
}{
	{
		&controllerv1.Etcd{Generation: 7, GenerationStored: 7, AnsweredAt: &timestamppb.Timestamp{Seconds: 1}, Endpoints: []string{"https://10.0.0.5:2379"}},
		[]string{"etcd answers", "generation in use 7", "generation in etcd 7", "registered in etcd yes", "etcd's endpoints https://10.0.0.5:2379"},
		finding{gradeOK, "etcd", "answers and holds config generation 7; 7 runs here"},
	},
	{
		&controllerv1.Etcd{Generation: 7, GenerationStored: 7, Away: "etcd does not answer: connection refused", AnsweredAt: &timestamppb.Timestamp{Seconds: 1}},
		[]string{"etcd away: etcd does not answer: connection refused"},
		finding{gradeWarn, "etcd", "etcd does not answer: connection refused; config generation 7 goes on, and the next one is taken when it answers"},
	},
	{
		&controllerv1.Etcd{Generation: 7, GenerationStored: 8, Unusable: "config generation 8 in etcd is damaged", AnsweredAt: &timestamppb.Timestamp{Seconds: 1}},
		[]string{"etcd answers, but config generation 8 in etcd is damaged", "generation in etcd 8"},
		finding{gradeFail, "etcd", "config generation 8 in etcd is damaged; config generation 7 goes on: apply a config (`guideway config apply`)"},
	},
	{
		&controllerv1.Etcd{Generation: 7, AnsweredAt: &timestamppb.Timestamp{Seconds: 1}},
		[]string{"generation in etcd none"},
		finding{gradeFail, "etcd", "holds no config, and generation 7 runs here: were its data lost? `guideway config apply` stores the one that is to run"},
	},
}

func Test_what_is_wrong_with_etcd_is_shown_with_what_runs_all_the_same(t *testing.T) {
	for _, c := range etcdsTroubles {
		var out bytes.Buffer
		if err := configListing(&controllerv1.Config{Source: "a.yaml", Etcd: c.etcd}).print(&out, "table"); err != nil {
			t.Fatal(err)
		}
		for _, line := range c.shown {
			if !strings.Contains(fields(out.String()), line) {
				t.Errorf("no %q in\n%s", line, out.String())
			}
		}
		p := diagnosis{state: &controllerv1.GetStateResponse{Config: &controllerv1.Config{Etcd: c.etcd}}}
		p.etcd()
		if len(p.findings) != 1 || p.findings[0] != c.found {
			t.Errorf("doctor finds %v", p.findings)
		}
	}
	p := diagnosis{state: &controllerv1.GetStateResponse{Config: &controllerv1.Config{Etcd: &controllerv1.Etcd{Alarms: []string{"NOSPACE"}}}}}
	p.etcd()
	if len(p.findings) != 2 || p.findings[1].grade != gradeWarn || !strings.Contains(p.findings[1].text, "alarms (NOSPACE)") {
		t.Errorf("doctor finds %v", p.findings)
	}
	p = diagnosis{state: &controllerv1.GetStateResponse{Config: &controllerv1.Config{Etcd: &controllerv1.Etcd{Generation: 7, GenerationStored: 7, NotRegistered: "etcd denies it"}}}}
	p.etcd()
	if len(p.findings) != 2 || p.findings[1] != (finding{gradeWarn, "etcd", "this machine is not registered there, so others do not see it: etcd denies it"}) {
		t.Errorf("doctor finds %v", p.findings)
	}
	p = diagnosis{state: &controllerv1.GetStateResponse{Config: &controllerv1.Config{}}}
	if p.etcd(); len(p.findings) > 0 {
		t.Errorf("without etcd doctor finds %v", p.findings)
	}
}

func Test_a_config_of_files_is_shown_without_etcd(t *testing.T) {
	out, _, err := guideway(t, "show", "config", "--run-dir", both(t, &fakeController{}, &fakeForwarder{}))
	if err != nil || !strings.Contains(fields(out), "newest no, it is refused: a.yaml:3") || strings.Contains(out, "etcd") {
		t.Errorf("%v\n%s", err, out)
	}
}
