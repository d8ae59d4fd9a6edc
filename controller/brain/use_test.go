package brain

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// backedUp has two backends of its own and two that stand by.
const backedUp = `
machine: {addresses: [10.0.0.1]}
services:
- {name: web, vips: [{address: 203.0.113.10}], pools: [web], backup_pools: [spare]}
pools:
- {name: web, health_checks: [tcp-80], backends: [{name: a, address: 10.1.0.1}, {name: b, address: 10.1.0.2}]}
- {name: spare, health_checks: [tcp-80], backends: [{name: y, address: 10.1.0.8}, {name: z, address: 10.1.0.9}]}
health_checks: [{name: tcp-80, via: direct, tcp: {port: 80}, rise: 1, fall: 1}]
`

var backedUpAddresses = []string{"10.1.0.1", "10.1.0.2", "10.1.0.8", "10.1.0.9"}

func (w *world) service(name string) ServiceView {
	w.t.Helper()
	for _, s := range w.state.View(false).Services {
		if s.Service.Name == name {
			return s
		}
	}
	w.t.Fatalf("no service %s", name)
	return ServiceView{}
}

func (w *world) expectService(state string, active int, reason string) {
	w.t.Helper()
	if s := w.service("web"); s.State != state || s.Active != active || s.Reason != reason {
		w.t.Errorf("service %q, %d active, reason %q; want %q, %d, %q", s.State, s.Active, s.Reason, state, active, reason)
	}
}

func TestBackupPoolsAreUsedWhileTheOwnAreGone(t *testing.T) {
	w := serving(t, backedUp, backedUpAddresses...)
	w.expectStates("web", "a active", "b active", "y draining", "z draining")
	w.expectService(ServingAll, 2, "")
	if y := w.backend("y"); y.State != "standby" || y.Reason != "backup, used while fewer than 1 of the own are active; tcp-80: status 200" {
		t.Errorf("shown %q: %q", y.State, y.Reason)
	}
	w.settle(false, "10.1.0.1")
	w.expectStates("web", "a down", "b active", "y draining", "z draining")
	w.log = nil
	w.settle(false, "10.1.0.2")
	w.expectStates("web", "a down", "b down", "y active", "z active")
	w.expectService(ServingAll, 2, "")
	w.expectRoutes(vip)
	if last := w.log[len(w.log)-1]; last.Kind != "service" || last.Name != "web" || last.To != "on its backup pools" ||
		last.Reason != "0 of its own backends active, 2 of its backup pools; backends_min 1" {
		t.Errorf("logged %+v", last)
	}
	if !w.service("web").OnBackup || w.backend("y").State != "active" {
		t.Error("the view does not say so")
	}
	w.settle(true, "10.1.0.1")
	w.expectStates("web", "a active", "b down", "y draining", "z draining")
	if w.service("web").OnBackup || w.log[len(w.log)-1].To != "on its own pools" {
		t.Errorf("logged %+v", w.log)
	}
}

func TestTheRouteGoesWhenTheBackupPoolsAreGoneToo(t *testing.T) {
	w := serving(t, backedUp, backedUpAddresses...)
	for _, address := range backedUpAddresses {
		w.settle(false, address)
	}
	w.expectRoutes()
	w.expectService(NoBackend, 0, "0 of its own backends active, 0 of its backup pools; backends_min 1")
	w.settle(true, "10.1.0.9")
	w.expectRoutes(vip)
	w.expectStates("web", "a down", "b down", "y down", "z active")
}

func TestABackendOfBothIsOneOfTheOwn(t *testing.T) {
	w := serving(t, strings.Replace(backedUp, "[{name: y", "[{name: a, address: 10.1.0.1, weight: 7}, {name: y", 1), backedUpAddresses...)
	w.expectStates("web", "a active", "b active", "y draining", "z draining")
	w.settle(false, "10.1.0.2")
	w.expectStates("web", "a active", "b down", "y draining", "z draining")
}

func TestBackupPoolsFillUpWhatIsLeftBelowBackendsMin(t *testing.T) {
	w := serving(t, strings.Replace(backedUp, "name: web, vips", "name: web, backends_min: 2, vips", 1), backedUpAddresses...)
	w.settle(false, "10.1.0.1")
	w.expectStates("web", "a down", "b active", "y active", "z active")
	w.expectService(ServingAll, 3, "")
	w.settle(false, "10.1.0.8", "10.1.0.9")
	w.expectRoutes()
	const few = "1 of its own backends active, 0 of its backup pools; backends_min 2"
	w.expectService(NoBackend, 1, few)
	w.expectReason("too few backends: " + few)
	// Packets that come nevertheless are served by what is left.
	w.expectStates("web", "a down", "b active", "y down", "z down")
}

