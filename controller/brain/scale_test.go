package brain

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// largeConfig has as many services and backends as the limits allow to come
// together in practice: each service its own pool.
func largeConfig(services, backendsEach int) string {
	var b strings.Builder
	b.WriteString("machine: {addresses: [10.0.0.1]}\nhealth_checks: [{name: t, via: direct, tcp: {port: 80}}]\nservices:\n")
	for i := range services {
		fmt.Fprintf(&b, "- {name: s%d, vips: [{address: 203.%d.%d.%d}], pools: [p%d]}\n", i, i>>16, i>>8&255, i&255, i)
	}
	b.WriteString("pools:\n")
	for i := range services {
		fmt.Fprintf(&b, "- {name: p%d, health_checks: [t], backends: [", i)
		for j := range backendsEach {
			n := i*backendsEach + j
			fmt.Fprintf(&b, "{address: 10.%d.%d.%d}, ", 1+n>>16, n>>8&255, n&255)
		}
		b.WriteString("]}\n")
	}
	return b.String()
}

// sharedConfig has many services over few pools, and no checks but of pool 0.
func sharedConfig(services, pools, backendsEach int) string {
	var b strings.Builder
	b.WriteString("machine: {addresses: [10.0.0.1]}\nhealth_checks: [{name: t, via: direct, tcp: {port: 80}}]\nservices:\n")
	for i := range services {
		fmt.Fprintf(&b, "- {name: s%d, vips: [{address: 203.%d.%d.%d}], pools: [p%d]}\n", i, i>>16, i>>8&255, i&255, i%pools)
	}
	b.WriteString("pools:\n")
	for i := range pools {
		fmt.Fprintf(&b, "- {name: p%d, health_checks: [t], backends: [", i)
		for j := range backendsEach {
			n := i*backendsEach + j
			fmt.Fprintf(&b, "{address: 10.%d.%d.%d}, ", 1+n>>16, n>>8&255, n&255)
		}
		b.WriteString("]}\n")
	}
	return b.String()
}

func shared(t *testing.T, services, pools, backendsEach int) *world {
	w := &world{t: t, state: New(time.Unix(0, 0)), now: time.Unix(0, 0), accepts: true}
	w.do(ConfigLoaded{Config: parse(t, sharedConfig(services, pools, backendsEach))})
	w.connect(nil)
	for _, target := range w.last.Targets {
		w.do(ProbeResult{Target: target.Key(), OK: true})
	}
	w.pass(100 * time.Millisecond)
	return w
}

func TestABackendsChangeIsOneTransitionAndOneGroupOfThePlan(t *testing.T) {
	w := shared(t, 50, 5, 4)
	before := w.last.Plan
	if len(before.Groups) != 5 || len(w.last.Routes) != 50 {
		t.Fatalf("%d groups, %d routes", len(before.Groups), len(w.last.Routes))
	}
	w.log = nil
	fail(w, "10.1.0.0") // in p0
	if len(w.log) != 1 || w.log[0].Name != "p0/10.1.0.0" || w.log[0].To != "down" {
		t.Errorf("transitions %+v", w.log)
	}
	after := w.running
	if after.Generation != before.Generation+1 {
		t.Errorf("generation %d after %d", after.Generation, before.Generation)
	}
	for i, group := range after.Groups {
		if isSame := group == before.Groups[i]; isSame != (group.Name != "p0") {
			t.Errorf("group %s is the former plan's: %v", group.Name, isSame)
		}
	}
	for i, service := range after.Services {
		if service != before.Services[i] {
			t.Fatalf("service %s was made anew", service.Name)
		}
	}
	if got := before.Groups[0].Members[0].State; got != stateActive {
		t.Errorf("the former plan was edited: %v", got)
	}
}

// BenchmarkOneFlapOf10000Services is the size of docs/performance.md.
func BenchmarkOneFlapOf10000Services(b *testing.B) {
	w := shared(&testing.T{}, 10_000, 100, 200)
	if len(w.last.Routes) != 10_000 {
		b.Fatalf("%d routes", len(w.last.Routes))
	}
	key := w.last.Targets[0].Key()
	ok := false
	for b.Loop() {
		for range 3 {
			w.do(ProbeResult{Target: key, OK: ok})
		}
		ok = !ok
		w.now = w.now.Add(coalesce)
		w.do(Tick{})
	}
}

func BenchmarkViewOf10000Services(b *testing.B) {
	w := shared(&testing.T{}, 10_000, 100, 200)
	for b.Loop() {
		w.state.View(true)
	}
}

// One backend's flap in a large config: what the brain's goroutine is busy
// with before it looks at the forwarder again.
func BenchmarkOneFlapOf1000Services10000Backends(b *testing.B) {
	w := &world{t: &testing.T{}, state: New(time.Unix(0, 0)), now: time.Unix(0, 0), accepts: true}
	w.do(ConfigLoaded{Config: parse(w.t, largeConfig(1000, 10))})
	w.connect(nil)
	for _, target := range w.last.Targets {
		w.do(ProbeResult{Target: target.Key(), OK: true})
	}
	w.pass(100 * time.Millisecond)
	if len(w.last.Routes) != 1000 {
		b.Fatalf("%d routes", len(w.last.Routes))
	}
	key := w.last.Targets[0].Key()
	ok := false
	for b.Loop() {
		for range 3 {
			w.do(ProbeResult{Target: key, OK: ok})
		}
		ok = !ok
		w.now = w.now.Add(coalesce)
		w.do(Tick{})
	}
}

func BenchmarkStatusOf1000Services(b *testing.B) {
	w := &world{t: &testing.T{}, state: New(time.Unix(0, 0)), now: time.Unix(0, 0), accepts: true}
	w.do(ConfigLoaded{Config: parse(w.t, largeConfig(1000, 10))})
	w.connect(nil)
	for b.Loop() {
		w.status()
	}
}
