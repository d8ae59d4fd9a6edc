package brain

import (
	"strings"
	"testing"
	"time"
)

const damped2 = `
machine: {addresses: [10.0.0.1]}
services: [{name: web, vips: [{address: 203.0.113.10}], pools: [web]}]
pools:
- name: web
  health_checks: [tcp-80]
  damping: {flaps: 3, within: 1m, hold: 30s}
  backends: [{name: a, address: 10.1.0.1}, {name: b, address: 10.1.0.2}, {name: c, address: 10.1.0.3}, {name: d, address: 10.1.0.4}]
health_checks: [{name: tcp-80, via: direct, tcp: {port: 80}, rise: 1, fall: 1}]
`

var four = []string{"10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"}

// flap takes a backend down, and up again after a second.
func flap(w *world, address string) {
	w.settle(false, address)
	w.pass(time.Second)
	w.settle(true, address)
}

func TestABackendThatFlapsIsHeldDownUntilItsChecksPassForAWhile(t *testing.T) {
	w := serving(t, damped2, four...)
	flap(w, "10.1.0.1")
	flap(w, "10.1.0.1")
	w.expectStates("web", "a active", "b active", "c active", "d active")
	w.log = nil
	flap(w, "10.1.0.1")
	w.expectStates("web", "a down", "b active", "c active", "d active")
	const held = "held by damping (down 3 times within 1m0s) until its checks pass for 30s"
	if len(w.log) != 1 || w.log[0].To != "down" || !strings.HasSuffix(w.log[0].Reason, "connection refused; "+held) {
		t.Errorf("log %+v", w.log)
	}
	if b := w.backend("a"); !b.Held || b.Reason != held+"; now tcp-80: status 200" {
		t.Errorf("shown %+v", b)
	}
	w.pass(25 * time.Second)
	w.settle(false, "10.1.0.1") // the time begins anew
	w.settle(true, "10.1.0.1")
	w.pass(29 * time.Second)
	w.expectStates("web", "a down", "b active", "c active", "d active")
	w.pass(2 * time.Second)
	w.expectStates("web", "a active", "b active", "c active", "d active")
	if b := w.backend("a"); b.Held || b.Reason != "tcp-80: status 200" {
		t.Errorf("shown %+v", b)
	}
	flap(w, "10.1.0.1") // counted anew
	w.expectStates("web", "a active", "b active", "c active", "d active")
}

func TestFlapsOlderThanTheTimeAreForgotten(t *testing.T) {
	w := serving(t, damped2, four...)
	for range 4 {
		flap(w, "10.1.0.1")
		w.pass(30 * time.Second)
	}
	w.expectStates("web", "a active", "b active", "c active", "d active")
}

func TestAHeldBackendIsTheFirstThatEjectionMaxKeepsIn(t *testing.T) {
	w := serving(t, strings.Replace(damped2, "damping:", "ejection_max: 50\n  damping:", 1), four...)
	for range 3 {
		flap(w, "10.1.0.1")
	}
	w.settle(false, "10.1.0.2")
	w.expectStates("web", "a down", "b down", "c active", "d active")
	w.settle(false, "10.1.0.3")
	w.expectStates("web", "a active", "b down", "c down", "d active")
	if got := w.backend("a").Reason; !strings.HasPrefix(got, "kept in by ejection_max 50 (held by damping") {
		t.Errorf("reason %q", got)
	}
}

func TestWhatACutOffMachineSawIsNoFlap(t *testing.T) {
	w := serving(t, damped2, four...)
	w.do(GatewayState{Address: "10.0.0.254", Answers: true})
	for range 3 {
		w.do(GatewayState{Address: "10.0.0.254", Answers: false})
		for _, address := range four {
			w.settle(false, address)
		}
		w.do(GatewayState{Address: "10.0.0.254", Answers: true})
		w.settle(true, four...)
	}
	w.expectStates("web", "a active", "b active", "c active", "d active")
}

func TestAReloadKeepsTheFlapsAndAnotherAddressDoesNot(t *testing.T) {
	w := serving(t, damped2, four...)
	flap(w, "10.1.0.1")
	flap(w, "10.1.0.1")
	w.do(ConfigLoaded{Config: parse(t, strings.Replace(damped2, "hold: 30s", "hold: 40s", 1))})
	flap(w, "10.1.0.1")
	w.expectStates("web", "a down", "b active", "c active", "d active")
	w.do(ConfigLoaded{Config: parse(t, strings.Replace(damped2, "10.1.0.1}", "10.1.0.9}", 1))})
	w.settle(true, "10.1.0.9")
	w.expectStates("web", "a active", "b active", "c active", "d active")
}

func TestWithoutDampingABackendMayFlapForEver(t *testing.T) {
	w := serving(t, strings.Replace(damped2, "  damping: {flaps: 3, within: 1m, hold: 30s}\n", "", 1), four...)
	for range 30 {
		flap(w, "10.1.0.1")
	}
	w.expectStates("web", "a active", "b active", "c active", "d active")
}
