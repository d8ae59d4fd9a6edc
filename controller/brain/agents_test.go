package brain

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/config"
)

// count is what a backend's agent reports of its connections, counted just now.
func (w *world) count(backend string, counts map[string]map[uint32]uint32) {
	w.t.Helper()
	w.do(AgentSaid{Backend: backend, Counted: w.now, Counts: counts})
}

// speak for a while, as agents do.
func (w *world) speak(duration time.Duration, said ...AgentSaid) {
	w.t.Helper()
	for until := w.now.Add(duration); w.now.Before(until); {
		for _, state := range said {
			w.do(state)
		}
		w.pass(time.Second)
	}
}

var serves = AgentSaid{Backend: "web-2", Serves: true}

func TestABackendWhoseProbesFailDrainsWhileItsAgentSpeaks(t *testing.T) {
	w := servingStateless(t)
	w.speak(time.Second, serves)
	for range 3 {
		w.settle(false, "10.1.0.12")
	}
	w.speak(2*time.Second, serves)
	w.expectOwners(map[string]int{"web-1": 256})
	w.expectMoves(128)
	if b := w.state.View(true).Backends[1]; b.State != "draining" || !strings.HasPrefix(b.Reason, "its agent speaks, and http-ok: ") {
		t.Errorf("%s: %s", b.State, b.Reason)
	}
	// Silent, too: it is dead, and nobody is sent there any more.
	w.pass(speaksFor + 2*coalesce)
	w.expectMoves(0)
	if b := w.state.View(true).Backends[1]; b.State != "down" {
		t.Errorf("%s: %s", b.State, b.Reason)
	}
}

// An agent of both families' backends speaks for both.
func TestAnAgentSpeaksForAllBackendsAtItsAddresses(t *testing.T) {
	w := servingStateless(t)
	other := AgentSaid{Backend: "web-2-v4", Serves: true, Own: knowing(2)}
	w.speak(time.Second, other)
	for range 3 {
		w.settle(false, "10.1.0.12")
	}
	w.speak(2*time.Second, other)
	w.expectMoves(128)
}

func TestHowABackendAnswersIsKnownWhileItsAgentSpeaks(t *testing.T) {
	w := servingStateless(t)
	if got := w.backend("web-1").Answers; got != nil {
		t.Errorf("before the agent spoke: %+v", got)
	}
	answers := &Answers{Measured: 900, P50: time.Millisecond, P99: 30 * time.Millisecond, Open: 1.5, Connections: 12}
	w.do(AgentSaid{Backend: "web-1", Answers: answers})
	if got := w.backend("web-1").Answers; got == nil || *got != *answers {
		t.Errorf("answers: %+v", got)
	}
	w.do(AgentSaid{Backend: "web-2", Answers: &Answers{Open: 4.5}})
	if one, two := w.backend("web-1").Load, w.backend("web-2").Load; one == nil || two == nil || *one != 0.5 || *two != 1.5 {
		t.Errorf("loads: %v, %v", one, two)
	}
	w.pass(silentAfter)
	if got := w.backend("web-1").Answers; got != nil {
		t.Errorf("of a silent agent: %+v", got)
	}
}

func TestAgentsThatLackVIPsAreNamedWhileTheySpeak(t *testing.T) {
	w := servingStateless(t)
	behind := func() string { return strings.Join(w.state.View(false).AgentsBehind, " ") }
	w.do(AgentSaid{Backend: "web-1", VIPsLacking: 2, Own: knowing(2)})
	w.do(AgentSaid{Backend: "gone", VIPsLacking: 1})
	if got := behind(); got != "web-1" {
		t.Errorf("behind are %q", got)
	}
	w.pass(silentAfter + time.Second)
	if got := behind(); got != "" {
		t.Errorf("behind are %q, which have fallen silent", got)
	}
	w.do(AgentSaid{Backend: "web-1", VIPsLacking: 1})
	w.do(AgentSaid{Backend: "web-1"})
	if got := behind(); got != "" {
		t.Errorf("behind are %q, which were set up", got)
	}
}

