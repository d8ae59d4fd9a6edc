// Package agreement decides how several load balancers come to run the same bucket maps. They
// share data through etcd; this package decides what a machine does with it.
//
//	verdicts of live controllers ─► majority ─► the leader ─► maps/<service>
//	acknowledgements ─► what all have ──────────────┘              │
//	        ▲                                                      ▼
//	        └── forwarder ◄── plan ◄── the map that a machine runs ┘
//
// It guarantees, whatever etcd, machines and the leader do:
//   - No map is written before each load balancer of the set has the previous one, except to
//     move the buckets of dead backends.
//   - A machine runs the agreed map, or a map that it derived from it by itself for dead
//     backends while etcd was unreachable.
//
// The set consists of the machines named by the config, except those whose routes are
// withdrawn on purpose. It does not depend on which controllers are alive.
//
// Pure: no etcd, no clock.
package agreement

import (
	"fmt"
	"slices"

	"github.com/guideway/guideway/controller/buckets"
)

// Seen is what etcd held when it was read last.
type Seen struct {
	// Of the leader of this machine's shard; empty: there is none.
	Leader string
	// It is this machine.
	Leads bool
	// By service.
	Maps map[string]Stored
	// By machine.
	Told map[string]Told
	// Of controllers that live, by machine.
	Verdicts map[string]Verdicts
	// Why etcd refuses what this machine writes; empty: it does not.
	Refused string
}

// Stored map of a service.
type Stored struct {
	// nil: it is damaged.
	Map     *buckets.Map
	Problem string
	// etcd's, when it was written.
	Revision int64
}

// Told is what a machine says, and what stands when its controller has ended.
type Told struct {
	Shard string
	// By service, the generation of the agreed map that its forwarder runs.
	Maps map[string]uint64
	// Its routes are withdrawn on purpose, and routers have moved: it gets no packets.
	Withdrawn bool
	// Backends that are drained by command there.
	Drained []string
	// Grows with each that the machine writes.
	Number uint64
	// etcd's, when it was written.
	Revision int64
}

// Lag of a machine of the set: moves of a service wait for it.
type Lag struct {
	Machine string
	// Of the agreed map that its forwarder has; 0: none, or it has said nothing.
	Generation uint64
	// It has not said anything yet.
	Silent bool
}

// Part of one machine in agreeing on one service's map.
type Part struct {
	Machine, Shard, Service string
	// Those that the config names, this one among them.
	Machines []string
	// What runs here; nil: nothing does.
	Own *buckets.Map
	// Own was read from the forwarder's plan, which does not say of which agreed map
	// it was made.
	OwnUncertain bool
	// nil: etcd was not read since this machine's controller started.
	Seen *Seen
	// etcd does not answer.
	Away bool
	// etcd has answered for long enough that controllers which live have said what they
	// find.
	Registered bool
	// And for long enough that a leader has taken up what it made by itself, and that a
	// machine which has not said what it has does not run.
	Waited bool
}

// Set of load balancers that get packets of the service.
func (p *Part) Set() (set []string) {
	for _, machine := range p.Machines {
		told, hasTold := p.Seen.Told[machine]
		if hasTold && (told.Withdrawn || told.Shard != p.Shard) {
			continue
		}
		set = append(set, machine)
	}
	return set
}

// Lags are those of the set that do not have the agreed map, in order of the config.
func (p *Part) Lags() (lags []Lag) {
	stored := p.stored()
	if stored == nil {
		return nil
	}
	for _, machine := range p.Set() {
		told, hasTold := p.Seen.Told[machine]
		if generation := told.Maps[p.Service]; generation < stored.Generation {
			lags = append(lags, Lag{machine, generation, !hasTold})
		}
	}
	return lags
}

// acknowledged is the latest generation that the whole set has.
func (p *Part) acknowledged() uint64 {
	generation, isFirst := uint64(0), true
	for _, machine := range p.Set() {
		if told := p.Seen.Told[machine].Maps[p.Service]; isFirst || told < generation {
			generation, isFirst = told, false
		}
	}
	return generation
}

// own generation of an agreed map; 0 where that is not known.
func (p *Part) own() uint64 {
	if p.Own == nil || p.OwnUncertain {
		return 0
	}
	return p.Own.Agreed()
}

// known generation, which steps led to: this machine's; where it has none, the
// latest that the others have.
func (p *Part) known() uint64 {
	generation := p.own()
	if generation > 0 {
		return generation
	}
	for _, machine := range p.Set() {
		if told := p.Seen.Told[machine].Maps[p.Service]; !buckets.IsJump(0, told) {
			generation = max(generation, told)
		}
	}
	return generation
}

// stored map, if it can be used, is no older than the one that this machine has, and was
// made from there by steps.
func (p *Part) stored() *buckets.Map {
	if p.Seen == nil {
		return nil
	}
	if m := p.Seen.Maps[p.Service].Map; m != nil && m.Generation >= p.own() && !buckets.IsJump(p.known(), m.Generation) {
		return m
	}
	return nil
}

