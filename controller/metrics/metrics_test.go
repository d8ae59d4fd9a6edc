package metrics

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/sinks/fleet"
	"github.com/guideway/guideway/controller/sinks/session"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/guideway/guideway/tools/counters"
)

func state() *controllerv1.GetStateResponse {
	return &controllerv1.GetStateResponse{
		Machine:   &controllerv1.Machine{State: "serving"},
		Config:    &controllerv1.Config{LoadedAt: timestamppb.Now(), Stale: true, NotKept: "no space left on device", Etcd: &controllerv1.Etcd{Alarms: []string{"NOSPACE"}}},
		Forwarder: &controllerv1.Forwarder{Healthy: true, GenerationAccepted: 7},
		Services: []*controllerv1.Service{{Name: "web", BackendsActive: 1, BackupPools: []string{"spare"}, OnBackup: true}, {Name: "dns", Drain: &controllerv1.Drain{}}, {Name: "game", Buckets: &controllerv1.Buckets{
			Moving: 2, MoveAgeMax: durationpb.New(time.Hour), Agreement: &controllerv1.BucketAgreement{LoadBalancers: []string{"lb-1"}}}}},
		Backends: []*controllerv1.Backend{
			{Service: "web", Name: "web-1", State: "active", Weight: 3, WeightPercent: 100},
			{Service: "web", Name: "web-2", State: "down", Weight: 3, WeightPercent: 100, Held: true},
			{Service: "web", Name: "web-3", State: "draining", Weight: 3, WeightPercent: 100},
			{Service: "web", Name: "web-4", State: "active", Weight: 3, WeightPercent: 20},
		},
		Routes: []*controllerv1.Route{{Prefix: "203.0.113.10/32", Announced: true}},
		Peers:  []*controllerv1.Peer{{Name: "lb-2", Healthy: true}, {Name: "lb-3"}},
		MemberSources: []*controllerv1.MemberSource{
			{Name: "web", Backends: 4, Waiting: 3, LastSuccess: &timestamppb.Timestamp{Seconds: 11}},
			{Name: "mail", Problem: "no such file"},
		},
		Neighbors: []*controllerv1.Neighbor{{Address: "10.0.0.254", State: "established", AnnouncedPrefixes: 1}},
	}
}

const forwardersPage = `# HELP guideway_build_info What runs.
# TYPE guideway_build_info gauge
guideway_build_info{version="0.1.0"} 1
# HELP guideway_drop_packets_total Dropped packets.
# TYPE guideway_drop_packets_total counter
guideway_drop_packets_total{reason="no_service"} 5
`

type agentSource struct{}

func (agentSource) Results() session.Counts {
	return map[session.Result]uint64{session.ResultAccepted: 3, session.ResultForged: 0}
}

func (agentSource) Heard() map[string]time.Time {
	return map[string]time.Time{"web-1": time.UnixMilli(9500)}
}

func counted(forwarder func(context.Context) (string, error)) *Metrics {
	m := New("1.2.3", Sources{
		State:      func(context.Context) (*controllerv1.GetStateResponse, error) { return state(), nil },
		Forwarder:  forwarder,
		LateProbes: func() uint64 { return 2 },
		Fleet: func() *Fleet {
			return &Fleet{Registered: map[string]bool{"lb-2": false}, Differ: map[fleet.Aspect]bool{fleet.AspectLive: true}, Messages: map[session.Result]uint64{session.ResultForged: 4}}
		},
		Certificates: func() map[string]time.Time {
			return map[string]time.Time{"cert_file": time.Now().Add(36 * time.Hour)}
		},
		Agents: agentSource{},
	})
	m.Probed(true, 3*time.Millisecond, 20*time.Millisecond)
	m.Probed(false, time.Second, time.Millisecond)
	m.Certificate("gone", "tls", time.Unix(5, 0))
	m.ForgetCertificates()
	m.Certificate("web-1", "tls", time.Unix(7, 0))
	m.Reloaded(true, time.Unix(1000, 0))
	m.Reloaded(false, time.Unix(2000, 0))
	return m
}

func scrape(t *testing.T, forwarder func(context.Context) (string, error)) string {
	t.Helper()
	made, err := counted(forwarder).Page(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	page := string(made)
	// What a Prometheus would say to it; a name that comes twice is an error.
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(page)); err != nil {
		t.Errorf("the page cannot be parsed: %v\n%s", err, page)
	}
	return page
}

