package brain

import (
	"fmt"
	"github.com/guideway/guideway/speaker/judge"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// world is a brain with a clock and a forwarder that does what it is told.
type world struct {
	repeated int
	t        *testing.T
	state    *State
	now      time.Time
	last     Desired
	// The forwarder's side.
	accepts    bool
	running    *planv1.Plan
	acceptedAt time.Time
	unresolved []Unresolved
	log        []Transition
}

const oneService = `
machine: {name: lb-1, addresses: [10.0.0.1]}
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}
pools:
- {name: web, health_checks: [http-ok], backends: [{name: web-1, address: 10.1.0.11}, {name: web-2, address: 10.1.0.12}]}
health_checks:
- {name: http-ok, via: direct, http: {port: 80}, rise: 2, fall: 3}
`

func parse(t *testing.T, yaml string) *config.Config {
	t.Helper()
	missing := func(string) ([]byte, fs.FileMode, error) { return nil, 0, fs.ErrNotExist }
	c, err := config.ParseToCompile([]config.Source{{Name: "test.yaml", Data: []byte(yaml)}}, missing)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// start loads a config into a controller whose forwarder runs nothing yet.
func start(t *testing.T, yaml string) *world {
	t.Helper()
	w := startCold(t, yaml)
	w.connect(nil)
	return w
}

func startCold(t *testing.T, yaml string) *world {
	t.Helper()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	w := &world{t: t, state: New(began), now: began, accepts: true}
	w.do(ConfigLoaded{Config: parse(t, yaml)})
	return w
}

func (w *world) do(event Event) {
	w.last = w.state.Step(event, w.now)
	w.expectNothingMissed(event)
	w.log = append(w.log, w.last.Transitions...)
	if w.last.PlanChanged && w.accepts {
		w.accept()
	}
}

func (w *world) accept() {
	w.running, w.acceptedAt = w.last.Plan, w.now
	w.do(PlanAccepted{Generation: w.running.Generation})
	w.status()
}

func (w *world) status() {
	w.do(w.health())
	w.do(ForwarderStatus{Generation: w.running.GetGeneration(), Unresolved: w.unresolved})
}

// health of a forwarder that is well.
func (w *world) health() ForwarderHealth {
	health := ForwarderHealth{
		Asked: w.now, PID: 7, Generation: w.running.GetGeneration(),
		Devices: []Device{{Interface: "eth1", Up: true}}, Unresolved: uint32(len(w.unresolved)),
	}
	if health.Generation > 0 {
		health.Threads = []Thread{{Name: "worker-0", HeartbeatAge: 10 * time.Millisecond}}
	}
	return health
}

func (w *world) connect(plan *planv1.Plan) {
	w.running = plan
	w.do(ForwarderConnected{Plan: plan})
	w.status()
}

// pass lets time pass in the steps of a forwarder's status.
func (w *world) pass(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(min(50*time.Millisecond, end.Sub(w.now)))
		w.status()
	}
}

// probe reports a result for every check of a backend's address.
func (w *world) probe(address string, ok bool) {
	w.t.Helper()
	found := false
	for _, target := range w.last.Targets {
		if target.Address.String() == address {
			found = true
			reason := "connection refused"
			if ok {
				reason = "status 200"
			}
			w.do(ProbeResult{Target: target.Key(), OK: ok, Reason: reason})
		}
	}
	if !found {
		w.t.Fatalf("no target at %s", address)
	}
}

// settle probes and waits until the brain has decided.
func (w *world) settle(ok bool, addresses ...string) {
	w.t.Helper()
	for _, address := range addresses {
		w.probe(address, ok)
	}
	w.pass(2 * coalesce)
}

// states are the members of a service in the wanted plan: `web-1 active`.
func (w *world) states(service string) []string {
	var states []string
	for _, s := range w.last.Plan.GetServices() {
		if s.Name == service {
			for _, m := range w.last.Plan.Members()[s.Group] {
				states = append(states, m.Backend+" "+stateName(m.State))
			}
		}
	}
	return states
}

func (w *world) expectStates(service string, want ...string) {
	w.t.Helper()
	if got := w.states(service); !slices.Equal(got, want) {
		w.t.Errorf("plan has %v, want %v", got, want)
	}
}

// announced routes: desired, and nothing withholds them.
func (w *world) announced() (routes []Route) {
	for _, r := range w.state.View(true).Routes {
		if r.Announced {
			routes = append(routes, r.Route)
		}
	}
	return routes
}

func textsOf(routes []Route) (texts []string) {
	for _, r := range routes {
		text := r.Prefix.String()
		if r.GracefulShutdown {
			text += " leaving"
		}
		texts = append(texts, text)
	}
	return texts
}

func (w *world) expectRoutes(want ...string) {
	w.t.Helper()
	if got := textsOf(w.announced()); !slices.Equal(got, want) {
		w.t.Errorf("routes %v, want %v\nreasons: %v", got, want, w.whyNot())
	}
}

// expectDesired is what the speaker gets, whatever the forwarder's health.
func (w *world) expectDesired(want ...string) {
	w.t.Helper()
	if got := textsOf(w.last.Routes); !slices.Equal(got, want) {
		w.t.Errorf("desired routes %v, want %v\nreasons: %v", got, want, w.whyNot())
	}
}

func (w *world) whyNot() []string {
	var reasons []string
	for _, r := range w.state.View(true).Routes {
		reasons = append(reasons, fmt.Sprintf("%s: %s", r.Prefix, r.Reason))
	}
	return reasons
}

func (w *world) expectReason(want string) {
	w.t.Helper()
	if got := strings.Join(w.whyNot(), "; "); !strings.Contains(got, want) {
		w.t.Errorf("reasons %q lack %q", got, want)
	}
}

func (w *world) backend(name string) BackendView {
	w.t.Helper()
	for _, b := range w.state.View(true).Backends {
		if b.Name == name {
			return b
		}
	}
	w.t.Fatalf("no backend %s", name)
	return BackendView{}
}

const vip = "203.0.113.10/32"

func TestABackendIsDownUntilItsFirstProbeWhichDecidesAlone(t *testing.T) {
	w := start(t, oneService)
	w.pass(100 * time.Millisecond)
	w.expectStates("web", "web-1 down", "web-2 down")
	if got := w.backend("web-1").Reason; got != "not yet probed by http-ok" {
		t.Errorf("reason %q", got)
	}
	w.settle(true, "10.1.0.11")
	w.settle(false, "10.1.0.12")
	w.expectStates("web", "web-1 active", "web-2 down")
	if got := w.backend("web-2"); got.Reason != "http-ok: connection refused" {
		t.Errorf("reason %q", got.Reason)
	}
}

func TestRiseAndFallDampenAfterTheFirstVerdict(t *testing.T) {
	cases := []struct {
		name  string
		probe string // + passes, - fails, in order
		want  verdict
	}{
		{"first failure decides", "-", down},
		{"first success decides", "+", up},
		{"two failures are not three", "+--", up},
		{"three failures in a row", "+---", down},
		{"a success between starts again", "+--+--", up},
		{"one success is not two", "-+", down},
		{"two successes in a row", "-++", up},
		{"a failure between starts again", "-+-+", down},
		{"down and up again", "+---++", up},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			d := &damped{rise: 2, fall: 3}
			now := time.Unix(0, 0)
			for _, result := range c.probe {
				now = now.Add(time.Second)
				d.step(result == '+', "", now)
			}
			if d.verdict != c.want {
				t.Errorf("verdict %v, want %v", d.verdict, c.want)
			}
		})
	}
}