// few has three backends, of which one alone is too few.
const few = `
machine: {addresses: [10.0.0.1]}
prefix_groups: [{name: g, prefixes: [203.0.113.0/24, 198.51.100.0/24]}]
services:
- {name: web, vips: [{prefix_group: g, suffix: 0.0.0.10}], pools: [web], backends_min: 2, when_none: WHEN}
pools:
- {name: web, health_checks: [tcp-80], backends: [{name: a, address: 10.1.0.1}, {name: b, address: 10.1.0.2}, {name: c, address: 10.1.0.3}]}
health_checks: [{name: tcp-80, via: direct, tcp: {port: 80}, rise: 1, fall: 1}]
cluster: {prefixes: [203.0.113.0/24]}
`

func TestBelowBackendsMinWhenNoneApplies(t *testing.T) {
	const numbers = "1 of its own backends active; backends_min 2"
	for _, c := range []struct {
		whenNone string
		states   []string
		routes   []string
		state    string
		reason   string
	}{
		{"withdraw", []string{"a active", "b down", "c down"}, nil, NoBackend, numbers},
		{"keep", []string{"a active", "b down", "c down"}, []string{vip}, ServingAll, ""},
		{"fail_open", []string{"a active", "b active", "c active"}, []string{vip}, KeptWithout, numbers},
		{"withdraw, spill: [{prefix_group: g, prefix: 198.51.100.0/24}]", []string{"a draining", "b down", "c down"}, []string{vip}, KeptWithout, numbers},
		{"fail_open, spill: [{prefix_group: g, prefix: 198.51.100.0/24}]", []string{"a draining", "b down", "c down"}, []string{vip}, KeptWithout, numbers},
	} {
		t.Run(c.whenNone, func(t *testing.T) {
			w := serving(t, strings.Replace(few, "WHEN", c.whenNone, 1), three...)
			w.settle(false, "10.1.0.2")
			w.expectStates("web", "a active", "b down", "c active")
			w.expectRoutes(vip)
			w.settle(false, "10.1.0.3")
			w.expectStates("web", c.states...)
			w.expectRoutes(c.routes...)
			if s := w.service("web"); s.State != c.state || s.Reason != c.reason {
				t.Errorf("service %q, reason %q", s.State, s.Reason)
			}
			w.settle(true, "10.1.0.3")
			w.expectStates("web", "a active", "b down", "c active")
			w.expectRoutes(vip)
			w.expectService(ServingAll, 2, "")
			w.settle(false, "10.1.0.1", "10.1.0.3") // none at all: the forwarder's to decide
			w.expectStates("web", "a down", "b down", "c down")
		})
	}
}

func TestWhatIsLeftServesWhileEveryOtherClusterFailsItsProbes(t *testing.T) {
	w := serving(t, strings.Replace(few, "WHEN", "withdraw, spill: [{prefix_group: g, prefix: 198.51.100.0/24}]", 1), three...)
	w.settle(false, "10.1.0.2")
	w.settle(false, "10.1.0.3")
	w.expectStates("web", "a draining", "b down", "c down")
	if a := w.backend("a"); a.State != "draining" || !strings.HasPrefix(a.Reason, "new connections are spilled: 1 of its own") {
		t.Errorf("shown %q: %q", a.State, a.Reason)
	}
	asked := func(ok bool) {
		for range 5 {
			w.do(PeerResult{Peer: "198.51.100.0/24", Address: netip.MustParseAddr("198.51.100.10"), OK: ok})
		}
		w.pass(2 * coalesce)
	}
	asked(false)
	w.expectStates("web", "a active", "b down", "c down")
	asked(true)
	w.expectStates("web", "a draining", "b down", "c down")
}

func TestBackendsThatEjectionMaxKeepsInAreEnough(t *testing.T) {
	w := serving(t, strings.NewReplacer("WHEN", "withdraw", "health_checks: [tcp-80],", "health_checks: [tcp-80], ejection_max: 34,").Replace(few), three...)
	w.settle(false, "10.1.0.2")
	w.settle(false, "10.1.0.3")
	w.expectStates("web", "a active", "b down", "c active")
	w.expectRoutes(vip)
}

