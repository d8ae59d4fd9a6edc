package store

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/guideway/guideway/controller/buckets"
)

func someMap(generation uint64) *buckets.Map {
	return &buckets.Map{Generation: generation, Buckets: slices.Repeat([]buckets.Bucket{{Owner: "web-1"}}, 256)}
}

func TestBucketMapsAreKeptByServiceAndDamagedOnesAreTold(t *testing.T) {
	store := Store{Dir: t.TempDir()}
	for service, generation := range map[string]uint64{"web": 1, "../a/b": 7, "gone": 3} {
		if err := store.SetBucketMap(service, someMap(generation))(); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.SetBucketMap("gone", nil)(); err != nil {
		t.Fatal(err)
	}
	if err := store.SetBucketMap("never", nil)(); err != nil {
		t.Fatal(err)
	}
	maps, problems := store.BucketMaps()
	if len(problems) > 0 || len(maps) != 2 || maps["../a/b"].Generation != 7 || !reflect.DeepEqual(maps["web"].Buckets, someMap(1).Buckets) {
		t.Errorf("%v: %v", problems, maps)
	}
	dir := filepath.Join(store.Dir, bucketMapsDir)
	text, err := os.ReadFile(filepath.Join(dir, "web.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"web.json": string(text[:len(text)/2]), "other.json": string(text), ".web.json-123": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	maps, problems = store.BucketMaps()
	said := ""
	for _, problem := range problems {
		said += problem.Error() + "\n"
	}
	if len(maps) != 1 || len(problems) != 2 || !strings.Contains(said, "web.json: ") || !strings.Contains(said, "other.json: it is of service web") {
		t.Errorf("%v; said was %s", maps, said)
	}
}
