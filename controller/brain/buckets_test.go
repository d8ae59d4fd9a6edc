package brain

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

var stateless = strings.Replace(oneService, "pools: [web]}", "pools: [web], mode: stateless, buckets: 256, encap: geneve}", 1)

// owners are how many buckets each backend of the service has in the wanted plan.
func (w *world) owners() map[string]int {
	counts := map[string]int{}
	m := w.bucketMap()
	for _, backend := range m.GetByBucket() {
		counts[m.Backends[backend]]++
	}
	return counts
}

func (w *world) bucketMap() *planv1.BucketMap { return w.last.Plan.GetServices()[0].GetBucketMap() }

func (w *world) expectOwners(want map[string]int) {
	w.t.Helper()
	if got := w.owners(); !maps.Equal(got, want) {
		w.t.Errorf("buckets of backends: %v, want %v", got, want)
	}
}

func servingStateless(t *testing.T) *world {
	w := start(t, stateless)
	w.settle(true, "10.1.0.11", "10.1.0.12")
	w.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	w.expectRoutes(vip)
	return w
}

func TestAFailedBackendsBucketsMoveAndOnlyThose(t *testing.T) {
	w := servingStateless(t)
	before := w.bucketMap()
	for range 3 {
		w.settle(false, "10.1.0.12")
	}
	w.expectOwners(map[string]int{"web-1": 256})
	if after := w.bucketMap(); after.Generation <= before.Generation {
		t.Errorf("generation %d follows %d", after.Generation, before.Generation)
	}
}

func TestBackendsThatAllFailedGetBackTheBucketsThatTheyHad(t *testing.T) {
	w := servingStateless(t)
	before := w.bucketMap()
	for range 3 {
		w.probe("10.1.0.11", false)
		w.probe("10.1.0.12", false)
		w.pass(2 * coalesce)
	}
	w.expectOwners(map[string]int{})
	w.expectRoutes()
	none := w.bucketMap()
	for range 2 {
		w.probe("10.1.0.11", true)
		w.probe("10.1.0.12", true)
		w.pass(2 * coalesce)
	}
	after := w.bucketMap()
	if !slices.Equal(before.ByBucket, after.ByBucket) || !slices.Equal(before.Backends, after.Backends) {
		t.Error("buckets moved")
	}
	if after.Generation <= none.Generation {
		t.Errorf("generation %d follows %d", after.Generation, none.Generation)
	}
	w.expectRoutes(vip)
}

func TestARestartedControllerGoesOnWithTheBucketsOfTheRunningPlan(t *testing.T) {
	w := servingStateless(t)
	for range 3 {
		w.settle(false, "10.1.0.12")
	}
	for range 2 {
		w.settle(true, "10.1.0.12")
	}
	w.pass(4 * coalesce) // what came back has other buckets than it had at first
	w.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	running := w.last.Plan

	again := startCold(t, stateless)
	again.connect(running)
	again.pass(2 * coalesce)
	want, got := running.GetServices()[0].BucketMap, again.bucketMap()
	if got.Generation != want.Generation || !slices.Equal(got.ByBucket, want.ByBucket) {
		t.Errorf("generation %d with other buckets than %d", got.Generation, want.Generation)
	}
	if fresh := servingStateless(t).bucketMap(); slices.Equal(fresh.ByBucket, want.ByBucket) {
		t.Error("a new map is the same, so the test shows nothing")
	}
}

func TestANumberOfBucketsThatChangesIsRefused(t *testing.T) {
	w := servingStateless(t)
	before := w.last.Plan
	w.do(ConfigLoaded{Config: parse(t, strings.Replace(stateless, "buckets: 256", "buckets: 512", 1))})
	w.pass(2 * coalesce)
	if w.last.Plan != before {
		t.Error("the plan changed")
	}
	if v := w.state.View(true).Config; !v.Stale || !strings.Contains(v.Problem, "services[0].buckets: 512 in place of 256") {
		t.Errorf("config view %+v", v)
	}
}

func TestAServiceThatBecomesStatelessGetsBucketsAndBack(t *testing.T) {
	w := servingOne(t)
	w.do(ConfigLoaded{Config: parse(t, stateless)})
	w.pass(2 * coalesce)
	w.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	w.do(ConfigLoaded{Config: parse(t, oneService)})
	w.pass(2 * coalesce)
	if m := w.bucketMap(); m != nil {
		t.Errorf("a stateful service with %d buckets", len(m.ByBucket))
	}
}

// drained has web-1 drained by command, and all steps made but the last.
func drained(t *testing.T) *world {
	w := servingStateless(t)
	w.do(DrainBackend{Backend: "web-1", Drain: true})
	w.pass(4 * coalesce)
	w.expectOwners(map[string]int{"web-2": 256})
	w.expectMoves(128)
	return w
}

// expectMoves that are open.
func (w *world) expectMoves(want int) {
	w.t.Helper()
	if got := len(w.bucketMap().GetMoves()); got != want {
		w.t.Errorf("%d moves are open, want %d", got, want)
	}
}

func TestEachStepOfADrainWaitsUntilTheForwarderHasTheOneBefore(t *testing.T) {
	w := servingStateless(t)
	w.accepts = false
	w.do(DrainBackend{Backend: "web-1", Drain: true})
	w.pass(10 * coalesce)
	w.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	w.expectMoves(128)
	w.accept()
	w.pass(10 * coalesce)
	w.expectOwners(map[string]int{"web-2": 256})
	w.expectMoves(128)
}

