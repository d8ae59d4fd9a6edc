package brain

import (
	"strings"
	"testing"
	"time"
)

// forward lets time pass in which the forwarder counts packets of services.
func (w *world) forward(packets map[string]uint64, seconds int, perSecond map[string]uint64) {
	for range seconds {
		w.pass(time.Second)
		for service, n := range perSecond {
			packets[service] += n
		}
		w.do(Traffic{Packets: packets})
	}
}

func (w *world) wantDrain(d *DrainView, moved, withdrawn bool) {
	w.t.Helper()
	if d == nil || d.Moved != moved || d.Withdrawn != withdrawn {
		w.t.Errorf("the drain is %+v, want moved %v, withdrawn %v", d, moved, withdrawn)
	}
}

func TestADrainMayWaitUntilTrafficHasMovedAway(t *testing.T) {
	machine := func(w *world) *DrainView { return w.state.View(false).Machine.Drain }
	service := func(w *world) *DrainView { return w.state.View(false).Services[0].Drain }
	for name, c := range map[string]struct {
		event func(time.Duration) Event
		view  func(*world) *DrainView
	}{
		"machine": {func(d time.Duration) Event { return DrainMachine{Drain: true, WaitMax: d} }, machine},
		"service": {func(d time.Duration) Event { return DrainService{Service: "web", Drain: true, WaitMax: d} }, service},
	} {
		t.Run(name+" traffic moves away", func(t *testing.T) {
			w, packets := servingOne(t), map[string]uint64{"web": 1000}
			w.do(c.event(time.Minute))
			w.forward(packets, 20, map[string]uint64{"web": 5000})
			w.expectRoutes(vip + " leaving")
			w.wantDrain(c.view(w), false, false)
			if d := c.view(w); d.PacketsPerSecond != 5000 || !w.last.MeasureTraffic {
				t.Errorf("%+v, measures %v", d, w.last.MeasureTraffic)
			}
			w.forward(packets, 1, map[string]uint64{"web": packetsMovedMax})
			w.expectRoutes()
			w.wantDrain(c.view(w), true, true)
			w.pass(50 * time.Millisecond)
			if w.last.MeasureTraffic {
				t.Error("traffic is still measured")
			}
		})
		t.Run(name+" the time is up", func(t *testing.T) {
			w, packets := servingOne(t), map[string]uint64{}
			w.do(c.event(5 * time.Second))
			w.forward(packets, 4, map[string]uint64{"web": 5000})
			w.expectRoutes(vip + " leaving")
			w.forward(packets, 1, map[string]uint64{"web": 5000})
			w.expectRoutes()
			w.wantDrain(c.view(w), false, true)
			// What comes after the withdrawal is of interest for a while.
			w.forward(packets, 2, map[string]uint64{"web": 70})
			if d := c.view(w); d.PacketsPerSecond != 70 || d.Moved {
				t.Errorf("after the withdrawal %+v", d)
			}
			w.pass(measureAfter)
			if w.last.MeasureTraffic {
				t.Error("traffic is measured for ever")
			}
		})
		t.Run(name+" not before routers had time", func(t *testing.T) {
			w := servingOne(t)
			w.do(c.event(time.Minute))
			w.forward(map[string]uint64{}, 1, nil)
			w.expectRoutes(vip + " leaving")
			w.forward(map[string]uint64{}, 1, nil)
			w.expectRoutes()
		})
		t.Run(name+" no route is announced, as after a restart of the controller", func(t *testing.T) {
			w := start(t, oneService)
			w.do(c.event(time.Minute))
			w.wantDrain(c.view(w), false, true)
			w.forward(map[string]uint64{"web": 1000}, 3, map[string]uint64{"web": 5000})
			w.wantDrain(c.view(w), false, true)
			w.forward(map[string]uint64{"web": 16000}, 1, nil)
			w.wantDrain(c.view(w), true, true)
			w.expectRoutes()
		})
		t.Run(name+" a forwarder that restarted counts anew", func(t *testing.T) {
			w := servingOne(t)
			w.do(c.event(time.Minute))
			w.forward(map[string]uint64{"web": 1 << 40}, 3, map[string]uint64{"web": 1000})
			w.forward(map[string]uint64{"web": 0}, 3, map[string]uint64{"web": 1000})
			w.expectRoutes(vip + " leaving")
			w.wantDrain(c.view(w), false, false)
		})
		t.Run(name+" said again it waits longer", func(t *testing.T) {
			w, packets := servingOne(t), map[string]uint64{}
			w.do(c.event(0))
			w.do(c.event(30 * time.Second))
			w.forward(packets, 20, map[string]uint64{"web": 5000})
			w.expectRoutes(vip + " leaving")
		})
	}
}

const twoServicesOnOneAddress = `
machine: {addresses: [10.0.0.1]}
services:
- {name: web, vips: [{address: 203.0.113.10, protocol: tcp}, {address: 203.0.113.11, protocol: tcp}], pools: [web]}
- {name: dns, vips: [{address: 203.0.113.10, protocol: udp}], pools: [web]}
pools:
- {name: web, health_checks: [tcp-80], backends: [{name: web-1, address: 10.1.0.11}]}
health_checks: [{name: tcp-80, via: direct, tcp: {port: 80}}]
`

