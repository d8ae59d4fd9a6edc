package fleet

// Machines that choose different backends for the same flows.

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// Tables of machines differ for a moment with every backend that goes down or
// comes back; then they judge backends differently.
const liveDifferenceMax = 30 * time.Second

// Difference between machines of one shard that run one generation.
type Difference struct {
	// Of the tables that forwarders have; else of what the config says.
	Live       bool
	Shard      string
	Generation uint64
	// Names in order, by fingerprint.
	Machines map[string][]string
}

// String is for people, with the cure.
func (d Difference) String() string {
	var sides []string
	for _, fingerprint := range slices.Sorted(maps.Keys(d.Machines)) {
		sides = append(sides, fmt.Sprintf("%s on %s", fingerprint, strings.Join(d.Machines[fingerprint], ", ")))
	}
	what, cure := "the config means different members under one number", "compare their versions and the file of cluster.secret_file on them"
	if d.Live {
		what, cure = fmt.Sprintf("tables have differed for more than %v", liveDifferenceMax), "compare `guideway show backends` on them: they judge backends differently, or one is drained on one machine alone"
	}
	return fmt.Sprintf("shard %s, config %d: %s (%s), so flows that move between machines break: %s", d.Shard, d.Generation, what, strings.Join(sides, "; "), cure)
}

// sameConfig are machines that should choose alike.
type sameConfig struct {
	shard      string
	generation uint64
	// Of those compared by their tables; else empty.
	configured string
}

// Differences between machines, as they last.
type Differences struct {
	// When tables were first seen to differ.
	since map[sameConfig]time.Time
}

// Observe the machines as they are registered, and return what differs: of the
// configured members at once, of tables when it has lasted.
func (d *Differences) Observe(machines []*fleetv1.Machine, now time.Time) []Difference {
	configured, live := map[sameConfig]map[string][]string{}, map[sameConfig]map[string][]string{}
	for _, m := range machines {
		key := sameConfig{shard: m.Shard, generation: m.Generation}
		add(configured, key, m.ConfiguredFingerprint, m.Name)
		key.configured = m.ConfiguredFingerprint
		add(live, key, m.LiveFingerprint, m.Name)
	}
	var found []Difference
	for key, byFingerprint := range configured {
		if len(byFingerprint) > 1 {
			found = append(found, Difference{Shard: key.shard, Generation: key.generation, Machines: byFingerprint})
		}
	}
	since := map[sameConfig]time.Time{}
	for key, byFingerprint := range live {
		if len(byFingerprint) < 2 {
			continue
		}
		began, known := d.since[key]
		if !known {
			began = now
		}
		since[key] = began
		if now.Sub(began) >= liveDifferenceMax {
			found = append(found, Difference{Live: true, Shard: key.shard, Generation: key.generation, Machines: byFingerprint})
		}
	}
	d.since = since
	slices.SortFunc(found, func(a, b Difference) int { return strings.Compare(a.String(), b.String()) })
	return found
}

// add a machine; one without a config from etcd, or without tables, is compared
// with none.
func add(to map[sameConfig]map[string][]string, key sameConfig, fingerprint, name string) {
	if key.generation == 0 || fingerprint == "" {
		return
	}
	if to[key] == nil {
		to[key] = map[string][]string{}
	}
	to[key][fingerprint] = append(to[key][fingerprint], name)
}
