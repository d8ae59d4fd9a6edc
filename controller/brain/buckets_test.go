package brain

import (
	"maps"
	"slices"
	"strings"
	"testing"

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
	w := start(t, stateless)
	w.settle(true, "10.1.0.12")
	w.settle(true, "10.1.0.11") // comes second, so it has other buckets than if both came at once
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