func TestServicesOfOnePoolDifferInWhatFewBackendsMean(t *testing.T) {
	yaml := strings.Replace(few, "WHEN", "fail_open", 1)
	yaml = strings.Replace(yaml, "\npools:", "\n- {name: dns, vips: [{address: 203.0.113.53}], pools: [web]}\npools:", 1)
	w := start(t, yaml)
	w.settle(true, three...)
	w.settle(false, "10.1.0.2")
	w.settle(false, "10.1.0.3")
	w.expectStates("web", "a active", "b active", "c active")
	w.expectStates("dns", "a active", "b down", "c down")
	w.expectRoutes(vip, "203.0.113.53/32")
}

func TestAReloadThatAddsABackupPoolIsForeseen(t *testing.T) {
	w := serving(t, strings.Replace(backedUp, ", backup_pools: [spare]", "", 1), backedUpAddresses[:2]...)
	w.settle(false, "10.1.0.1", "10.1.0.2")
	w.expectRoutes()
	foreseen := w.state.Snapshot().Foresee(parse(t, backedUp))
	if len(foreseen.Routes) != 1 || !foreseen.Routes[0].Announced || !slices.Equal(foreseen.AssumedActive, []string{"y", "z"}) {
		t.Errorf("foreseen %+v", foreseen)
	}
	w.do(ConfigLoaded{Config: parse(t, backedUp)})
	w.settle(true, "10.1.0.8", "10.1.0.9")
	w.expectStates("web", "a down", "b down", "y active", "z active")
	w.expectRoutes(vip)
}

func TestAFailOverIsOneGroupOfThePlan(t *testing.T) {
	yaml := strings.ReplaceAll(sharedConfig(50, 5, 2), "pools: [p", "backends_min: 2, backup_pools: [spare], pools: [p") +
		"- {name: spare, backends: [{address: 10.9.9.9}, {address: 10.9.9.8}]}\n"
	w := &world{t: t, state: New(time.Unix(0, 0)), now: time.Unix(0, 0), accepts: true}
	w.do(ConfigLoaded{Config: parse(t, yaml)})
	w.connect(nil)
	for _, target := range w.last.Targets {
		w.do(ProbeResult{Target: target.Key(), OK: true})
	}
	w.pass(100 * time.Millisecond)
	before := w.running
	fail(w, "10.1.0.0") // in p0
	if w.running.Generation != before.Generation+1 {
		t.Errorf("generation %d after %d", w.running.Generation, before.Generation)
	}
	for i, group := range w.running.Groups {
		if isSame := group == before.Groups[i]; isSame != (group.Name != "p0  backup spare  below 2") {
			t.Errorf("group %s is the former plan's: %v", group.Name, isSame)
		}
	}
}

// What passes for one VIP may fail for another: the one's service goes to its
// backups, the other stays.
func TestBackupPoolsTakeOverWhereOnlyTheTunnelFails(t *testing.T) {
	yaml := strings.Replace(backedUp, "via: direct", "via: tunnel", 1)
	yaml = strings.Replace(yaml, "\npools:", "\n- {name: dns, vips: [{address: 203.0.113.53}], pools: [web], backup_pools: [spare]}\npools:", 1)
	w := start(t, yaml)
	probe := func(vip, backend string, ok bool) {
		found := false
		for _, target := range w.last.Targets {
			for _, at := range target.For {
				if at.Backend == backend && target.Address.String() == vip && !found {
					found = true
					w.do(ProbeResult{Target: target.Key(), OK: ok, Reason: "told", Tunnelled: true})
				}
			}
		}
		if !found {
			t.Fatalf("no probe of %s for %s", backend, vip)
		}
	}
	for _, vip := range []string{"203.0.113.10", "203.0.113.53"} {
		for _, backend := range []string{"a", "b", "y", "z"} {
			probe(vip, backend, true)
		}
	}
	w.pass(2 * coalesce)
	w.expectStates("web", "a active", "b active", "y draining", "z draining")
	probe("203.0.113.10", "a", false)
	probe("203.0.113.10", "b", false)
	w.pass(time.Second)
	w.expectStates("web", "a down", "b down", "y active", "z active")
	w.expectStates("dns", "a active", "b active", "y draining", "z draining")
	w.expectRoutes(vip, "203.0.113.53/32")
}