func TestAPoolWithoutChecksIsHealthy(t *testing.T) {
	w := start(t, strings.ReplaceAll(oneService, "health_checks: [http-ok], ", ""))
	w.pass(100 * time.Millisecond)
	w.expectStates("web", "web-1 active", "web-2 active")
	w.expectRoutes(vip)
}

func TestABackendWithSeveralChecksMustPassAll(t *testing.T) {
	yaml := strings.ReplaceAll(oneService, "[http-ok]", "[http-ok, tcp-443]") + "- {name: tcp-443, via: direct, tcp: {port: 443}}\n"
	w := start(t, yaml)
	key := func(address, check string) string {
		for _, target := range w.last.Targets {
			if target.Address.String() == address && target.HealthCheck.Name == check {
				return target.Key()
			}
		}
		t.Fatalf("no target %s %s", address, check)
		return ""
	}
	w.do(ProbeResult{Target: key("10.1.0.11", "http-ok"), OK: true, Reason: "status 200"})
	w.pass(100 * time.Millisecond)
	w.expectStates("web", "web-1 down", "web-2 down")
	w.do(ProbeResult{Target: key("10.1.0.11", "tcp-443"), OK: true, Reason: "connected"})
	w.do(ProbeResult{Target: key("10.1.0.12", "http-ok"), OK: true, Reason: "status 200"})
	w.do(ProbeResult{Target: key("10.1.0.12", "tcp-443"), OK: false, Reason: "connection refused"})
	w.pass(100 * time.Millisecond)
	w.expectStates("web", "web-1 active", "web-2 down")
	if got := w.backend("web-2").Reason; got != "tcp-443: connection refused" {
		t.Errorf("reason %q names not the failed check", got)
	}
}

