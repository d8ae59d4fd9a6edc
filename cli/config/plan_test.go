package config

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
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

func TestConfigPlanForPrograms(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, nil)
	stdout, _, err := guideway(t, "config", "plan", "-o", "json", configFileOf(t, "different"), "--run-dir", runDir)
	var shown shownPlan
	if decoded := json.Unmarshal([]byte(stdout), &shown); decoded != nil || !errors.Is(err, commandline.ErrChanges) {
		t.Fatal(decoded, err)
	}
	if !shown.Changed || shown.Services[1].Established.Breaking != 40 || shown.Changes[0].Fields[0].After != "gue" || !shown.Routes[0].Announced || shown.Untracked.Quota != 5 || shown.Services[2].SharesAs != "web" || !shown.LastSessionEnds || !shown.Sessions[1].Removed {
		t.Errorf("%+v", shown)
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
