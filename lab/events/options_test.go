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
	all := slices.DeleteFunc(EventNames(), func(name string) bool { return name == "kill_load_balancer_after_changes" || isStateless(name) })
	if err != nil || !slices.Equal(o.Events, all) || len(all) != 7 {
		t.Errorf("events %v, %v", o.Events, err)
	}
	o = Defaults()
	o.LoadBalancers = 1
	if o, err = o.check(); err != nil || !slices.Equal(o.Events, []string{"steady", "add_backend", "drain_backend", "kill_backend"}) {
		t.Errorf("with one load balancer %v, %v", o.Events, err)
	}
}

func TestEventsOfStatelessServicesNeedAgents(t *testing.T) {
	o := Defaults()
	o.Events, o.Agents = []string{"move_buckets"}, false
	if _, err := o.check(); err == nil || !strings.Contains(err.Error(), "AGENTS=0") {
		t.Errorf("error %v", err)
	}
}