func TestAStartingControllerKeepsTheRunningStatesUntilEachFirstVerdict(t *testing.T) {
	before := start(t, oneService)
	before.settle(true, "10.1.0.11")
	before.settle(false, "10.1.0.12")
	running := before.last.Plan

	w := startCold(t, oneService)
	w.pass(0)
	if w.last.Plan != nil {
		t.Fatal("a plan before the forwarder told what it runs")
	}
	w.connect(running)
	w.expectStates("web", "web-1 active", "web-2 down")
	if w.last.Plan.Generation <= running.Generation {
		t.Errorf("generation %d after %d", w.last.Plan.Generation, running.Generation)
	}
	w.expectRoutes()
	w.settle(false, "10.1.0.11")
	w.settle(true, "10.1.0.12")
	w.expectStates("web", "web-1 active", "web-2 down")
	w.expectRoutes(vip)
	w.settle(false, "10.1.0.11")
	w.settle(true, "10.1.0.12")
	w.expectStates("web", "web-1 active", "web-2 active")
	w.settle(false, "10.1.0.11")
	w.expectStates("web", "web-1 down", "web-2 active")
}

// The controller may have probed before its forwarder answered.
func TestWhatWasProbedBeforeTheForwarderAnsweredCountsAgainstTheInheritedState(t *testing.T) {
	before := start(t, oneService)
	before.settle(true, "10.1.0.11", "10.1.0.12")

	w := startCold(t, oneService)
	w.settle(false, "10.1.0.11", "10.1.0.12")
	w.settle(false, "10.1.0.11")
	w.connect(before.last.Plan)
	w.pass(2 * coalesce)
	w.expectStates("web", "web-1 active", "web-2 active")
	w.settle(false, "10.1.0.11") // the third of fall: 3
	w.settle(true, "10.1.0.12")
	w.expectStates("web", "web-1 down", "web-2 active")
}

func TestABackendNeverSeenBeforeIsDecidedByItsFirstProbe(t *testing.T) {
	w := start(t, oneService)
	w.settle(true, "10.1.0.11")
	w.settle(false, "10.1.0.12")
	w.expectStates("web", "web-1 active", "web-2 down")
}

func TestNothingIsAnnouncedBeforeEverythingIsReady(t *testing.T) {
	w := startCold(t, oneService)
	w.accepts = false
	w.do(Tick{})
	w.expectReason("forwarder: not yet connected")
	w.connect(nil)
	w.expectRoutes()
	w.expectReason("waiting for the first probe of 2 of 2 targets")
	w.settle(true, "10.1.0.11")
	w.expectReason("waiting for the first probe of 1 of 2 targets")
	w.settle(true, "10.1.0.12")
	w.expectReason("waiting for the forwarder to accept the plan")
	w.expectRoutes()

	w.unresolved = []Unresolved{{Backend: "web-2", Address: "10.1.0.12", Why: "neighbour incomplete"}}
	w.accept()
	w.expectRoutes()
	w.expectReason("next hop of backend web-2 (10.1.0.12) is not resolved: neighbour incomplete")
	w.unresolved = nil
	w.status()
	w.expectRoutes(vip)

	w.unresolved = []Unresolved{{Backend: "web-2", Address: "10.1.0.12", Why: "neighbour failed"}}
	w.status()
	w.expectRoutes(vip) // a next hop lost later costs no route
}

func TestAnUnresolvedBackendThatIsDownHoldsNothingUp(t *testing.T) {
	w := start(t, oneService)
	w.unresolved = []Unresolved{{Backend: "web-2", Address: "10.1.0.12", Why: "neighbour failed"}}
	w.settle(true, "10.1.0.11")
	w.settle(false, "10.1.0.12")
	w.expectRoutes(vip)
}

// serving is a world that announces.
func serving(t *testing.T, yaml string, backends ...string) *world {
	t.Helper()
	w := start(t, yaml)
	w.settle(true, backends...)
	w.expectRoutes(vip)
	return w
}

func servingOne(t *testing.T) *world { return serving(t, oneService, "10.1.0.11", "10.1.0.12") }