func TestABackendWhoseAgentTakesNothingOutOfTunnelsIsDead(t *testing.T) {
	w := servingStateless(t)
	w.speak(time.Second, AgentSaid{Backend: "web-2"})
	for range 3 {
		w.settle(false, "10.1.0.12")
	}
	w.expectMoves(0)
	w.expectOwners(map[string]int{"web-1": 256})
}

// A pool that a stateful service has, too: its backend is down there, and in the
// stateless one's buckets it drains.
func TestOnlyStatelessServicesKeepABackendWhoseAgentSpeaks(t *testing.T) {
	w := start(t, strings.Replace(stateless, "pools:\n", "- {name: other, vips: [{address: 203.0.113.11}], pools: [web]}\npools:\n", 1))
	w.settle(true, "10.1.0.11", "10.1.0.12")
	w.speak(time.Second, serves)
	for range 3 {
		w.settle(false, "10.1.0.12")
	}
	w.speak(time.Second, serves)
	w.expectMoves(128)
	if b := w.state.View(true).Backends[1]; b.State != "down" {
		t.Errorf("%s: %s", b.State, b.Reason)
	}
}

// knowing agents of the backends with these numbers.
func knowing(numbers ...byte) map[config.AgentAddress]bool {
	known := map[config.AgentAddress]bool{}
	for _, number := range numbers {
		known[config.AgentAddressOf(netip.AddrFrom4([4]byte{10, 1, 0, 10 + number}))] = true
	}
	return known
}

// web-3 is new: web-1's agent was told of it, web-2's not yet.
func TestNoBucketMovesToABackendWhoseAgentTheOthersDoNotAccept(t *testing.T) {
	w := servingStateless(t)
	more := parse(t, strings.Replace(stateless, "{name: web-2, address: 10.1.0.12}", "{name: web-2, address: 10.1.0.12}, {name: web-3, address: 10.1.0.13}", 1))
	more.Agents = &config.Agents{}
	said := []AgentSaid{
		{Backend: "web-1", Accepts: knowing(2, 3)},
		{Backend: "web-2", Accepts: knowing(1)},
		{Backend: "web-3", Accepts: knowing(1, 2)},
	}
	w.speak(time.Second, said...)
	w.do(ConfigLoaded{Config: more})
	for range 3 {
		w.settle(true, "10.1.0.13")
	}
	w.speak(20*time.Second, said...)
	w.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	w.expectMoves(0)
	view := w.state.View(true).Services[0].Buckets
	if view.Waiting != 85 || len(view.Unknown) != 1 || view.Unknown[0] != (UnknownBackend{"web-3", "web-2"}) {
		t.Errorf("%d wait, %+v", view.Waiting, view.Unknown)
	}
	said[1].Accepts = knowing(1, 3)
	w.speak(3*time.Second, said...)
	if n := w.owners()["web-3"]; n != 85 {
		t.Errorf("web-3 has %d buckets", n)
	}
}

func TestAgentsThatFallSilentAndSpeakAgainAreTold(t *testing.T) {
	w := servingStateless(t)
	c := parse(t, stateless)
	c.Agents = &config.Agents{}
	first, second := AgentSaid{Backend: "web-1", Serves: true}, AgentSaid{Backend: "web-2"}
	refused := AgentRefused{Backend: "web-2", Reason: "an old key"}
	w.do(ConfigLoaded{Config: c})
	w.speak(heardAfter+4*time.Second, first) // web-2 not within the time that all have
	w.speak(4*time.Second, first, second)
	w.do(refused) // by whoever: it speaks
	w.speak(4*time.Second, first, second)
	w.speak(silentAfter+4*time.Second, first)
	for range 3 {
		w.do(refused)
		w.speak(4*time.Second, first)
	}
	second.VIPsLacking = 1
	w.speak(4*time.Second, first, second)
	second.VIPsLacking = 0
	w.speak(4*time.Second, first, second)
	more := parse(t, strings.Replace(stateless, "{name: web-2, address: 10.1.0.12}", "{name: web-3, address: 10.1.0.13}", 1))
	more.Agents = &config.Agents{}
	w.do(ConfigLoaded{Config: more})
	w.speak(2*heardAfter, first, second)
	var told []string
	for _, t := range w.log {
		if t.Kind == "agent" || t.Name == "agents" {
			told = append(told, fmt.Sprintf("%s: %s > %s (%s)", t.Name, t.From, t.To, t.Reason))
		}
	}
	want := []string{
		"agents: unknown > heard (1 of 2 are silent: web-2)", "web-2: silent > heard (its messages come)", "web-2: heard > silent (it was not heard for 12s)",
		"web-2: silent > refused (it is silent, and datagrams in its name are refused: an old key)", "web-2: refused > behind (its config lacks VIPs of its backend's services: packets to these are dropped there)",
		"web-2: behind > heard (its messages come)", "web-3:  > silent (it was never heard since this controller started)",
	}
	if !slices.Equal(told, want) {
		t.Errorf("told:\n%s", strings.Join(told, "\n"))
	}
}

