package brain

import (
	"strings"
	"testing"
	"time"
)

const twoChecks = `
machine: {addresses: [10.0.0.1]}
services:
- {name: web, vips: [{address: 203.0.113.10}], pools: [web]}
- {name: all, vips: [{address: 203.0.113.11}], pools: [web, canary]}
pools:
- {name: web, health_checks: [port, page], backends: [{name: a, address: 10.1.0.1}, {name: b, address: 10.1.0.2}]}
- {name: canary, health_checks: [port], backends: [{name: a, address: 10.1.0.1}]}
health_checks:
- {name: port, via: direct, tcp: {port: 80}}
- {name: page, via: direct, https: {port: 443}, interval: 5s, timeout: 2s}
`

func TestABackendIsShownWithWhatItsLastProbesBrought(t *testing.T) {
	w := start(t, twoChecks)
	for _, target := range w.last.Targets {
		if target.Address.String() != "10.1.0.1" {
			continue
		}
		result := ProbeResult{Target: target.Key(), OK: true, Reason: "connected", Took: 3 * time.Millisecond}
		if target.HealthCheck.Name == "page" {
			result.Reason, result.Warning, result.Expires = "status 200", "the certificate of a expires in 3 days", w.now.Add(72*time.Hour)
		}
		w.do(result)
		if target.HealthCheck.Name == "page" {
			w.now = w.now.Add(time.Second)
			w.do(ProbeResult{Target: target.Key(), Reason: "no answer within 2s", Took: 2 * time.Second})
		}
	}
	w.pass(2 * coalesce)
	detail, known := w.state.Backend("a")
	if !known || len(detail.Backends) != 2 || len(detail.Checks) != 2 {
		t.Fatalf("known %v, detail %+v", known, detail)
	}
	if x, y := detail.Backends[0], detail.Backends[1]; x.Group != "canary web" || x.Service != "all" || y.Group != "web" || y.Service != "web" {
		t.Errorf("backends %+v", detail.Backends)
	}
	page, port := detail.Checks[0], detail.Checks[1]
	if page.Name != "page" || page.Kind != "https" || page.Verdict != "up" || page.Contradicting != 1 || page.Last.Passed ||
		page.Last.Result != "no answer within 2s" || page.Last.Latency != 2*time.Second || page.Last.At.IsZero() {
		t.Errorf("page %+v", page)
	}
	if port.Kind != "tcp" || strings.Join(port.Pools, ",") != "canary,web" || port.Contradicting != 0 || port.Last.Result != "connected" {
		t.Errorf("port %+v", port)
	}
	if detail, known = w.state.Backend("b"); !known || detail.Checks[0].Verdict != "unknown" || !detail.Checks[0].Last.At.IsZero() {
		t.Errorf("b: %+v", detail)
	}
	if _, known = w.state.Backend("c"); known {
		t.Error("c is known")
	}
}

func TestAWarningOfAProbeIsShownBesideTheState(t *testing.T) {
	w := serving(t, oneService, "10.1.0.11", "10.1.0.12")
	w.do(ProbeResult{Target: w.last.Targets[0].Key(), OK: true, Reason: "status 200", Warning: "the certificate of web expires in 3 days"})
	if got := w.backend("web-1").Reason; got != "http-ok: status 200; the certificate of web expires in 3 days" {
		t.Errorf("reason %q", got)
	}
	w.do(ProbeResult{Target: w.last.Targets[0].Key(), OK: true, Reason: "status 200"})
	if got := w.backend("web-1").Reason; got != "http-ok: status 200" {
		t.Errorf("reason %q after a renewal", got)
	}
}