func fail(w *world, addresses ...string) {
	for range 3 {
		for _, address := range addresses {
			w.probe(address, false)
		}
	}
	w.pass(2 * coalesce)
}

func TestTheRouteGoesWithTheLastBackendAndComesBackWithTheFirst(t *testing.T) {
	w := servingOne(t)
	fail(w, "10.1.0.11")
	w.expectRoutes(vip)
	fail(w, "10.1.0.12")
	w.expectRoutes()
	w.expectReason("no backend")
	w.settle(true, "10.1.0.11")
	w.settle(true, "10.1.0.11")
	w.expectRoutes(vip)
}

func TestARouteComesBackOnlyWhenTheForwarderHasThePlanThatServesIt(t *testing.T) {
	w := servingOne(t)
	fail(w, "10.1.0.11", "10.1.0.12")
	w.expectRoutes()
	w.accepts = false
	w.settle(true, "10.1.0.11")
	w.settle(true, "10.1.0.11")
	w.expectRoutes()
	w.expectReason("waiting for the forwarder to accept the plan that serves it")
	w.accept()
	w.expectRoutes(vip)
}

func TestWhenNoneDecidesOnTheRoute(t *testing.T) {
	for choice, keeps := range map[string]bool{"withdraw": false, "keep": true, "fail_open": true} {
		t.Run(choice, func(t *testing.T) {
			yaml := strings.Replace(oneService, "{name: web, vips:", "{name: web, when_none: "+choice+", vips:", 1)
			w := serving(t, yaml, "10.1.0.11", "10.1.0.12")
			fail(w, "10.1.0.11", "10.1.0.12")
			w.expectStates("web", "web-1 down", "web-2 down")
			if keeps {
				w.expectRoutes(vip)
			} else {
				w.expectRoutes()
			}
		})
	}
}

func TestAnAddressIsAnnouncedWhileOneServiceOnItHasABackend(t *testing.T) {
	w := serving(t, `
machine: {addresses: [10.0.0.1]}
services:
- {name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}
- {name: dns, vips: [{address: 203.0.113.10, ports: [53], protocol: udp}], pools: [dns]}
pools:
- {name: web, health_checks: [tcp-80], backends: [{address: 10.1.0.11}]}
- {name: dns, health_checks: [tcp-80], backends: [{address: 10.1.0.12}]}
health_checks: [{name: tcp-80, via: direct, tcp: {port: 80}}]
`, "10.1.0.11", "10.1.0.12")
	fail(w, "10.1.0.11")
	w.expectRoutes(vip)
	fail(w, "10.1.0.12")
	w.expectRoutes()
}

func TestAnAggregateStaysWhileOneServiceInItHasABackend(t *testing.T) {
	w := start(t, `
cluster: {prefixes: [203.0.113.0/24]}
machine: {addresses: [10.0.0.1]}
services:
- {name: web, vips: [{address: 203.0.113.10, protocol: tcp}], pools: [web], announce: aggregate}
- {name: dns, vips: [{address: 203.0.113.11, protocol: udp}], pools: [dns], announce: aggregate}
- {name: alone, vips: [{address: 203.0.113.12, protocol: tcp}], pools: [dns]}
pools:
- {name: web, health_checks: [tcp-80], backends: [{address: 10.1.0.11}]}
- {name: dns, health_checks: [tcp-80], backends: [{address: 10.1.0.12}]}
health_checks: [{name: tcp-80, via: direct, tcp: {port: 80}}]
`)
	w.settle(true, "10.1.0.11", "10.1.0.12")
	w.expectRoutes("203.0.113.0/24", "203.0.113.12/32")
	fail(w, "10.1.0.12")
	w.expectRoutes("203.0.113.0/24")
	if got := w.state.View(false).Services[1].State; got != NoBackend {
		t.Errorf("a service without backends in an aggregate that stays is %q, want %q", got, NoBackend)
	}
	fail(w, "10.1.0.11")
	w.expectRoutes()
}

func TestOnlyOwnPrefixesAreAnnounced(t *testing.T) {
	w := serving(t, "cluster: {prefixes: [203.0.113.0/24]}\n"+strings.Replace(oneService,
		"vips: [", "vips: [{address: 198.51.100.7, ports: [80], protocol: tcp}, ", 1), "10.1.0.11", "10.1.0.12")
	w.expectRoutes(vip)
}