func TestAMoveEndsWhenTheOldBackendsAgentCountsNothing(t *testing.T) {
	w := drained(t)
	busy := w.bucketMap().Moves[0].Bucket
	w.accept()
	w.pass(time.Minute)
	w.count("web-2", map[string]map[uint32]uint32{"web": {}})
	w.pass(time.Second)
	w.expectMoves(128)
	w.count("web-1", map[string]map[uint32]uint32{"web": {busy: 1}})
	w.pass(time.Second)
	w.expectMoves(1)
	w.count("web-1", map[string]map[uint32]uint32{"other": {}})
	w.pass(time.Second)
	w.expectMoves(1)
	w.count("web-1", map[string]map[uint32]uint32{"web": {}, "other": {busy: 1}})
	w.pass(time.Second)
	w.expectMoves(0)
}

func TestAMoveEndsByItsAge(t *testing.T) {
	w := drained(t)
	w.accept()
	w.pass(time.Second)
	if again := w.state.buckets.closes.at; again.Sub(w.now) > 24*time.Hour || again.Sub(w.now) < 23*time.Hour {
		t.Errorf("asks to be woken in %v", again.Sub(w.now))
	}
	w.now = w.now.Add(24*time.Hour - 3*time.Second)
	w.status()
	w.pass(time.Second)
	w.expectMoves(128)
	w.pass(3 * time.Second)
	w.expectMoves(0)
	if again := w.state.buckets.closes.at; !again.IsZero() {
		t.Errorf("asks to be woken at %v", again)
	}
}

// Killed in the middle of a drain: it goes on with what is kept on disk; without
// that with the running plan; and where the forwarder lags behind, that is waited
// for.
func TestARestartedControllerGoesOnWithOpenMoves(t *testing.T) {
	w := drained(t)
	w.accept()
	w.pass(time.Second)
	running, kept := w.last.Plan, w.last.Maps
	for _, disk := range []bool{true, false} {
		again := &world{t: t, state: New(w.now), now: w.now, accepts: true}
		if disk {
			again.do(BucketMapsKept{Maps: kept})
		}
		again.do(DrainBackend{Backend: "web-1", Drain: true})
		again.do(ConfigLoaded{Config: parse(t, stateless)})
		again.connect(running)
		again.pass(time.Second)
		again.expectOwners(map[string]int{"web-2": 256})
		again.expectMoves(128)
		again.pass(10 * time.Second)
		again.count("web-1", map[string]map[uint32]uint32{"web": {}})
		again.pass(time.Second)
		again.expectMoves(0)
	}
}

// The forwarder was restarted with the plan that it had on disk: an older one.
func TestAForwarderWithAnOlderMapIsWaitedFor(t *testing.T) {
	w := servingStateless(t)
	older := w.last.Plan
	w.accepts = false
	w.do(DrainBackend{Backend: "web-1", Drain: true})
	w.pass(4 * coalesce)
	w.accept() // prepared
	w.pass(2 * coalesce)
	w.expectOwners(map[string]int{"web-2": 256}) // not accepted
	w.do(ForwarderConnected{Plan: older})
	w.pass(10 * coalesce)
	w.expectMoves(128)
	w.count("web-1", map[string]map[uint32]uint32{"web": {}})
	w.pass(time.Minute)
	w.count("web-1", map[string]map[uint32]uint32{"web": {}})
	w.pass(time.Second)
	w.expectMoves(128)
	w.accept()
	w.pass(10 * time.Second)
	w.count("web-1", map[string]map[uint32]uint32{"web": {}})
	w.pass(time.Second)
	w.expectMoves(0)
}

func TestAControllerThatStartsMovesNothingBeforeItHasProbed(t *testing.T) {
	w := servingStateless(t)
	kept := w.last.Maps
	again := &world{t: t, state: New(w.now), now: w.now, accepts: true}
	again.do(BucketMapsKept{Maps: kept})
	again.do(ConfigLoaded{Config: parse(t, stateless)})
	again.connect(nil) // the forwarder's state is lost, too
	again.settle(true, "10.1.0.11")
	again.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	again.settle(true, "10.1.0.12")
	again.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	again.expectMoves(0)

	fresh := start(t, stateless)
	fresh.settle(true, "10.1.0.11")
	fresh.expectOwners(map[string]int{})
	fresh.settle(true, "10.1.0.12")
	fresh.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	fresh.expectMoves(0)
}

func TestARefusedConfigWithoutTheServiceLosesNoMap(t *testing.T) {
	w := drained(t)
	w.accept()
	w.pass(time.Second)
	w.accepts = false
	w.do(ConfigLoaded{Config: parse(t, oneService)})
	w.pass(2 * coalesce)
	w.do(PlanRefused{Generation: w.last.Plan.Generation, Reason: "no memory"})
	w.pass(2 * coalesce)
	w.expectOwners(map[string]int{"web-2": 256})
	w.expectMoves(128)

	w.accept()
	w.accepts = true
	w.do(ConfigLoaded{Config: parse(t, oneService)})
	w.pass(2 * coalesce)
	if len(w.last.Maps) != 0 {
		t.Errorf("%d maps are kept of services that are gone", len(w.last.Maps))
	}
}
