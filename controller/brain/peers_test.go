package brain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/compile"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

const twoPeers = oneService + `
peers: [{name: lb-2, addresses: [10.0.0.2]}, {name: lb-3, addresses: [10.0.0.3]}]
`

func (w *world) peers() []string {
	var peers []string
	for _, p := range w.last.Plan.GetPeers() {
		peers = append(peers, fmt.Sprint(p.Name, " ", p.Healthy))
	}
	return peers
}

var peerAddress = map[string]string{"lb-2": "10.0.0.2", "lb-3": "10.0.0.3", "a stranger": "10.0.0.4"}

func (w *world) ask(peer string, answers ...bool) { w.askAt(peer, peerAddress[peer], answers...) }

func (w *world) askAt(peer, address string, answers ...bool) {
	for _, ok := range answers {
		w.do(PeerResult{Peer: peer, Address: netip.MustParseAddr(address), OK: ok, Reason: "because"})
	}
	w.pass(2 * coalesce)
}

func TestAPeerIsUnhealthyUntilItsFirstAnswerThenDampened(t *testing.T) {
	w := start(t, twoPeers)
	expect := func(step string, want ...string) {
		t.Helper()
		if got := w.peers(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", step, got, want)
		}
	}
	w.pass(2 * coalesce)
	expect("not yet probed", "lb-2 false", "lb-3 false")
	w.ask("lb-2", true)
	w.ask("lb-3", false)
	expect("asked", "lb-2 true", "lb-3 false")
	w.ask("lb-2", false, false)
	expect("two probes without an answer", "lb-2 true", "lb-3 false")
	w.ask("lb-2", false)
	expect("three", "lb-2 false", "lb-3 false")
	w.ask("lb-2", true, true, true, true)
	expect("four answers", "lb-2 false", "lb-3 false")
	w.ask("lb-2", true)
	expect("five", "lb-2 true", "lb-3 false")
	want := Transition{Kind: "peer", Name: "lb-2", From: "up", To: "down", Reason: "because"}
	if !slices.Contains(w.log, want) {
		t.Errorf("log %+v lacks %+v", w.log, want)
	}
	if v := w.state.View(true).Peers; len(v) != 2 || !v[0].Healthy || v[1].Healthy || v[1].Reason != "because" {
		t.Errorf("view %+v", v)
	}
	w.ask("a stranger", true)
	expect("a peer that is not in the config", "lb-2 true", "lb-3 false")
}

// The forwarder tunnels to the first address that it can reach.
func TestAPeerIsReachedByTheAddressThatAnswers(t *testing.T) {
	w := start(t, strings.Replace(oneService, "addresses: [10.0.0.1]", `addresses: [10.0.0.1, "2001:db8::1"]`, 1)+`
peers: [{name: lb-2, addresses: [10.0.0.2, "2001:db8::2"]}]
`)
	expect := func(step string, healthy bool, want ...string) {
		t.Helper()
		peer := w.last.Plan.GetPeers()[0]
		if peer.Healthy != healthy || !slices.Equal(peer.Addresses, want) {
			t.Errorf("%s: %v", step, peer)
		}
	}
	w.pass(2 * coalesce)
	expect("not yet probed", false, "10.0.0.2", "2001:db8::2")
	w.askAt("lb-2", "10.0.0.2", true)
	w.askAt("lb-2", "2001:db8::2", true)
	expect("both answer", true, "10.0.0.2", "2001:db8::2")
	w.askAt("lb-2", "10.0.0.2", false, false, false)
	expect("the first does not", true, "2001:db8::2", "10.0.0.2")
	if v := w.state.View(true).Peers[0]; !v.Healthy || v.Reason != "10.0.0.2: because; 2001:db8::2: because" {
		t.Errorf("%+v", v)
	}
	want := Transition{Kind: "peer", Name: "lb-2 at 10.0.0.2", From: "up", To: "down", Reason: "because"}
	if !slices.Contains(w.log, want) {
		t.Errorf("log %+v lacks %+v", w.log, want)
	}
	w.askAt("lb-2", "2001:db8::2", false, false, false)
	expect("neither does", false, "10.0.0.2", "2001:db8::2")
	w.askAt("lb-2", "10.0.0.2", true, true, true, true, true)
	expect("the first again", true, "10.0.0.2", "2001:db8::2")
}

func TestAClusterThatDoesNotAnswerIsDownInThePlan(t *testing.T) {
	w := start(t, strings.Replace(oneService, "pools: [", "spill: [{prefix_group: all, prefix: 198.51.100.0/24}, {prefix_group: all, prefix: 192.0.2.0/24}], pools: [", 1)+`
prefix_groups: [{name: all, prefixes: [203.0.113.0/24, 198.51.100.0/24, 192.0.2.0/24]}]
`)
	expect := func(step string, want ...bool) {
		t.Helper()
		var got []bool
		for _, spill := range w.last.Plan.Services[0].Spill {
			got = append(got, spill.Down)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: down %v, want %v", step, got, want)
		}
	}
	w.pass(2 * coalesce)
	expect("not yet probed", false, false)
	targets := compile.SpillTargets(w.last.Config)
	if len(targets) != 2 || targets[0].Peer != "198.51.100.0/24" || !targets[0].Spill || targets[0].VIP.String() != "203.0.113.10" || targets[0].To.String() != "198.51.100.10" {
		t.Fatalf("%+v", targets)
	}
	w.askAt(targets[0].Peer, targets[0].To.String(), false)
	expect("the first probe decides alone", true, false)
	if v := w.state.View(true).Peers; len(v) != 2 || v[0].Name != "198.51.100.0/24" || v[0].Healthy || v[0].Reason != "because" || !v[1].Healthy {
		t.Errorf("%+v", v)
	}
	w.askAt(targets[0].Peer, targets[0].To.String(), true, true)
	expect("it answers again", false, false)
}

func TestAStartingControllerKeepsPeersAsTheyAreInTheRunningPlan(t *testing.T) {
	w := startCold(t, twoPeers)
	w.connect(&planv1.Plan{Generation: 7, Peers: []*planv1.Peer{{Name: "lb-2", Healthy: true}, {Name: "lb-3"}}})
	w.pass(2 * coalesce)
	if got := w.peers(); !slices.Equal(got, []string{"lb-2 true", "lb-3 false"}) {
		t.Errorf("%v", got)
	}
	w.ask("lb-2", false)
	if got := w.peers(); !slices.Equal(got, []string{"lb-2 false", "lb-3 false"}) {
		t.Errorf("its first probe decides alone: %v", got)
	}
}
