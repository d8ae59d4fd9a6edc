package run

import (
	"os"
	"reflect"
	"strings"
	"testing"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func TestLimitsAreReadOfAPage(t *testing.T) {
	page := `# TYPE guideway_connections_refused_total counter
guideway_connections_refused_total{cause="table_full"} 7
guideway_connections_refused_total{cause="quota"} 0
guideway_connections_unconfirmed_at_share_total 3
guideway_rx_lost_packets_total{interface="eth1",queue="0",where="kernel"} 1
guideway_rx_lost_packets_total{interface="eth1",queue="0",where="ring_full"} 20
guideway_rx_lost_packets_total{interface="eth1",queue="0",where="too_long"} 300
guideway_rx_lost_packets_total{interface="eth2",queue="1",where="fill_empty"} 4000
guideway_drop_packets_total{reason="tx_full"} 5
guideway_drop_packets_total{reason="no_service"} 6
`
	got := map[string]uint64{}
	for _, limit := range limitsOf(page) {
		got[limit.Name] = limit.Count
	}
	if want := map[string]uint64{"connections_max": 7, "connections_quota": 0, "connections_share": 3, "receive_rings": 4021, "tx_full": 5}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	status := &forwarderv1.GetStatusResponse{KernelCache: &forwarderv1.KernelCache{TargetsRefused: 9}}
	if targets := targetsOf(status); targets.Count != 9 || !targets.IsState {
		t.Errorf("%+v", targets)
	}
}

// The forwarder's own words, as they are documented.
func TestEachLimitIsCountedAndDocumented(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	counters, events, page := read("docs/counters.md"), read("docs/events.md"), read("forwarder/src/observe/metrics/page.rs")
	for _, limit := range limits {
		if !strings.Contains(counters, "| `"+limit.metric) {
			t.Errorf("the forwarder has no %s", limit.metric)
		}
		if !strings.Contains(events, "`"+limit.name+"`") {
			t.Errorf("docs/events.md lacks %s", limit.name)
		}
		for _, label := range limit.labels {
			_, value, _ := strings.Cut(label, "=")
			isReason := limit.metric == dropMetric && strings.Contains(counters, "| `"+strings.Trim(value, `"`)+"` |")
			if !isReason && !strings.Contains(page, value) {
				t.Errorf("the forwarder has no %s{%s}", limit.metric, label)
			}
		}
	}
}
