package brain

import (
	"net/netip"
	"testing"
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