func TestThePageHasBothProcessesUnderTheirNames(t *testing.T) {
	page := scrape(t, func(context.Context) (string, error) { return forwardersPage, nil })
	for _, want := range []string{
		`guideway_build_info{goversion=`,
		`guideway_health_checks_total{result="pass"} 1`,
		`guideway_health_checks_total{result="fail"} 1`,
		`guideway_health_check_duration_seconds_count 2`,
		`guideway_health_checks_late_total 2`,
		`guideway_health_check_start_delay_seconds_bucket{le="0.01"} 1`,
		`guideway_health_check_start_delay_max_seconds 0.02`,
		`guideway_api_certificate_days_left{file="cert_file"} 1.49`,
		`guideway_fleet_machine_registered{machine="lb-2"} 0`,
		`guideway_fleet_fingerprints_differ{of="configured"} 0`,
		`guideway_fleet_fingerprints_differ{of="live"} 1`,
		`guideway_fleet_fingerprints_differ{of="config"} 0`,
		`guideway_peer_messages_total{result="forged"} 4`,
		`guideway_agent_messages_total{result="accepted"} 3`,
		`guideway_agent_messages_total{result="forged"} 0`,
		`guideway_agent_state_timestamp_seconds{backend="web-1"} 9.5`,
		`guideway_config_last_reload_success 0`,
		`guideway_config_last_reload_timestamp_seconds 1000`,
		`guideway_config_generation 7`,
		`guideway_config_loaded 1`,
		`guideway_config_stale 1`,
		`guideway_config_kept 0`,
		`guideway_forwarder_up 1`,
		`guideway_etcd_up 1`,
		`guideway_etcd_alarms 1`,
		`guideway_service_drained{service="dns"} 1`,
		`guideway_buckets_moving{service="game"} 2`,
		`guideway_bucket_map_acknowledged{machine="lb-1",service="game"} 1`,
		`guideway_backend_up{backend="web-1",service="web"} 1`,
		`guideway_backend_up{backend="web-2",service="web"} 0`,
		`guideway_backend_up{backend="web-3",service="web"} 1`,
		`guideway_backend_weight{backend="web-1",service="web"} 3`,
		`guideway_backend_weight{backend="web-2",service="web"} 0`,
		`guideway_service_on_backup{service="web"} 1`,
		`guideway_backend_certificate_expiry_timestamp_seconds{backend="web-1",check="tls"} 7`,
		`guideway_backend_held{backend="web-2",service="web"} 1`,
		`guideway_backend_weight{backend="web-4",service="web"} 0.6`,
		`guideway_backend_weight{backend="web-3",service="web"} 0`,
		`guideway_route_announced{prefix="203.0.113.10/32"} 1`,
		`guideway_pool_source_up{pool="web"} 1`,
		`guideway_pool_source_up{pool="mail"} 0`,
		`guideway_pool_source_last_success_timestamp_seconds{pool="web"} 11`,
		`guideway_pool_source_last_success_timestamp_seconds{pool="mail"} 0`,
		`guideway_pool_source_backends{pool="web"} 4`,
		`guideway_pool_source_backends_waiting{pool="web"} 3`,
		`guideway_peer_up{peer="lb-2"} 1`,
		`guideway_peer_up{peer="lb-3"} 0`,
		`guideway_bgp_session_up{neighbor="10.0.0.254"} 1`,
		`guideway_bgp_announced_prefixes{neighbor="10.0.0.254"} 1`,
		`guideway_drop_packets_total{reason="no_service"} 5`,
	} {
		if !strings.Contains(page, want+"\n") && !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(page, `version="0.1.0"`) {
		t.Error("build_info of the forwarder is on the page beside our own")
	}
}

func TestADeadForwarderCostsOnlyItsOwnPart(t *testing.T) {
	page := scrape(t, func(context.Context) (string, error) { return "", errors.New("gone") })
	if !strings.Contains(page, "guideway_config_generation 7") || strings.Contains(page, "guideway_drop_packets_total") {
		t.Error(page)
	}
}

func TestCountersTable(t *testing.T) {
	counters.Write(t, "metrics of the controller", counted(nil).registry)
}
