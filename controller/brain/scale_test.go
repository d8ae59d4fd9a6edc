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
	b.WriteString("machine: {addresses: [10.0.0.1]}\nhealth_checks: [{name: t, tcp: {port: 80}}]\nservices:\n")
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