func TestARouteGoesWhenAllOfItsServicesAreDrained(t *testing.T) {
	w := start(t, twoServicesOnOneAddress)
	w.settle(true, "10.1.0.11")
	w.expectRoutes("203.0.113.10/32", "203.0.113.11/32")
	w.do(DrainService{Service: "web", Drain: true})
	w.expectRoutes("203.0.113.10/32", "203.0.113.11/32 leaving")
	w.pass(drainDelay)
	w.expectRoutes("203.0.113.10/32")
	if got, want := w.state.KeptRoute("web"), "203.0.113.10/32 stays announced: service dns has it too; drain it as well, or give web VIPs of its own"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := w.state.View(false).Services[0]; got.State != Draining || !strings.Contains(got.Reason, "service dns") {
		t.Errorf("a drained service with a route that stays is %+v", got.Serving)
	}

	w.do(DrainService{Service: "dns", Drain: true})
	w.expectRoutes("203.0.113.10/32 leaving")
	w.pass(drainDelay)
	w.expectRoutes()
	for _, service := range w.state.View(false).Services {
		if service.State != Drained {
			t.Errorf("%s is %+v", service.Service.Name, service.Serving)
		}
	}
	w.expectStates("web", "web-1 active") // what still comes is forwarded

	w.do(DrainService{Service: "dns"})
	w.expectRoutes("203.0.113.10/32")
	w.do(DrainService{Service: "web"})
	w.expectRoutes("203.0.113.10/32", "203.0.113.11/32")
}

func TestADrainedServiceStaysDrainedOverAReload(t *testing.T) {
	w := servingOne(t)
	w.do(DrainService{Service: "web", Drain: true})
	w.pass(drainDelay)
	w.do(ConfigLoaded{Config: parse(t, strings.Replace(oneService, "203.0.113.10", "203.0.113.20", 1))})
	w.settle(true, "10.1.0.11", "10.1.0.12")
	w.expectRoutes()
	w.do(DrainService{Service: "web"})
	w.expectRoutes("203.0.113.20/32")
}

func TestAServicesLastBackendIsKnown(t *testing.T) {
	w := servingOne(t)
	want := func(backend, text string) {
		t.Helper()
		if got := w.state.LastBackend(backend); got != text {
			t.Errorf("of %s %q, want %q", backend, got, text)
		}
	}
	want("web-1", "")
	fail(w, "10.1.0.12")
	want("web-1", "service web has no backend to spare but web-1 (web-2 is down: http-ok: connection refused)")
	want("web-2", "") // it takes no connections anyway
	want("web-3", "")
	w.do(DrainBackend{Backend: "web-1", Drain: true})
	want("web-1", "") // again
	w.do(DrainBackend{Backend: "web-1"})

	w = start(t, strings.Replace(oneService, "pools: [web]}", "pools: [web], backends_min: 2}", 1))
	w.settle(true, "10.1.0.11", "10.1.0.12")
	want("web-1", "service web has no backend to spare but web-1 (backends_min is 2)")

	w = start(t, strings.Replace(oneService, "pools: [web]}", "pools: [web], backends_min: 2, when_none: keep}", 1))
	w.settle(true, "10.1.0.11", "10.1.0.12")
	want("web-1", "") // the other goes on
}

func TestTheBackendsOfBackupPoolsAreOthers(t *testing.T) {
	w := start(t, `
machine: {addresses: [10.0.0.1]}
services:
- {name: web, vips: [{address: 203.0.113.10, protocol: tcp}], pools: [web], backup_pools: [spare]}
pools:
- {name: web, backends: [{name: web-1, address: 10.1.0.11}]}
- {name: spare, backends: [{name: web-2, address: 10.1.0.12}]}
`)
	w.pass(2 * coalesce)
	if got := w.state.LastBackend("web-1"); got != "" {
		t.Errorf("there is a backup: %s", got)
	}
	w.do(DrainBackend{Backend: "web-1", Drain: true})
	if got := w.state.LastBackend("web-2"); !strings.Contains(got, "web-1 is draining: drained by command") {
		t.Errorf("of the backup %q", got)
	}
}

func TestTheLastMachineThatAnnouncesIsKnown(t *testing.T) {
	w := serving(t, oneService, "10.1.0.11", "10.1.0.12")
	const alone = "no other load balancer is known to take over: the config names none under `peers`"
	if machine, service := w.state.LastMachine(), w.state.LastMachineFor("web"); machine != alone || service != alone {
		t.Errorf("without peers %q, %q", machine, service)
	}
	w = serving(t, twoPeers, "10.1.0.11", "10.1.0.12")
	w.ask("lb-2", false, false, false)
	w.ask("lb-3", false, false, false)
	const silent = "no other load balancer is known to take over: no answer through the tunnel from lb-2 (because), lb-3 (because)"
	if got := w.state.LastMachine(); got != silent {
		t.Errorf("with silent peers %q", got)
	}
	w.ask("lb-3", true, true, true, true, true)
	if machine, service := w.state.LastMachine(), w.state.LastMachineFor("web"); machine != "" || service != "" {
		t.Errorf("with a peer that answers %q, %q", machine, service)
	}

	w = servingOne(t)
	fail(w, "10.1.0.11", "10.1.0.12") // announces nothing
	if machine, service := w.state.LastMachine(), w.state.LastMachineFor("web"); machine != "" || service != "" {
		t.Errorf("with nothing announced %q, %q", machine, service)
	}
}
