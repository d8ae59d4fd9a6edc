package brain

import (
	"slices"
	"testing"
)

// served is what the views say of service `web`, of the machine, and of
// readiness: they must never contradict one another.
func (w *world) served() (service, machine Serving, ready bool) {
	w.t.Helper()
	view := w.state.View(true)
	if slices.Compare(view.NotReady, w.state.NotReady()) != 0 {
		w.t.Errorf("two answers: %v, %v", view.NotReady, w.state.NotReady())
	}
	return view.Services[0].Serving, view.Machine.Serving, len(view.NotReady) == 0
}

func (w *world) wantServed(service, machine Serving, ready bool) {
	w.t.Helper()
	s, m, r := w.served()
	if s != service || m != machine || r != ready {
		w.t.Errorf("service %+v, machine %+v, ready %v;\nnot %+v, %+v, %v", s, m, r, service, machine, ready)
	}
}

func TestWhatPeopleAreToldIsWhatAClientMeets(t *testing.T) {
	all := Serving{State: ServingAll}
	not := func(reason string) Serving { return Serving{NotServing, reason} }
	dead := not("forwarder: does not answer")
	cases := []struct {
		name             string
		happens          func(*world)
		service, machine Serving
		ready            bool
	}{
		{"all is well", func(*world) {}, all, all, true},
		{"the forwarder is gone", func(w *world) { w.do(ForwarderLost{Reason: "does not answer"}) }, dead, dead, false},
		{"one backend of two is down", func(w *world) { fail(w, "10.1.0.11") }, all, all, true},
		{"no backend is left", func(w *world) { fail(w, "10.1.0.11", "10.1.0.12") },
			Serving{State: NoBackend}, not("no service is served: web: no backend"), false},
		{"the machine is being drained", func(w *world) { w.do(DrainMachine{Drain: true}) },
			Serving{Draining, "drained by command; routes carry GRACEFUL_SHUTDOWN"},
			Serving{Draining, "drained by command; routes carry GRACEFUL_SHUTDOWN"}, false},
		{"the machine is drained", func(w *world) { w.do(DrainMachine{Drain: true}); w.pass(2 * drainDelay) },
			not("the machine is drained: drained by command"), Serving{Drained, "drained by command"}, false},
		{"the machine is drained and undrained", func(w *world) {
			w.do(DrainMachine{Drain: true})
			w.pass(2 * drainDelay)
			w.do(DrainMachine{})
			w.pass(drainDelay)
		}, all, all, true},
		{"a next hop is missing after the forwarder came back", func(w *world) {
			w.do(ForwarderLost{Reason: "does not answer"})
			w.unresolved = []Unresolved{{Backend: "web-1", Address: "10.1.0.11", Why: "no route"}}
			w.status()
		}, not("forwarder: waiting for the next hops of 1 backends"),
			not("forwarder: waiting for the next hops of 1 backends"), false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := servingOne(t)
			c.happens(w)
			w.wantServed(c.service, c.machine, c.ready)
			if announced := len(w.announced()) > 0; announced != (c.service.State == ServingAll || c.service.State == Draining) {
				t.Errorf("routes %v while the service is said to be %s", w.announced(), c.service.State)
			}
		})
	}
}

func TestServicesOverOnePoolAreEachServed(t *testing.T) {
	w := shared(t, 4, 2, 2)
	for _, service := range w.state.View(true).Services {
		if service.Serving.State != ServingAll {
			t.Errorf("%s: %+v", service.Service.Name, service.Serving)
		}
	}
}
