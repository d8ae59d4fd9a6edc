package events

import (
	"slices"
	"strings"
	"testing"
)

func environment(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

func TestTheEnvironmentOverridesDefaults(t *testing.T) {
	o, err := Defaults().FromEnvironment(environment(map[string]string{
		"SEED": "7", "BACKENDS": "9", "LOAD_BALANCERS": "3", "CONNECTIONS": "600", "AGENTS": "0", "EVENTS": "steady, steady,kill_backend", "DEMO_REPORT": "r.json", "DEMO_PICTURE": "p.svg",
	}))
	if err != nil {
		t.Fatal(err)
	}
	if o.Seed != 7 || o.Backends != 9 || o.LoadBalancers != 3 || o.Connections != 600 || o.Agents || o.Report != "r.json" || o.Picture != "p.svg" ||
		!slices.Equal(o.Events, []string{"steady", "steady", "kill_backend"}) {
		t.Errorf("options %+v", o)
	}
	if o, err := Defaults().FromEnvironment(environment(nil)); err != nil || o.Backends != 4 || o.Connections != 500 || !o.Agents {
		t.Errorf("an empty environment gave %+v, %v", o, err)
	}
}

func TestBadOptionsAreRefusedByName(t *testing.T) {
	for want, pairs := range map[string]map[string]string{
		"SEED=x":            {"SEED": "x"},
		"CONNECTIONS=many":  {"CONNECTIONS": "many"},
		"AGENTS=yes":        {"AGENTS": "yes"},
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
	all := slices.DeleteFunc(EventNames(), func(name string) bool { return name == "kill_load_balancer_after_changes" })
	if err != nil || !slices.Equal(o.Events, all) || len(all) != 12 {
		t.Errorf("events %v, %v", o.Events, err)
	}
	o = Defaults()
	o.Agents = false
	const left = "move_buckets, scale_out, scale_in, kill_agent, generations_apart: stateless services need agents"
	if o, err = o.check(); err != nil || slices.ContainsFunc(o.Events, isStateless) || len(o.Events) != 7 || len(o.leftOut) != 1 || !strings.HasPrefix(o.leftOut[0], left) {
		t.Errorf("without agents %v, left out %q, %v", o.Events, o.leftOut, err)
	}
	o = Defaults()
	o.LoadBalancers = 1
	if o, err = o.check(); err != nil || !slices.Equal(o.Events, []string{"steady", "add_backend", "drain_backend", "kill_backend", "move_buckets", "scale_out", "scale_in", "kill_agent"}) {
		t.Errorf("with one load balancer %v, %v", o.Events, err)
	}
}

func TestWithoutARouterWhatNeedsOneIsLeftOutByName(t *testing.T) {
	o, err := Defaults().FromEnvironment(environment(map[string]string{"ROUTER": "none"}))
	if err != nil {
		t.Fatal(err)
	}
	checked, err := o.check()
	if err != nil || len(checked.Events) != 11 || len(checked.leftOut) != 1 || !strings.HasPrefix(checked.leftOut[0], "generations_apart: a router has to rehash") {
		t.Errorf("events %v, left out %q, %v", checked.Events, checked.leftOut, err)
	}
	o.Events = []string{"generations_apart"}
	if _, err := o.check(); err == nil || !strings.Contains(err.Error(), "event generations_apart: a router has to rehash") {
		t.Errorf("error %v", err)
	}
	if _, err := (MultipathOptions{Options: Options{Backends: 2, LoadBalancers: 2, Connections: 1, Router: o.Router}}).check(); err == nil || !strings.Contains(err.Error(), "ROUTER=none") {
		t.Errorf("Multipath TCP: error %v", err)
	}
}

func TestEventsOfStatelessServicesNeedAgents(t *testing.T) {
	o := Defaults()
	o.Events, o.Agents = []string{"move_buckets"}, false
	if _, err := o.check(); err == nil || !strings.Contains(err.Error(), "AGENTS=0") {
		t.Errorf("error %v", err)
	}
}

func TestTheEnvironmentOverridesDefaultsOfMultipath(t *testing.T) {
	o, err := MultipathDefaults().FromEnvironment(environment(map[string]string{"SEED": "7", "CONNECTIONS": "5", "MODE": "stateful", "EVENTS": "cut_link,cut_link"}))
	if err != nil || o.Seed != 7 || o.Connections != 5 || !o.Stateful || !slices.Equal(o.Events, []string{"cut_link", "cut_link"}) {
		t.Errorf("options %+v, %v", o, err)
	}
	if o, err := MultipathDefaults().check(); err != nil || o.Stateful || !slices.Equal(o.Events, MultipathEventNames()) {
		t.Errorf("defaults %+v, %v", o, err)
	}
	for want, pairs := range map[string]map[string]string{
		"MODE=best":        {"MODE": "best"},
		"SEED=x":           {"SEED": "x"},
		"backends 1":       {"BACKENDS": "1"},
		"load balancers 1": {"LOAD_BALANCERS": "1"},
		"connections 501":  {"CONNECTIONS": "501"},
		`event "steady"`:   {"EVENTS": "steady"},
	} {
		o, err := MultipathDefaults().FromEnvironment(environment(pairs))
		if err == nil {
			_, err = o.check()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want one with %q", pairs, err, want)
		}
	}
}
