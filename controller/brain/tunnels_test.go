package brain

import (
	"github.com/guideway/guideway/speaker/judge"
	"net/netip"
	"strings"
	"testing"
	"time"
)

const twoVIPs = `
machine: {name: lb-1, addresses: [10.0.0.1]}
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}
- {name: both, vips: [{address: 203.0.113.10, ports: [81], protocol: tcp}, {address: 203.0.113.20, ports: [81], protocol: tcp}], pools: [web]}
- {name: other, vips: [{address: 203.0.113.20, ports: [80], protocol: tcp}], pools: [web]}
pools:
- {name: web, health_checks: [through, direct], backends: [{name: web-1, address: 10.1.0.11}, {name: web-2, address: 10.1.0.12}]}
health_checks:
- {name: through, tcp: {port: 80}, via: tunnel, rise: 2, fall: 3}
- {name: direct, via: direct, tcp: {port: 80}}
`

// probeVIP reports a result of one backend at one VIP.
func (w *world) probeVIP(backend, vip string, event func(target string) Event) {
	w.t.Helper()
	for _, target := range w.last.Targets {
		if target.Tunnel.Backend == backend && target.Address == netip.MustParseAddr(vip) {
			w.do(event(target.Key()))
			return
		}
	}
	w.t.Fatalf("no target for %s of %s", vip, backend)
}

func passed(target string) Event { return ProbeResult{Target: target, OK: true, Reason: "connected"} }

func silent(target string) Event {
	return ProbeResult{Target: target, Reason: "answers directly, not through the tunnel", Tunnelled: true}
}

func unsent(target string) Event { return ProbeUnsent{Target: target, Reason: "no CAP_NET_RAW"} }

func startTunnelled(t *testing.T) *world {
	w := start(t, twoVIPs)
	w.settle(true, "10.1.0.11", "10.1.0.12")
	for _, backend := range []string{"web-1", "web-2"} {
		for _, vip := range []string{"203.0.113.10", "203.0.113.20"} {
			w.probeVIP(backend, vip, passed)
		}
	}
	w.pass(2 * coalesce)
	return w
}

func TestAProbeThroughTheTunnelCountsForTheServicesOfItsVIP(t *testing.T) {
	w := startTunnelled(t)
	for _, service := range []string{"web", "both", "other"} {
		w.expectStates(service, "web-1 active", "web-2 active")
	}
	for range 3 {
		w.probeVIP("web-1", "203.0.113.20", silent)
	}
	w.pass(2 * coalesce)
	w.expectStates("web", "web-1 active", "web-2 active")
	w.expectStates("both", "web-1 down", "web-2 active")
	w.expectStates("other", "web-1 down", "web-2 active")
	var told bool
	for _, transition := range w.log {
		told = told || transition.To == "down" && strings.HasSuffix(transition.Name, "/web-1") &&
			strings.Contains(transition.Name, "web via gre to 203.0.113.20") &&
			transition.Reason == "through: answers directly, not through the tunnel"
	}
	if !told {
		t.Errorf("not told: %v", w.log)
	}
	// The backend's own address concerns all of them.
	for range 3 {
		w.probe("10.1.0.12", false)
	}
	w.pass(2 * coalesce)
	w.expectStates("web", "web-1 active", "web-2 down")
	w.expectStates("other", "web-1 down", "web-2 down")
}

func TestAProbeThatCannotBeSentIsNoVerdict(t *testing.T) {
	w := startTunnelled(t)
	for range 10 {
		w.probeVIP("web-1", "203.0.113.10", unsent)
	}
	w.pass(2 * coalesce)
	w.expectStates("web", "web-1 active", "web-2 active")
	if reason := w.backend("web-1").Reason; !strings.Contains(reason, "through cannot be sent: no CAP_NET_RAW") {
		t.Errorf("people are told %q", reason)
	}
	w.probeVIP("web-1", "203.0.113.10", passed)
	w.pass(2 * coalesce)
	if reason := w.backend("web-1").Reason; strings.Contains(reason, "cannot be sent") {
		t.Errorf("people are told %q", reason)
	}
}

