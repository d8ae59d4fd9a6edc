package brain

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

const oneServiceWithBGP = oneService + `
cluster: {prefixes: [203.0.113.0/24]}
bgp: {asn: 64512, neighbors: [{address: 10.0.0.254, asn: 64513}]}
`

func TestAStartingControllerLeavesTheRoutesUntilItKnowsBetter(t *testing.T) {
	w := start(t, oneServiceWithBGP)
	if w.last.RoutesDecided {
		t.Error("decided without a probe")
	}
	w.settle(true, "10.1.0.11", "10.1.0.12")
	if w.last.RoutesDecided {
		t.Error("decided without the speaker")
	}
	w.expectReason("speaker: not yet connected")
	w.do(SpeakerConnected{})
	if !w.last.RoutesDecided || !w.last.RoutesChanged {
		t.Errorf("decided %v, changed %v", w.last.RoutesDecided, w.last.RoutesChanged)
	}
	w.expectDesired(vip)
}

func TestARouteThatTheSpeakerHasWaitsForNoNextHop(t *testing.T) {
	for name, c := range map[string]struct {
		has  []netip.Prefix
		want []string
	}{
		"had it":     {[]netip.Prefix{netip.MustParsePrefix(vip)}, []string{vip}},
		"had it not": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, oneServiceWithBGP)
			w.unresolved = []Unresolved{{Backend: "web-1", Address: "10.1.0.11", Why: "no answer"}}
			w.settle(true, "10.1.0.11", "10.1.0.12")
			w.do(SpeakerConnected{Prefixes: c.has})
			w.expectDesired(c.want...)
		})
	}
}

// routeNotes are what the log says of routes.
func (w *world) routeNotes() (notes []string) {
	for _, n := range w.log {
		if n.Kind == "route" {
			notes = append(notes, n.From+" to "+n.To+": "+n.Reason)
		}
	}
	return notes
}

func TestTheLogSaysOfRoutesWhatRoutersSee(t *testing.T) {
	has := []netip.Prefix{netip.MustParsePrefix(vip)}
	for name, c := range map[string]struct {
		config      string
		has         []netip.Prefix
		established bool
		pass        bool
		want        []string
	}{
		"after a restart nothing changed":         {oneServiceWithBGP, has, true, true, nil},
		"after a restart no backend is left":      {oneServiceWithBGP, has, true, false, []string{"announced to withdrawn: no backend"}},
		"a first start":                           {oneServiceWithBGP, nil, true, true, []string{"withdrawn to announced: its services have backends"}},
		"a first start without a session":         {oneServiceWithBGP, nil, false, true, []string{"withdrawn to announced: its services have backends; no BGP session is established yet"}},
		"BGP is not configured":                   {oneService, nil, false, true, nil},
		"BGP is not configured, there is nothing": {oneService, nil, false, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, c.config)
			if c.established {
				w.do(NeighborState{Address: netip.MustParseAddr("10.0.0.254"), State: "established"})
			}
			w.settle(c.pass, "10.1.0.11", "10.1.0.12")
			w.do(SpeakerConnected{Prefixes: c.has})
			w.pass(time.Second)
			if got := w.routeNotes(); !slices.Equal(got, c.want) {
				t.Errorf("the log says %q, want %q", got, c.want)
			}
		})
	}
}

func TestADrainedMachineIsDecidedAtOnce(t *testing.T) {
	w := startCold(t, oneServiceWithBGP)
	w.do(DrainMachine{Drain: true})
	if !w.last.RoutesDecided || len(w.last.Routes) > 0 {
		t.Errorf("decided %v, routes %v", w.last.RoutesDecided, w.last.Routes)
	}
}

func TestWithoutTheSpeakerNothingIsAnnounced(t *testing.T) {
	w := start(t, oneServiceWithBGP)
	w.settle(true, "10.1.0.11", "10.1.0.12")
	w.do(SpeakerConnected{})
	w.do(NeighborState{Address: netip.MustParseAddr("10.0.0.254"), State: "established"})
	w.expectRoutes(vip)
	w.do(SpeakerLost{Reason: "does not answer"})
	w.expectRoutes()
	w.expectDesired(vip)
	w.expectReason("speaker: does not answer")
	if v := w.state.View(true); v.Machine.State != NotServing || len(v.NotReady) == 0 {
		t.Errorf("machine %+v, not ready %v", v.Machine, v.NotReady)
	}
}
