package run

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/buckets"
)

func someMap(generation uint64) *buckets.Map {
	return &buckets.Map{Generation: generation, Buckets: slices.Repeat([]buckets.Bucket{{Owner: "web-1"}}, 256)}
}

// A controller that starts knows that the others do not wait for it; where that cannot be
// read it takes it that they do not.
func TestItIsKeptThatNoMoveWaitsForThisMachine(t *testing.T) {
	store := stateStore{dir: t.TempDir()}
	start := func() *Controller {
		c := &Controller{store: store, log: slog.New(slog.DiscardHandler)}
		c.restoreWithdrawn()
		return c
	}
	for _, want := range []bool{false, true, false} {
		start().keepWithdrawn(brain.Desired{Withdrawn: want})
		if got := start().withdrawn; got != want {
			t.Errorf("%v in place of %v", got, want)
		}
	}
	if err := os.WriteFile(filepath.Join(store.dir, withdrawnFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !start().withdrawn {
		t.Error("what cannot be read: moves are taken to wait for it")
	}
}

func TestBucketMapsAreKeptByServiceAndDamagedOnesAreTold(t *testing.T) {
	store := stateStore{dir: t.TempDir()}
	for service, generation := range map[string]uint64{"web": 1, "../a/b": 7, "gone": 3} {
		if err := store.setBucketMap(service, someMap(generation)); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.setBucketMap("gone", nil); err != nil {
		t.Fatal(err)
	}
	if err := store.setBucketMap("never", nil); err != nil {
		t.Fatal(err)
	}
	maps, problems := store.bucketMaps()
	if len(problems) > 0 || len(maps) != 2 || maps["../a/b"].Generation != 7 || !reflect.DeepEqual(maps["web"].Buckets, someMap(1).Buckets) {
		t.Errorf("%v: %v", problems, maps)
	}
	dir := filepath.Join(store.dir, bucketMapsDir)
	text, err := os.ReadFile(filepath.Join(dir, "web.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"web.json": string(text[:len(text)/2]), "other.json": string(text), ".web.json-123": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	maps, problems = store.bucketMaps()
	said := ""
	for _, problem := range problems {
		said += problem.Error() + "\n"
	}
	if len(maps) != 1 || len(problems) != 2 || !strings.Contains(said, "web.json: ") || !strings.Contains(said, "other.json: it is of service web") {
		t.Errorf("%v; said was %s", maps, said)
	}
}