func TestAFirstProbeThatCannotBeSentIsWaitedForByName(t *testing.T) {
	w := start(t, twoVIPs)
	w.settle(true, "10.1.0.11", "10.1.0.12")
	w.probeVIP("web-1", "203.0.113.10", unsent)
	w.pass(2 * coalesce)
	if reason := w.backend("web-1").Reason; reason != "not yet probed by through; through cannot be sent: no CAP_NET_RAW" {
		t.Errorf("people are told %q", reason)
	}
}

func TestProbesGoThroughTunnelsOfTheAcceptedPlanWhileItsForwarderIsHealthy(t *testing.T) {
	w := startCold(t, twoVIPs)
	if w.last.Probing != nil {
		t.Error("no forwarder is there")
	}
	w.accepts = false
	w.connect(nil)
	if w.last.Probing != nil {
		t.Error("the plan is not accepted")
	}
	w.accept()
	// One of each backend, for both VIPs.
	if got := w.last.Probing.GetAssigned(); len(got) != 2 {
		t.Fatalf("tunnels %v", got)
	}
	first := w.last.Probing
	w.accepts = true
	w.settle(true, "10.1.0.11")
	if w.last.Probing != first {
		t.Error("states change no tunnel")
	}
	w.do(ForwarderLost{Reason: "connection refused"})
	if w.last.Probing != nil {
		t.Error("the forwarder is dead")
	}
	w.now = w.now.Add(time.Second)
	w.status()
	if w.last.Probing == nil {
		t.Error("it is back, with the plan")
	}
}

// A forwarder that hangs sends no probes, which is found after some of them failed.
func TestFailuresThroughTheTunnelCountOnceTheForwarderProvedToLive(t *testing.T) {
	failAll := func(w *world) {
		for range 5 {
			w.probeVIP("web-1", "203.0.113.10", silent)
		}
	}
	active, down := "web-1 active", "web-1 down"
	for _, c := range []struct {
		name  string
		after func(w *world)
		want  string
	}{
		{"asked afterwards", func(w *world) { w.pass(2 * coalesce) }, down},
		{"asked before", func(w *world) {
			health := w.health()
			health.Asked = w.now.Add(-20 * time.Millisecond)
			w.do(health)
			w.now = w.now.Add(2 * coalesce)
			w.do(Tick{})
		}, active},
		{"answered late", func(w *world) {
			health := w.health()
			w.now = w.now.Add(2 * answerMax)
			w.do(health)
			w.pass(2 * coalesce)
		}, active},
		{"answered at once after it was silent", func(w *world) {
			w.now = w.now.Add(2 * answerMax)
			w.do(w.health())
			w.pass(2 * coalesce)
		}, active},
		{"sent while it was silent", func(w *world) {
			w.now = w.now.Add(2 * answerMax)
			w.do(w.health())
			for range 5 {
				w.now = w.now.Add(answerMax / 10)
				w.do(w.health())
				w.probeVIP("web-1", "203.0.113.10", func(target string) Event {
					return ProbeResult{Target: target, Tunnelled: true, Reason: "no answer", Took: answerMax}
				})
			}
			w.pass(2 * coalesce)
		}, active},
		{"its thread for them hangs", func(w *world) {
			health := w.health()
			health.ProbesAge = probesAgeMax + time.Millisecond
			w.now = w.now.Add(time.Millisecond)
			health.Asked = w.now
			w.do(health)
			w.pass(2 * coalesce)
		}, active},
		{"sent while its thread for them hung", func(w *world) {
			health := w.health()
			health.ProbesAge = probesAgeMax + time.Millisecond
			w.do(health)
			w.probeVIP("web-1", "203.0.113.10", func(target string) Event {
				return ProbeResult{Target: target, Tunnelled: true, Reason: "no answer", Took: answerMax}
			})
			w.pass(2 * coalesce)
		}, active},
		{"dead", func(w *world) {
			w.do(ForwarderLost{Reason: "connection refused"})
			w.pass(2 * coalesce)
		}, active},
		{"silent", func(w *world) {
			w.now = w.now.Add(2 * judge.AnswerAgeMax)
			w.do(Tick{})
			w.pass(2 * coalesce)
		}, active},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := startTunnelled(t)
			failAll(w)
			c.after(w)
			w.expectStates("web", c.want, "web-2 active")
		})
	}
}
