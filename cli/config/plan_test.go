package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func configFileOf(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "new.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestConfigPlanShowsWhatWouldChange(t *testing.T) {
	c := &clitest.FakeController{}
	runDir := clitest.Both(t, c, nil)
	large := "different" + strings.Repeat("# comment\n", 10_000)
	stdout, stderr, err := guideway(t, "config", "plan", configFileOf(t, large), "--run-dir", runDir)
	if !errors.Is(err, commandline.ErrChanges) || c.Offered != large {
		t.Errorf("%v: the controller got %d bytes", err, len(c.Offered))
	}
	for _, want := range []string{
		"changes to what runs (config 42):",
		"service web encap: gre to gue", "service web dscp: - to 46", "backend web-3 added",
		"idle 0.0 % 3 3 0 0 0", "web 33.4 % 745 700 40 3 2",
		"web web-1 100.0 % 66.6 %", "web web-3 0.0 % 33.4 %", "web-tls as those of web",
		"203.0.113.11/32 announced its services have backends",
		"10.0.0.254 (AS 64513) ends, begins anew 3 asn: 64513 to 64514", "10.0.0.253 (AS 64513) ends 3 the neighbor is removed",
		"note: every BGP session of this machine ends",
		"note: the forwarder refuses this until it is restarted: other devices",
		"note: not yet probed, and taken for active: web-3",
		"web-2 ok tunnel answers directly, not at the VIP 203.0.113.10: connection refused",
		"note: new probes, tried once from this machine: 2 passed, 1 failed, 1 could not be tried",
		"note: probes that could not be tried: no healthy forwarder runs a plan that has this tunnel",
		"note: web: of connections that open or close, 4 would break, 0 move, 0 are not known",
		"note: web holds its connections_quota:", "note: 5 new flows since the forwarder started are not tracked",
	} {
		if !strings.Contains(clitest.Fields(stdout), want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
	if stderr != "warning: new.yaml:2: careful\n" {
		t.Errorf("stderr %q", stderr)
	}
}

// One weight of one backend in a site of 10,000 services, each pool of which has a hundred.
func TestAPlanOfOneWeightIsOneScreen(t *testing.T) {
	r := &controllerv1.PlanConfigResponse{Number: 7, Changed: true, Changes: []*controllerv1.ConfigChange{
		{Kind: "pool", Name: "pool-0", What: "changed", Fields: []*controllerv1.FieldChange{{Field: "backend web-0 weight", Before: "1", After: "2"}}},
	}}
	for i := range 10_000 {
		s := &controllerv1.ServiceChange{Service: fmt.Sprintf("service-%d", i), TableEntries: 65_537, Established: &controllerv1.ConnectionChange{Staying: uint64(i)}}
		if i < 100 {
			s.TableEntriesChanged, s.Established.Moving = 640, uint64(i)
			if i > 0 {
				s.SharesAs = "service-0"
			} else {
				for b := range 200 {
					s.Backends = append(s.Backends, &controllerv1.ShareChange{Backend: fmt.Sprintf("web-%d", b), ShareBefore: 0.005, ShareAfter: 0.004975})
				}
				s.Backends[0].ShareAfter = 0.00995
			}
		}
		r.Services = append(r.Services, s)
	}
	var short, all bytes.Buffer
	if err := errors.Join(printPlan(&short, "table", false, r), printPlan(&all, "table", true, r)); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(short.String(), "\n"); n > 45 {
		t.Errorf("%d lines:\n%s", n, short.String())
	}
	for _, want := range []string{
		"service-99 1.0 % 198 99 0 99 0", "(81 rows more: --all shows them)", "service-0 web-0 0.5 % 1.0 %",
		"service-0 web-1 and 198 more 0.5 % 0.5 %", "service-1 and 98 more as those of service-0",
	} {
		if !strings.Contains(clitest.Fields(short.String()), want) {
			t.Errorf("%q is missing in\n%s", want, short.String())
		}
	}
	if n := strings.Count(all.String(), "\n"); n < 10_300 {
		t.Errorf("all is %d lines", n)
	}
}

func TestConfigPlanForPrograms(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, nil)
	stdout, _, err := guideway(t, "config", "plan", "-o", "json", configFileOf(t, "different"), "--run-dir", runDir)
	var shown controllerv1.PlanConfigResponse
	if decoded := protojson.Unmarshal([]byte(stdout), &shown); decoded != nil || !errors.Is(err, commandline.ErrChanges) {
		t.Fatal(decoded, err)
	}
	if !shown.Changed || shown.Services[1].Established.Breaking != 40 || shown.Changes[0].Fields[0].After != "gue" || !shown.Routes[0].Announced || shown.UntrackedQuota != 5 || shown.Services[2].SharesAs != "web" || !shown.LastBgpSessionEnds || !shown.BgpSessions[1].Removed {
		t.Error(stdout)
	}
}

func TestConfigPlanWithoutAChange(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, nil)
	stdout, _, err := guideway(t, "config", "plan", configFileOf(t, "same"), "--run-dir", runDir)
	if err != nil || stdout != "no change: the config means what runs (config 42)\n" {
		t.Errorf("%q %v", stdout, err)
	}
}

func TestConfigPlanOfABadConfig(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, nil)
	_, _, err := guideway(t, "config", "plan", configFileOf(t, "bad"), "--run-dir", runDir)
	if err == nil || !strings.Contains(err.Error(), "new.yaml:1: unknown field") || commandline.ExitCode(err) != commandline.ExitFailed {
		t.Errorf("got %v", err)
	}
}