func TestAgentsThatChangeTogetherAreOneLine(t *testing.T) {
	backends := ""
	var all []AgentSaid
	for i := range 30 {
		backends += fmt.Sprintf("{name: web-%02d, address: 10.1.0.%d}, ", i, 11+i)
		all = append(all, AgentSaid{Backend: fmt.Sprintf("web-%02d", i)})
	}
	c := parse(t, regexp.MustCompile(`backends: \[.*\]`).ReplaceAllString(stateless, "backends: ["+backends+"]"))
	c.Agents = &config.Agents{}
	w := &world{t: t, state: New(time.Unix(1_800_000_000, 0)), now: time.Unix(1_800_000_000, 0)}
	w.do(ConfigLoaded{Config: c})
	speak := func(seconds int, said []AgentSaid) { // not all at once
		for range seconds {
			for _, state := range said {
				w.do(state)
				w.pass(time.Second / time.Duration(len(said)))
			}
		}
	}
	speak(15, all)
	w.log = nil
	speak(20, all[:1])
	speak(6, all)
	want := []Transition{
		{Kind: "agent", Name: "web-01, web-02, web-03 and 26 more", From: "heard", To: "silent", Reason: "it was not heard for 12s"},
		{Kind: "agent", Name: "web-01, web-02, web-03 and 26 more", From: "silent", To: "heard", Reason: "its messages come"},
	}
	if !slices.Equal(w.log, want) {
		t.Errorf("%+v", w.log)
	}
}

func TestAStartTellsOnceThatAllAgentsAreHeard(t *testing.T) {
	c := parse(t, stateless)
	c.Agents = &config.Agents{}
	w := &world{t: t, state: New(time.Unix(1_800_000_000, 0)), now: time.Unix(1_800_000_000, 0)}
	w.do(ConfigLoaded{Config: c})
	w.speak(heardAfter+2*time.Second, AgentSaid{Backend: "web-1"}, serves)
	if n := len(w.log); n == 0 || w.log[n-1] != (Transition{Kind: "controller", Name: "agents", From: "unknown", To: "heard", Reason: "none of 2 is silent"}) {
		t.Errorf("%+v", w.log)
	}
}

// Until all have spoken to a controller that has started, nothing moves that need not.
func TestAControllerThatHasStartedHearsAllAgentsFirst(t *testing.T) {
	w := drained(t)
	running, kept := w.last.Plan, w.last.Maps
	c := parse(t, stateless)
	c.Agents = &config.Agents{}
	again := &world{t: t, state: New(w.now), now: w.now, accepts: true}
	again.do(BucketMapsKept{Maps: kept})
	again.do(ConfigLoaded{Config: c})
	again.connect(running)
	again.settle(true, "10.1.0.11", "10.1.0.12")
	again.expectOwners(map[string]int{"web-2": 256})
	again.pass(heardAfter + time.Second)
	again.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
}

func TestAgentsCountLessOftenTheOlderTheMoves(t *testing.T) {
	w := New(time.Unix(0, 0))
	if interval := w.CountInterval(); interval != countIntervalMax {
		t.Errorf("without moves: %v", interval)
	}
	w.buckets.maps["web"] = &buckets.Map{Steps: map[uint64]buckets.Step{1: {At: w.now}}}
	for age, want := range map[time.Duration]time.Duration{time.Second: time.Second, 50 * time.Second: 5 * time.Second, time.Hour: countIntervalMax} {
		w.now = time.Unix(0, 0).Add(age)
		if interval := w.CountInterval(); interval != want {
			t.Errorf("after %v: %v", age, interval)
		}
	}
}
