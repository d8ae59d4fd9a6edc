package diagnose

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// etcdsFindings: what of etcd is wrong, and what doctor says.
var etcdsFindings = []struct {
	etcd  *controllerv1.Etcd
	found finding
}{
	{
		&controllerv1.Etcd{Config: 7, ConfigStored: 7, AnsweredAt: &timestamppb.Timestamp{Seconds: 1}, Endpoints: []string{"https://10.0.0.5:2379"}},
		finding{gradeOK, "etcd", "answers and holds config 7; 7 runs here"},
	},
	{
		&controllerv1.Etcd{Config: 7, ConfigStored: 7, Away: "etcd does not answer: connection refused", AnsweredAt: &timestamppb.Timestamp{Seconds: 1}},
		finding{gradeWarn, "etcd", "etcd does not answer: connection refused; config 7 goes on, and the next one is taken when it answers"},
	},
	{
		&controllerv1.Etcd{Config: 7, ConfigStored: 8, Unusable: "config 8 in etcd is damaged", AnsweredAt: &timestamppb.Timestamp{Seconds: 1}},
		finding{gradeFail, "etcd", "config 8 in etcd is damaged; config 7 goes on: apply a config (`guideway config apply`)"},
	},
	{
		&controllerv1.Etcd{Config: 7, AnsweredAt: &timestamppb.Timestamp{Seconds: 1}},
		finding{gradeFail, "etcd", "holds no config, and config 7 runs here: were its data lost? `guideway config apply` stores the one that is to run"},
	},
}

func Test_what_is_wrong_with_etcd_is_found(t *testing.T) {
	for _, c := range etcdsFindings {
		p := diagnosis{state: &controllerv1.GetStateResponse{Config: &controllerv1.Config{Etcd: c.etcd}}}
		p.etcd()
		if len(p.findings) != 1 || p.findings[0] != c.found {
			t.Errorf("doctor finds %v", p.findings)
		}
	}
	p := diagnosis{state: &controllerv1.GetStateResponse{Config: &controllerv1.Config{Etcd: &controllerv1.Etcd{Alarms: []string{"NOSPACE"}}}}}
	p.etcd()
	if len(p.findings) != 2 || p.findings[1].Grade != gradeWarn || !strings.Contains(p.findings[1].Text, "alarms (NOSPACE)") {
		t.Errorf("doctor finds %v", p.findings)
	}
	p = diagnosis{state: &controllerv1.GetStateResponse{Config: &controllerv1.Config{Etcd: &controllerv1.Etcd{Config: 7, ConfigStored: 7, NotRegistered: "etcd denies it"}}}}
	p.etcd()
	if len(p.findings) != 2 || p.findings[1] != (finding{gradeWarn, "etcd", "this machine is not registered there, so others do not see it: etcd denies it"}) {
		t.Errorf("doctor finds %v", p.findings)
	}
	p = diagnosis{state: &controllerv1.GetStateResponse{Config: &controllerv1.Config{}}}
	if p.etcd(); len(p.findings) > 0 {
		t.Errorf("without etcd doctor finds %v", p.findings)
	}
}