func TestARouteOfAFamilyThatTheMachineHasNoAddressOfIsNotAnnounced(t *testing.T) {
	w := serving(t, strings.Replace(oneService, "vips: [", `vips: [{address: "2001:db8::1"}, `, 1), "10.1.0.11", "10.1.0.12")
	w.expectRoutes(vip)
	w.expectReason("the machine has no address of this family")
}

func TestAnIPv4RouteOfAMachineWithoutAnIPv4AddressHasItsIPv6AddressAsNextHop(t *testing.T) {
	w := serving(t, strings.NewReplacer("10.0.0.1", `"2001:db8:0:1::1"`, "10.1.0.11", `"2001:db8:1::11"`, "10.1.0.12", `"2001:db8:1::12"`).Replace(oneService), "2001:db8:1::11", "2001:db8:1::12")
	w.expectRoutes(vip)
	if got := w.state.View(false).Routes[0].NextHop.String(); got != "2001:db8:0:1::1" {
		t.Errorf("next hop is %s", got)
	}
}

func TestEjectionMaxKeepsTheRestInRegardless(t *testing.T) {
	cases := []struct {
		max  int
		want []string
	}{
		{100, []string{"a down", "b down", "c down", "d active"}},
		{50, []string{"a down", "b down", "c active", "d active"}},
		{25, []string{"a down", "b active", "c active", "d active"}},
		{0, []string{"a active", "b active", "c active", "d active"}},
	}
	for _, c := range cases {
		t.Run(fmt.Sprint(c.max), func(t *testing.T) {
			w := start(t, fmt.Sprintf(`
machine: {addresses: [10.0.0.1]}
services: [{name: web, vips: [{address: 203.0.113.10}], pools: [web]}]
pools:
- name: web
  health_checks: [tcp-80]
  ejection_max: %d
  backends: [{name: a, address: 10.1.0.1}, {name: b, address: 10.1.0.2}, {name: c, address: 10.1.0.3}, {name: d, address: 10.1.0.4}]
health_checks: [{name: tcp-80, via: direct, tcp: {port: 80}}]
`, c.max))
			w.settle(true, "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4")
			for _, address := range []string{"10.1.0.1", "10.1.0.2", "10.1.0.3"} {
				fail(w, address) // in this order: those that failed first leave
			}
			w.expectStates("web", c.want...)
		})
	}
}

func TestAMachineThatIsCutOffKeepsItsLastStatesAndWithdraws(t *testing.T) {
	w := servingOne(t)
	w.do(GatewayState{Address: "10.0.0.254", Answers: true})
	w.do(GatewayState{Address: "10.0.0.254", Answers: false})
	fail(w, "10.1.0.11")
	w.expectStates("web", "web-1 down", "web-2 active")
	w.expectRoutes(vip)
	fail(w, "10.1.0.12")
	w.expectStates("web", "web-1 active", "web-2 active")
	w.expectRoutes()
	w.expectReason("this machine is cut off")
	if got := w.backend("web-1").Reason; !strings.Contains(got, "kept: this machine is cut off") {
		t.Errorf("reason %q", got)
	}
	// Well again: connections stay where they were, and who really died
	// meanwhile fails anew.
	w.do(GatewayState{Address: "10.0.0.254", Answers: true})
	w.pass(2 * coalesce)
	w.expectStates("web", "web-1 active", "web-2 active")
	w.expectRoutes(vip)
	w.settle(true, "10.1.0.11")
	fail(w, "10.1.0.12")
	w.expectStates("web", "web-1 active", "web-2 down")
}

func TestAllBackendsDeadWithAnAnsweringGatewayAreDead(t *testing.T) {
	w := servingOne(t)
	w.do(GatewayState{Address: "10.0.0.254", Answers: true})
	fail(w, "10.1.0.11", "10.1.0.12")
	w.expectStates("web", "web-1 down", "web-2 down")
}

func TestABackendDownLongBeforeTheMachineWasCutOffStaysDown(t *testing.T) {
	w := servingOne(t)
	fail(w, "10.1.0.11")
	w.pass(collapseWindow)
	w.do(GatewayState{Address: "10.0.0.254", Answers: false})
	fail(w, "10.1.0.12")
	w.expectStates("web", "web-1 down", "web-2 active")
	w.expectRoutes()
}