// Run is the map that this machine is to run; nil: it has none. Backends are those
// that it finds by itself.
func (p *Part) Run(local buckets.Situation) *buckets.Map {
	stored := p.stored()
	if stored != nil && (p.Own == nil || p.OwnUncertain || stored.Generation > p.own() || p.Own.MadeOf == 0 || p.Waited && !p.Away) {
		return p.alone(stored, local)
	}
	return p.alone(p.Own, local)
}

// alone with a map: while etcd is away it goes on for dead backends.
func (p *Part) alone(m *buckets.Map, local buckets.Situation) *buckets.Map {
	if m == nil || !p.Away || len(m.Buckets) != int(local.Buckets) {
		return m
	}
	local.Alone = true
	return m.Next(local)
}

// Proposal is a map that is to be written, unless something has changed since.
type Proposal struct {
	Map *buckets.Map
	// etcd's revision of the map that is replaced; 0: there is none.
	Previous int64
	// This machine must lead; else it brings back what etcd has lost, and any may lead.
	AsLeader bool
	// Revisions of what machines have told that no move waits for, by name: one that
	// gets packets again does so by telling first.
	Withdrawn map[string]int64
}

// Propose what this machine should write; nil: nothing. Backends are those that the
// majority finds.
func (p *Part) Propose(agreed buckets.Situation) *Proposal {
	if p.Seen == nil || p.Away || p.Seen.Leader == "" {
		return nil
	}
	if p.stored() == nil || p.OwnUncertain && p.Seen.Maps[p.Service].Map == nil {
		return p.bringBack(agreed)
	}
	if !p.Seen.Leads || !p.Registered {
		return nil
	}
	agreed.Acknowledged = p.acknowledged()
	stored := p.stored()
	from := p.from(stored, agreed)
	next := from.Next(agreed)
	if next == stored {
		return nil
	}
	return p.propose(next, true)
}

// from which the leader goes on: what it made by itself while etcd was away, if all
// that it took buckets from are dead by the majority, too.
func (p *Part) from(stored *buckets.Map, agreed buckets.Situation) *buckets.Map {
	own := p.Own
	if own == nil || own.MadeOf == 0 || p.OwnUncertain || own.MadeOf != stored.Generation || len(own.Buckets) != len(stored.Buckets) {
		return stored
	}
	for i := range own.Buckets {
		former := stored.Buckets[i].Owner
		if own.Buckets[i].Owner != former && agreed.Backends[former].State >= buckets.Unprobed {
			return stored
		}
	}
	return own
}

// bringBack a map that etcd does not have, or has in part or as it was before: by a
// machine that has the latest. Where none has any, the leader makes the first.
func (p *Part) bringBack(agreed buckets.Situation) *Proposal {
	latest := uint64(0)
	for _, machine := range p.Set() {
		told, hasTold := p.Seen.Told[machine]
		if !hasTold && !p.Waited {
			return nil
		}
		if generation := told.Maps[p.Service]; !buckets.IsJump(p.known(), generation) {
			latest = max(latest, generation)
		}
	}
	switch leader := p.Seen.Told[p.Seen.Leader].Maps[p.Service]; {
	case p.Own != nil && (p.own() >= latest && (p.Seen.Leads || leader < latest) || latest == 0 && p.Seen.Leads):
		// A machine may run the step that followed, and have said nothing of it yet.
		return p.propose(p.Own.Again(agreed.Now), p.Seen.Leads)
	case latest == 0 && p.Seen.Leads && p.Registered && len(agreed.Members) > 0:
		var none *buckets.Map
		return p.propose(none.Next(agreed), true)
	}
	return nil
}

// Missing says why the service has no agreed map that could be used, and what is
// waited for; empty: it has one, or etcd is not asked.
func (p *Part) Missing() string {
	if p.Seen == nil || p.Away || p.stored() != nil {
		return ""
	}
	switch stored, isThere := p.Seen.Maps[p.Service]; {
	case !isThere:
		return "etcd has no bucket map of it"
	case stored.Map == nil:
		return "etcd's bucket map of it is damaged: " + stored.Problem
	case stored.Map.Generation > p.own():
		return fmt.Sprintf("its bucket map in etcd has generation %d but %d is known: a jump that large was not made by Guideway; the map is ignored, and the known one is written again", stored.Map.Generation, p.known())
	}
	return "etcd's bucket map of it is older than the one here: was etcd restored?"
}

func (p *Part) propose(m *buckets.Map, asLeader bool) *Proposal {
	if m.MadeOf > 0 {
		agreed := *m
		agreed.MadeOf = 0
		m = &agreed
	}
	proposal := &Proposal{Map: m, Previous: p.Seen.Maps[p.Service].Revision, AsLeader: asLeader, Withdrawn: map[string]int64{}}
	for _, machine := range p.Machines {
		if told := p.Seen.Told[machine]; told.Withdrawn {
			proposal.Withdrawn[machine] = told.Revision
		}
	}
	return proposal
}

// DrainedOn are those of the machines on which a backend is drained by command: new
// connections of stateless services are to go to others from all.
func (s *Seen) DrainedOn(backend string, machines []string) (on []string) {
	if s == nil {
		return nil
	}
	for _, machine := range machines {
		if slices.Contains(s.Told[machine].Drained, backend) {
			on = append(on, machine)
		}
	}
	return on
}
