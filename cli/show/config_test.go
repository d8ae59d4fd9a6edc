package show

import (
	"bytes"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/cli/clitest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// etcdsTroubles: what of etcd is wrong, and what `show config` says.
var etcdsTroubles = []struct {
	etcd  *controllerv1.Etcd
	shown []string
}{
	{
		&controllerv1.Etcd{Config: 7, ConfigStored: 7, AnsweredAt: &timestamppb.Timestamp{Seconds: 1}, Endpoints: []string{"https://10.0.0.5:2379"}},
		[]string{"etcd answers", "config in use 7", "config in etcd 7", "registered in etcd yes", "etcd's endpoints https://10.0.0.5:2379"},
	},
	{
		&controllerv1.Etcd{Config: 7, ConfigStored: 7, Away: "etcd does not answer: connection refused", AnsweredAt: &timestamppb.Timestamp{Seconds: 1}},
		[]string{"etcd away: etcd does not answer: connection refused"},
	},
	{
		&controllerv1.Etcd{Config: 7, ConfigStored: 8, Unusable: "config 8 in etcd is damaged", AnsweredAt: &timestamppb.Timestamp{Seconds: 1}},
		[]string{"etcd answers, but config 8 in etcd is damaged", "config in etcd 8"},
	},
	{
		&controllerv1.Etcd{Config: 7, AnsweredAt: &timestamppb.Timestamp{Seconds: 1}},
		[]string{"config in etcd none"},
	},
}

func Test_what_is_wrong_with_etcd_is_shown_with_what_runs_all_the_same(t *testing.T) {
	for _, c := range etcdsTroubles {
		var out bytes.Buffer
		if err := configListing(&controllerv1.Config{Source: "a.yaml", Etcd: c.etcd}).Print(&out, "table"); err != nil {
			t.Fatal(err)
		}
		for _, line := range c.shown {
			if !strings.Contains(clitest.Fields(out.String()), line) {
				t.Errorf("no %q in\n%s", line, out.String())
			}
		}
	}
}

func Test_a_config_of_files_is_shown_without_etcd(t *testing.T) {
	out, _, err := guideway(t, "show", "config", "--run-dir", clitest.Both(t, &clitest.FakeController{}, &clitest.FakeForwarder{}))
	if err != nil || !strings.Contains(clitest.Fields(out), "newest no, it is refused: a.yaml:3") || strings.Contains(out, "etcd") {
		t.Errorf("%v\n%s", err, out)
	}
}