func TestAnUnhealthyForwarderWithdrawsEverything(t *testing.T) {
	threads := func(slowPath time.Duration) []Thread {
		return []Thread{{Name: "worker-0"}, {Name: "worker-1"}, {Name: "slow-path", HeartbeatAge: slowPath}}
	}
	healthy := ForwarderHealth{Threads: threads(0), Devices: []Device{{Interface: "eth1", Up: true}}}
	cases := []struct {
		name   string
		event  func(generation uint64) Event
		reason string
	}{
		{"the process is gone", func(uint64) Event { return ForwarderLost{Reason: "does not answer"} }, "does not answer"},
		{"a worker hangs", func(g uint64) Event {
			sick := healthy
			sick.Generation = g
			sick.Threads = []Thread{{Name: "worker-0"}, {Name: "worker-1", HeartbeatAge: judge.HeartbeatAgeMax + time.Millisecond}}
			return sick
		}, "thread worker-1 hangs: no heartbeat for 1.001s"},
		{"the slow path hangs", func(g uint64) Event {
			sick := healthy
			sick.Generation, sick.Threads = g, threads(judge.HeartbeatAgeMax+time.Millisecond)
			return sick
		}, "thread slow-path hangs: no heartbeat for 1.001s"},
		{"it has a plan but no threads", func(g uint64) Event {
			sick := healthy
			sick.Generation, sick.Threads = g, nil
			return sick
		}, "it has a plan but no threads that forward"},
		{"a device is down", func(g uint64) Event {
			sick := healthy
			sick.Generation = g
			sick.Devices = []Device{{Interface: "eth1"}}
			return sick
		}, "device eth1 is down"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := servingOne(t)
			event := c.event(w.running.Generation)
			if health, ok := event.(ForwarderHealth); ok {
				health.Asked = w.now
				event = health
			}
			w.do(event)
			w.expectRoutes()
			w.expectReason(c.reason)
		})
	}
}

func TestSlownessWithdrawsNothing(t *testing.T) {
	w := servingOne(t)
	if w.last.Again.IsZero() || w.last.Again.After(w.now.Add(judge.AnswerAgeMax)) {
		t.Errorf("asks to be woken at %v", w.last.Again)
	}
	w.now = w.now.Add(judge.AnswerAgeMax + time.Millisecond)
	w.do(Tick{})
	w.expectRoutes(vip)
	w.do(ForwarderWaits{Asked: w.now, Reason: "its thread waits for a processor"})
	w.expectRoutes(vip)
	if w.last.Again.IsZero() || !w.last.Again.After(w.now) {
		t.Errorf("asks to be woken at %v", w.last.Again)
	}
}

func TestAForwarderThatComesBackIsAnnouncedOnceItHasThePlanAgain(t *testing.T) {
	w := servingOne(t)
	w.do(ForwarderLost{Reason: "does not answer"})
	w.accepts = false
	w.connect(nil)
	w.expectRoutes()
	w.expectReason("waiting for the forwarder to accept the plan")
	w.accept()
	w.expectRoutes(vip)
}

func TestAForwarderThatWasOnlyOutOfTouchStillHasThePlan(t *testing.T) {
	w := servingOne(t)
	w.do(ForwarderLost{Reason: "does not answer within 200ms"})
	w.expectRoutes()
	w.accepts = false // nothing new to accept
	w.connect(w.running)
	w.expectRoutes(vip)
}

func TestHealthEventsOf50MillisecondsMakeOnePlan(t *testing.T) {
	w := servingOne(t)
	before := w.last.Plan.Generation
	for range 3 {
		w.probe("10.1.0.11", false)
	}
	w.now = w.now.Add(30 * time.Millisecond)
	for range 3 {
		w.probe("10.1.0.12", false)
	}
	if w.last.Plan.Generation != before {
		t.Error("a plan before the time is over")
	}
	if again := w.last.Again.Sub(w.now); again != 20*time.Millisecond {
		t.Errorf("asks to be woken in %v", again)
	}
	w.now = w.now.Add(20 * time.Millisecond)
	w.do(Tick{})
	if got := w.running.Generation; got != before+1 {
		t.Errorf("generation %d after %d", got, before)
	}
	w.expectStates("web", "web-1 down", "web-2 down")
}

func TestABadReloadChangesNothingAndSaysSo(t *testing.T) {
	w := servingOne(t)
	before := w.last.Plan
	w.do(ConfigRefused{Problem: "a.yaml:3: services[0].vips: unknown field"})
	w.pass(2 * coalesce)
	if w.last.Plan != before {
		t.Error("the plan changed")
	}
	w.expectRoutes(vip)
	if v := w.state.View(true).Config; !v.Stale || !strings.Contains(v.Problem, "unknown field") {
		t.Errorf("config view %+v", v)
	}
	w.do(ConfigLoaded{Config: parse(t, oneService)})
	if v := w.state.View(true).Config; v.Stale || v.Problem != "" {
		t.Errorf("config view %+v after a good reload", v)
	}
}

