package demo

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func environment(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

func TestTheEnvironmentOverridesDefaults(t *testing.T) {
	o, err := Defaults().FromEnvironment(environment(map[string]string{
		"SEED": "7", "BACKENDS": "9", "LOAD_BALANCERS": "3", "CONNECTIONS": "600", "EVENTS": "steady, steady,kill_backend", "DEMO_REPORT": "r.json",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if o.Seed != 7 || o.Backends != 9 || o.LoadBalancers != 3 || o.Connections != 600 || o.Report != "r.json" ||
		!slices.Equal(o.Events, []string{"steady", "steady", "kill_backend"}) {
		t.Errorf("options %+v", o)
	}
	if o, err := Defaults().FromEnvironment(environment(nil)); err != nil || o.Backends != 4 || o.Connections != 500 {
		t.Errorf("an empty environment gave %+v, %v", o, err)
	}
}

func TestBadOptionsAreRefusedByName(t *testing.T) {
	for want, pairs := range map[string]map[string]string{
		"SEED=x":            {"SEED": "x"},
		"CONNECTIONS=many":  {"CONNECTIONS": "many"},
		"backends 1":        {"BACKENDS": "1"},
		"load balancers 0":  {"LOAD_BALANCERS": "0"},
		"connections 0":     {"CONNECTIONS": "0"},
		`event "explode"`:   {"EVENTS": "steady,explode"},
		"needs 2 or more":   {"EVENTS": "kill_load_balancer", "LOAD_BALANCERS": "1"},
		"BACKENDS=4.5: not": {"BACKENDS": "4.5"},
	} {
		o, err := Defaults().FromEnvironment(environment(pairs))
		if err == nil {
			_, err = o.check()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v", pairs, err)
		}
	}
}

func TestWithoutEventsAllAreDoneThatCanBe(t *testing.T) {
	o, err := Defaults().check()
	if err != nil || !slices.Equal(o.Events, EventNames()) || len(o.Events) != 7 {
		t.Errorf("events %v, %v", o.Events, err)
	}
	o = Defaults()
	o.LoadBalancers = 1
	if o, err = o.check(); err != nil || !slices.Equal(o.Events, []string{"steady", "add_backend", "drain_backend", "kill_backend"}) {
		t.Errorf("with one load balancer %v, %v", o.Events, err)
	}
}

func exampleReport() *Report {
	ms := 6.5
	return &Report{
		Events: []EventResult{{
			Name: "kill_backend", Requests: 12345, Failed: 3, FailedAllowed: 3, Connections: 500, Broken: 120, BrokenAllowed: 125,
			packets: map[string]uint64{"lb-1": 1000, "lb-2": 2000},
		}},
		Shares:     []Share{{Backend: "be-1", Share: 0.5, Ideal: 0.5, Sigma: 0.01}},
		WithdrawMS: &ms, machines: []string{"lb-1", "lb-2"},
	}
}

// The names are a contract with those who read the file.
func TestTheReportHasTheAgreedFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	if err := exampleReport().write(path); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, content); err != nil {
		t.Fatal(err)
	}
	want := `{"events":[{"name":"kill_backend","requests":12345,"failed":3,"failed_allowed":3,"connections":500,"broken":120,"broken_allowed":125}],` +
		`"shares":[{"backend":"be-1","share":0.5,"ideal":0.5,"sigma":0.01}],"withdraw_ms":6.5,"unaccounted_packets":0}`
	if compact.String() != want {
		t.Errorf("report\n%s\nwant\n%s", compact.String(), want)
	}
}

func TestTheScreenNamesWhatWentWrong(t *testing.T) {
	report := exampleReport()
	var good, bad strings.Builder
	report.print(&good)
	if !report.Good() || !strings.Contains(good.String(), "everything as expected") || !strings.Contains(good.String(), "12,345") {
		t.Errorf("screen\n%s", good.String())
	}
	report.Events[0].problem("%d packets vanished", 7)
	report.print(&bad)
	if report.Good() || !strings.Contains(bad.String(), "FAILED kill_backend: 7 packets vanished") || !strings.Contains(bad.String(), "NOT as expected") {
		t.Errorf("screen\n%s", bad.String())
	}
	if lines := strings.Count(good.String(), "\n"); lines > 24 {
		t.Errorf("%d lines do not fit one screen", lines)
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -123: "-123", -1234: "-1,234"} {
		if got := thousands(n); got != want {
			t.Errorf("%d: %q", n, got)
		}
	}
}
