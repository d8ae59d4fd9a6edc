package fleet

// Finds machines that choose different backends for the same flows.

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// Tables of machines differ for a moment with every backend that goes down or
// comes back; then they judge backends differently. Configs in files differ for as long
// as they are applied on one machine after the other.
const differenceMax = 30 * time.Second

// Aspect in which machines differ.
type Aspect string

// Aspects, as metrics have them.
const (
	// What one config means.
	AspectConfigured Aspect = "configured"
	// The tables that forwarders have.
	AspectLive Aspect = "live"
	// The configs themselves, where they are in files.
	AspectConfig Aspect = "config"
)

// Aspects are all of them.
var Aspects = []Aspect{AspectConfigured, AspectLive, AspectConfig}

// Difference between machines that should be alike.
type Difference struct {
	Of Aspect
	// Of all but configs: machines of one shard with one config are compared.
	Shard string
	// Names it: a number from etcd, or a digest; empty of configs.
	Config string
	// Names in order, by fingerprint or digest.
	Machines map[string][]string
}

// String is for people, with the cure.
func (d Difference) String() string {
	var sides []string
	for _, fingerprint := range slices.Sorted(maps.Keys(d.Machines)) {
		sides = append(sides, fmt.Sprintf("%s on %s", fingerprint, strings.Join(d.Machines[fingerprint], ", ")))
	}
	who := strings.Join(sides, "; ")
	of := fmt.Sprintf("shard %s, config %s: ", d.Shard, d.Config)
	const broken = ", so flows that move between machines break: "
	switch d.Of {
	case AspectConfig:
		return fmt.Sprintf("the machines have run different configs for more than %v (%s), so flows that move between machines may break: `guideway config diff` on each against the file that all are to have, and `guideway config apply`", differenceMax, who)
	case AspectLive:
		return of + fmt.Sprintf("tables have differed for more than %v (%s)", differenceMax, who) + broken + "compare `guideway show backends` on them: they judge backends differently, or one is drained on one machine alone (OWN DRAINS of `guideway fleet -o wide`)"
	}
	return of + fmt.Sprintf("it means different members to them (%s)", who) + broken + "compare their versions and the file of cluster.secret_file on them"
}

// alike are machines that should be, in one aspect.
type alike struct {
	of            Aspect
	shard, config string
	// Of those compared by their tables; else empty.
	configured string
}

// Differences between machines, as they last.
type Differences struct {
	// When those that must last were first seen.
	since map[alike]time.Time
}

// Observe the machines as they say of themselves, and return what differs: of the
// configured members at once, of the others when it has lasted.
func (d *Differences) Observe(machines []*fleetv1.Machine, now time.Time) []Difference {
	var found []Difference
	since := map[alike]time.Time{}
	for group, byFingerprint := range compared(machines) {
		if len(byFingerprint) < 2 {
			continue
		}
		began, known := d.since[group]
		if !known {
			began = now
		}
		since[group] = began
		if group.of == AspectConfigured || now.Sub(began) >= differenceMax {
			found = append(found, Difference{Of: group.of, Shard: group.shard, Config: group.config, Machines: byFingerprint})
		}
	}
	d.since = since
	slices.SortFunc(found, func(a, b Difference) int { return strings.Compare(a.String(), b.String()) })
	return found
}

// compared are the machines' names by fingerprint, for each group that should have one.
func compared(machines []*fleetv1.Machine) map[alike]map[string][]string {
	groups := map[alike]map[string][]string{}
	add := func(group alike, fingerprint, name string) {
		if fingerprint == "" {
			return
		}
		if groups[group] == nil {
			groups[group] = map[string][]string{}
		}
		groups[group][fingerprint] = append(groups[group][fingerprint], name)
	}
	for _, m := range machines {
		add(alike{of: AspectConfig}, m.ConfigDigest, m.Name)
		config := m.ConfigDigest
		switch {
		case config == "" && m.Config == 0:
			continue // it is compared with none
		case config == "":
			config = fmt.Sprint(m.Config)
		}
		group := alike{of: AspectConfigured, shard: m.Shard, config: config}
		add(group, m.ConfiguredFingerprint, m.Name)
		group.of, group.configured = AspectLive, m.ConfiguredFingerprint
		add(group, m.LiveFingerprint, m.Name)
	}
	return groups
}