func TestAReloadKeepsStatesAndRoutesWhileANewBackendIsProbed(t *testing.T) {
	w := servingOne(t)
	w.do(ConfigLoaded{Config: parse(t, strings.Replace(oneService, "{name: web-2,", "{name: web-3, address: 10.1.0.13}, {name: web-2,", 1))})
	w.pass(2 * coalesce)
	w.expectStates("web", "web-1 active", "web-2 active", "web-3 down")
	w.expectRoutes(vip)
	w.settle(true, "10.1.0.13")
	w.expectStates("web", "web-1 active", "web-2 active", "web-3 active")
}

func TestAChangedCheckKeepsTheStateUntilItsFirstVerdict(t *testing.T) {
	w := servingOne(t)
	fail(w, "10.1.0.12")
	w.do(ConfigLoaded{Config: parse(t, strings.Replace(oneService, "port: 80}, rise", "port: 8080}, rise", 1))})
	w.pass(2 * coalesce)
	w.expectStates("web", "web-1 active", "web-2 down")
	w.expectRoutes(vip)
	w.settle(true, "10.1.0.12")
	w.settle(false, "10.1.0.11")
	w.expectStates("web", "web-1 active", "web-2 down")
	w.settle(true, "10.1.0.12")
	fail(w, "10.1.0.11")
	w.expectStates("web", "web-1 down", "web-2 active")
}

func TestABackendThatCameBackToTheConfigIsNew(t *testing.T) {
	w := servingOne(t)
	without := strings.Replace(oneService, ", {name: web-2, address: 10.1.0.12}", "", 1)
	w.do(ConfigLoaded{Config: parse(t, without)})
	w.pass(2 * coalesce)
	w.do(ConfigLoaded{Config: parse(t, oneService)})
	w.pass(2 * coalesce)
	w.expectStates("web", "web-1 active", "web-2 down")
}

func TestAPlanThatTheForwarderRefusesBringsTheFormerConfigBack(t *testing.T) {
	w := servingOne(t)
	w.accepts = false
	devices := oneService + "forwarder: {interfaces: [{name: eth9}]}\n"
	w.do(ConfigLoaded{Config: parse(t, devices)})
	refused := w.last.Plan.Generation
	w.accepts = true
	w.do(PlanRefused{Generation: refused, Reason: "restart required: interfaces"})
	if w.running.Forwarder != nil || w.running.Generation <= refused {
		t.Errorf("running plan %v", w.running)
	}
	w.expectRoutes(vip)
	if v := w.state.View(true).Config; !v.Stale || !strings.Contains(v.Problem, "restart required") {
		t.Errorf("config view %+v", v)
	}
	fail(w, "10.1.0.11")
	w.expectStates("web", "web-1 down", "web-2 active") // health goes on

	w.do(ForwarderLost{Reason: "does not answer"})
	w.connect(nil) // restarted: now it may open other devices
	w.pass(2 * coalesce)
	if w.running.Forwarder == nil {
		t.Error("the refused config was not tried with the new process")
	}
	if w.state.View(true).Config.Stale {
		t.Error("still stale")
	}
}

// As at boot: the interface comes after forwarder and controller.
func TestAFirstPlanThatIsRefusedIsTakenWhenItsInterfaceCame(t *testing.T) {
	w := startCold(t, oneService)
	w.accepts = false
	w.connect(nil)
	w.pass(2 * coalesce)
	first := w.last.Plan.Generation
	w.do(PlanRefused{Generation: first, Reason: "there is no interface eth1"})
	if v := w.state.View(true).Config; !v.Stale || !strings.Contains(v.Problem, "eth1") {
		t.Errorf("config view %+v", v)
	}
	w.accepts = true
	w.do(PlanAccepted{Generation: first})
	if v := w.state.View(true); v.Config.Stale || v.Config.Problem != "" || v.Forwarder.Refusal != "" {
		t.Errorf("view %+v, %+v", v.Config, v.Forwarder)
	}
}

func TestAPlanFromElsewhereIsFollowedByOursWithAHigherGeneration(t *testing.T) {
	w := servingOne(t)
	w.running = &planv1.Plan{Generation: 1000}
	w.status()
	if w.last.Plan.Generation != 1001 {
		t.Errorf("generation %d", w.last.Plan.Generation)
	}
}

