package diagnose

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

type firewalledHost struct {
	fakeHost
	chains []string
}

func (h firewalledHost) inputDrops(context.Context) ([]string, error) { return h.chains, nil }

func TestDoctorSuspectsAFirewallOnlyWhereNoProbeIsAnswered(t *testing.T) {
	check := func(passed bool) *controllerv1.BackendCheck {
		return &controllerv1.BackendCheck{Via: "tunnel", Last: &controllerv1.Probe{Passed: passed}}
	}
	dropping := []string{"inet filter input: policy drop"}
	for _, c := range []struct {
		name   string
		checks []*controllerv1.BackendCheck
		chains []string
		want   bool
	}{
		{"none is answered", []*controllerv1.BackendCheck{check(false), check(false)}, dropping, true},
		{"one is answered", []*controllerv1.BackendCheck{check(false), check(true)}, dropping, false},
		{"no chain drops", []*controllerv1.BackendCheck{check(false)}, nil, false},
		{"none was sent", nil, dropping, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := diagnosis{host: firewalledHost{chains: c.chains}, tunnelChecks: c.checks, running: &planv1.Plan{
				Probing: &planv1.Probing{Ports: &planv1.PortRange{First: 20000, Last: 32767}},
			}}
			if found := !p.noFirewall(t.Context()); found != c.want || found != (len(p.findings) == 1) {
				t.Fatalf("found %v", p.findings)
			}
			for _, f := range p.findings {
				if f.Grade != gradeFail || !strings.Contains(f.Text, "inet filter input: policy drop") || !strings.Contains(f.Text, "20000-32767") {
					t.Errorf("found %+v", f)
				}
			}
		})
	}
}

func TestDroppingChainsOfARuleset(t *testing.T) {
	rule := func(chain, verdict string) string {
		return fmt.Sprintf(`{"rule": {"family": "inet", "table": "filter", "chain": %q, "expr": [{"match": {}}, %s]}}`, chain, verdict)
	}
	chain := func(name, more string) string {
		return fmt.Sprintf(`{"chain": {"family": "inet", "table": "filter", "name": %q%s}}`, name, more)
	}
	printed := fmt.Sprintf(`{"nftables": [{"metainfo": {"version": "1.0.6"}}, %s]}`, strings.Join([]string{
		chain("input", `, "hook": "input", "policy": "drop"`), chain("more", ""), chain("quiet", `, "hook": "input", "policy": "accept"`),
		chain("out", `, "hook": "output", "policy": "drop"`),
		rule("input", `{"accept": null}`), rule("more", `{"drop": null}`), rule("more", `{"reject": {"type": "icmp"}}`),
		rule("quiet", `{"counter": {"packets": 1}}`), rule("out", `{"drop": null}`),
	}, ", "))
	got, err := droppingChains([]byte(printed))
	want := []string{"inet filter input: policy drop", "inet filter more: a rule that drops"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if _, err := droppingChains([]byte("no JSON")); err == nil {
		t.Error("no error for what is no ruleset")
	}
}
