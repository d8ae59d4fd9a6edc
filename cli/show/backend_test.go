package show

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/cli/clitest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func Test_one_backend_is_shown_with_all_its_checks(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, &clitest.FakeForwarder{})
	out, _, err := guideway(t, "show", "backends", "web-1", "--run-dir", runDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"SERVICE BACKEND ADDRESS WEIGHT STATE SINCE REASON PACKETS",
		"web web-1 10.1.0.11 2 active - ok: status 200 990",
		"CHECK KIND VERDICT SINCE LAST PROBE LATENCY AGE RESULT",
		"ok https up 1m0s failed (2 of 3) 500ms ",
		"no answer within 500ms",
		"tls tls up - passed 1.23ms",
		"TLS 1.3; the certificate expires in 3 days",
		"udp udp unknown - none yet - - -",
	} {
		if !strings.Contains(clitest.Fields(out), line) {
			t.Errorf("no %q in\n%s", line, out)
		}
	}
	if strings.Contains(out, "VIA") {
		t.Error("columns of -o wide are shown")
	}
	if out, _, _ = guideway(t, "show", "backends", "web-1", "-o", "wide", "--run-dir", runDir); !strings.Contains(clitest.Fields(out), "10.1.0.11 direct 1s 500ms web,canary") {
		t.Errorf("wide is\n%s", out)
	}
}

func Test_one_backend_as_JSON_has_numbers_for_machines(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, &clitest.FakeForwarder{})
	out, _, err := guideway(t, "show", "backends", "web-1", "-o", "json", "--run-dir", runDir)
	if err != nil {
		t.Fatal(err)
	}
	var shown controllerv1.GetBackendResponse
	if err := protojson.Unmarshal([]byte(out), &shown); err != nil {
		t.Fatal(err)
	}
	if len(shown.Backends) != 1 || shown.Backends[0].GetPackets() != 990 || len(shown.Checks) != 3 {
		t.Fatal(out)
	}
	ok := shown.Checks[0]
	if ok.Last.Passed || ok.Contradicting != 2 || !strings.Contains(out, `"latency_seconds": 0.5`) || !strings.Contains(out, `"interval": "1s"`) {
		t.Error(out)
	}
	if shown.Checks[2].Last != nil {
		t.Error("a check without a probe has one")
	}
}

func Test_an_unknown_backend_is_an_error_that_names_it(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, nil)
	_, _, err := guideway(t, "show", "backends", "web-9", "--run-dir", runDir)
	if err == nil || !strings.Contains(err.Error(), "web-9: no service of this machine has this backend") {
		t.Errorf("error %v", err)
	}
}

func Test_a_service_on_its_backup_pools_says_so(t *testing.T) {
	s := &controllerv1.Service{Name: "web", BackendsActive: 2, Backends: 5, Pools: []string{"web"}, BackupPools: []string{"spare", "far"}, OnBackup: true}
	if backendsText(s) != "2/5 (backup)" || poolsText(s) != "web (backup: spare,far)" {
		t.Errorf("%q, %q", backendsText(s), poolsText(s))
	}
}

func Test_how_a_backend_answers_is_a_sentence(t *testing.T) {
	backend := &controllerv1.Backend{}
	if got := answersText([]*controllerv1.Backend{backend}); got != "" {
		t.Errorf("not measured: %q", got)
	}
	backend.Answers = &controllerv1.Answers{Open: 1.25, Connections: 212, AcceptQueue: 3, Resets: 2}
	want := "no answers; 1.2 requests open at once, 212 connections, 3 not accepted yet, 2 RSTs"
	if got := answersText([]*controllerv1.Backend{backend}); got != want {
		t.Errorf("%q", got)
	}
	backend.Answers.Measured, backend.Answers.P50Seconds, backend.Answers.P99Seconds = 900, proto.Float64(0.0012), proto.Float64(0.0143)
	want = "900 answers, half within 1.2ms, 99 % within 14.3ms; 1.2 requests open at once, 212 connections, 3 not accepted yet, 2 RSTs"
	if got := answersText([]*controllerv1.Backend{backend, backend}); got != want {
		t.Errorf("%q", got)
	}
}