func TestDrains(t *testing.T) {
	w := serving(t, strings.Replace(oneService, "address: 10.1.0.12}", "address: 10.1.0.12, weight: 0}", 1), "10.1.0.11", "10.1.0.12")
	w.expectStates("web", "web-1 active", "web-2 draining")
	w.do(DrainBackend{Backend: "web-1", Drain: true})
	w.expectStates("web", "web-1 draining", "web-2 draining")
	w.expectRoutes() // no backend takes new connections
	w.do(DrainBackend{Backend: "web-1"})
	w.expectStates("web", "web-1 active", "web-2 draining")
	fail(w, "10.1.0.12")
	w.expectStates("web", "web-1 active", "web-2 down")
}

func TestAPlannedWithdrawalFirstCarriesGracefulShutdown(t *testing.T) {
	w := servingOne(t)
	w.do(DrainMachine{Drain: true})
	w.expectRoutes(vip + " leaving")
	w.expectDesired(vip + " leaving")
	w.pass(drainDelay)
	w.expectRoutes()
	w.expectDesired()
	w.do(DrainMachine{Drain: false})
	w.expectRoutes(vip)
	w.expectDesired(vip)
}

func TestADeadForwarderWithdrawsAtOnceEvenWhileDraining(t *testing.T) {
	w := servingOne(t)
	w.do(DrainMachine{Drain: true})
	w.do(ForwarderLost{Reason: "does not answer"})
	w.expectRoutes()
}

func TestReadinessNamesWhatIsMissing(t *testing.T) {
	w := startCold(t, oneService+"bgp: {asn: 64512, neighbors: [{address: 10.0.0.254, asn: 64513}]}\n")
	want := func(reasons ...string) {
		t.Helper()
		if got := w.state.View(true).NotReady; !slices.Equal(got, reasons) {
			t.Errorf("not ready: %q, want %q", got, reasons)
		}
	}
	want("forwarder: not yet connected", "no plan accepted by the forwarder", "first probes outstanding: 2 of 2", "no BGP session up")
	w.connect(nil)
	want("first probes outstanding: 2 of 2", "no BGP session up")
	w.settle(true, "10.1.0.11", "10.1.0.12")
	want("no BGP session up")
	router := netip.MustParseAddr("10.0.0.254")
	w.do(SpeakerConnected{})
	w.do(NeighborState{Address: router, State: "established"})
	want()
	w.do(NeighborState{Address: router, State: "active"})
	want("no BGP session up")
}

func TestTransitionsSayWhatChangedAndWhy(t *testing.T) {
	w := servingOne(t)
	w.log = nil
	fail(w, "10.1.0.11")
	want := Transition{Kind: "backend", Name: "web/web-1", From: "active", To: "down", Reason: "http-ok: connection refused"}
	if !slices.Contains(w.log, want) {
		t.Errorf("log %+v lacks %+v", w.log, want)
	}
}

func TestResultsThatChangeNoVerdictChangeNothing(t *testing.T) {
	w := servingOne(t)
	before := w.last
	w.probe("10.1.0.11", true)
	w.probe("10.1.0.12", false)
	if w.last.PlanChanged || w.last.RoutesChanged || w.last.ConfigChanged || w.last.Plan != before.Plan || len(w.last.Transitions) > 0 {
		t.Errorf("desired %+v", w.last)
	}
}

func TestAPostponedPlanIsShownAndKeptWaitingFor(t *testing.T) {
	w := servingOne(t)
	w.accepts = false
	w.do(DrainBackend{Backend: "web-1", Drain: true})
	w.do(Tick{})
	wanted := w.last.Plan.Generation
	for range 3 {
		w.do(PlanPostponed{Generation: wanted, Reason: "services: no id is left"})
	}
	if got := w.state.View(false).Forwarder; got.Refusal != "not yet taken, pushed again until it is: services: no id is left" || got.Accepted == wanted {
		t.Errorf("forwarder %+v", got)
	}
	if got := w.log[len(w.log)-1]; got.To != "postponed" || w.log[len(w.log)-2].To == "postponed" {
		t.Errorf("transitions %+v", w.log)
	}
	w.expectRoutes(vip)
	w.accept()
	if got := w.state.View(false).Forwarder; got.Refusal != "" || got.Accepted != wanted {
		t.Errorf("forwarder %+v", got)
	}
}
