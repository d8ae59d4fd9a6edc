package config

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
)

// One service with a VIP to probe, one without.
const checkedByDefault = `
machine: {addresses: [10.0.0.1]}
prefix_groups: [{name: a, prefixes: [198.51.100.0/24]}]
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}
- {name: suffix, vips: [{prefix_group: a, suffix: 0.0.0.10, ports: [80], protocol: tcp}], pools: [web]}
pools: [{name: web, health_checks: [ok, said], backends: [{name: web-1, address: 10.1.0.11}]}]
health_checks: [{name: ok, tcp: {port: 80}}, {name: said, tcp: {port: 80}, via: direct}]
`

func TestConfigCheckSaysWhichWayHealthChecksGo(t *testing.T) {
	stdout, _, err := guideway(t, "config", "check", configFileOf(t, checkedByDefault))
	if err != nil {
		t.Fatal(err)
	}
	notes := slices.DeleteFunc(strings.Split(stdout, "\n"), func(line string) bool { return !strings.HasPrefix(line, "note: health check") })
	want := []string{
		"note: health check ok goes to the backends' own addresses for suffix: no VIP of theirs is an address of a family that machine.addresses has",
		"note: health checks through the tunnel to the VIPs, as clients' packets go: ok (`via: direct`: to the backends' own addresses)",
	}
	if !slices.Equal(notes, want) {
		t.Errorf("notes\n%s\nwant\n%s", strings.Join(notes, "\n"), strings.Join(want, "\n"))
	}
}

// A controller of a former version sent those directly that say nothing.
func TestConfigPlanNamesHealthChecksThatGoAnotherWay(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, nil)
	_, stderr, err := guideway(t, "config", "plan", configFileOf(t, checkedByDefault), "--run-dir", runDir)
	const want = "note: health check ok goes to the backends' own addresses now, and through the tunnel then: `via: direct` keeps it\n"
	if !errors.Is(err, commandline.ErrChanges) && err != nil || !strings.HasSuffix(stderr, want) {
		t.Errorf("%v: stderr %q", err, stderr)
	}
}
