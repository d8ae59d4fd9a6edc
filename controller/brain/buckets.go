package brain

// The bucket maps of stateless services. Each map follows from the previous one, which is
// kept on disk or else read from the plan that the forwarder runs.
//
//	members, acknowledgements, agents' counts, time ─► buckets.Map.Next ─► plan, disk

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/agreement"
	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// BucketMapsKept brings what was kept on disk; before everything else.
type BucketMapsKept struct {
	Maps map[string]*buckets.Map
	// As Desired.Withdrawn was.
	Withdrawn bool
}

// bucketState is all that is known of the services' maps, by service; of what etcd holds of
// them, and of what the backends' agents say.
type bucketState struct {
	agreement agreementState
	agents    agentsState

	// Never edited. Services that the config does not have any more stay until the
	// forwarder has taken a plan without them.
	maps    map[string]*buckets.Map
	changed []string // in this Step
	// Made for the plan that is being decided.
	next map[string]*buckets.Map
	// Generations of the maps that the forwarder has; and how often it told them.
	acknowledged     map[string]uint64
	acknowledgements uint64
	// Maps that were read from the forwarder's plan, which does not say of which agreed
	// map they were made.
	uncertain map[string]bool
	// Agreed maps that name backends which this machine's config does not have.
	lacking map[string]bool
	// By backend.
	counts map[string]map[string]buckets.Count
	// Services whose maps may go a step on.
	due dueNames
	// By service, backends that wait until other agents accept theirs.
	unknown map[string][]UnknownBackend
	// When the first move closes by its age; zero: none is open.
	closes earliest
}

func newBucketState(now time.Time) bucketState {
	return bucketState{
		agreement: agreementState{proposals: map[string]*agreement.Proposal{}},
		agents:    agentsState{said: map[string]agentSaid{}, since: now, again: earliest{now.Add(heardAfter)}},
		maps:      map[string]*buckets.Map{}, next: map[string]*buckets.Map{}, acknowledged: map[string]uint64{},
		uncertain: map[string]bool{}, lacking: map[string]bool{}, counts: map[string]map[string]buckets.Count{}, due: dueNames{names: map[string]bool{}}, unknown: map[string][]UnknownBackend{},
	}
}

func (e BucketMapsKept) apply(s *State) {
	maps.Copy(s.buckets.maps, e.Maps)
	s.buckets.agreement.saidWithdrawn = e.Withdrawn
}

func (b *bucketState) count(e AgentSaid) {
	for service, byBucket := range e.Counts {
		if m := b.maps[service]; m == nil || len(m.Steps) == 0 {
			continue
		}
		if b.counts[service] == nil {
			b.counts[service] = map[string]buckets.Count{}
		}
		b.counts[service][e.Backend] = buckets.Count{ByBucket: byBucket, At: e.Counted}
		b.due.add(service)
	}
}

// inheritBuckets of the plan that the forwarder runs: it has those maps, and where
// they are later than ours, ours are lost.
func (b *bucketState) inherit(at *step, plan *planv1.Plan) {
	addresses := addressesOf(plan)
	b.acknowledged = map[string]uint64{}
	b.acknowledgements++
	for _, service := range plan.GetServices() {
		running, name := service.GetBucketMap(), service.GetName()
		if running == nil {
			continue
		}
		known := b.maps[name]
		b.acknowledged[name] = runs(known, running.GetGeneration())
		if known == nil || known.Generation < running.GetGeneration() {
			if len(running.GetByBucket()) == 0 && known == nil && at.current.agrees() {
				continue // it never had one
			}
			b.maps[name], b.uncertain[name] = buckets.FromPlan(running, addresses, at.now), true
			if at.current.agrees() {
				b.acknowledged[name] = 0
			}
			at.note("buckets", name, "", "as in the running plan", fmt.Sprintf("no map of generation %d is kept", running.GetGeneration()))
		}
		b.due.add(name)
	}
}

// runs is the agreed generation of what a forwarder runs, which is that of a known map,
// or an earlier one.
func runs(known *buckets.Map, running uint64) uint64 {
	if known != nil && running <= known.Generation {
		return min(running, known.Agreed())
	}
	return running
}

func addressesOf(plan *planv1.Plan) map[string]netip.Addr {
	addresses := make(map[string]netip.Addr, len(plan.GetBackends()))
	for _, b := range plan.GetBackends() {
		if address, err := netip.ParseAddr(b.Address); err == nil {
			addresses[b.Name] = address
		}
	}
	return addresses
}

// nextBuckets of a service: the map that goes into the plan.
func (b *bucketState) nextPlanned(at *step, h *healthState, service *config.Service, group *planv1.Group) *planv1.BucketMap {
	if at.current.agrees() {
		delete(b.due.names, service.Name)
		next := b.nextAgreed(at, h, service, group)
		if next == nil {
			return &planv1.BucketMap{}
		}
		b.next[service.Name] = next
		return next.Plan()
	}
	former := b.maps[service.Name]
	if former == nil && !h.firstRound {
		// Else the first backend that answers gets all, and most of it moves on
		// at once.
		b.due.names[service.Name] = true // not outdated by it
		return &planv1.BucketMap{}
	}
	delete(b.due.names, service.Name)
	if former != nil && former.MadeOf > 0 { // there are no others any more that it is to agree with
		own := *former
		own.MadeOf, former = 0, &own
	}
	situation := b.situation(at, h, service, group)
	situation.Acknowledged = b.acknowledged[service.Name]
	next := former.Next(situation)
	b.next[service.Name] = next
	return next.Plan()
}

func (b *bucketState) isDue(at *step, h *healthState, service string) bool {
	return b.due.names[service] && (h.firstRound || b.maps[service] != nil || at.current.agrees())
}

// commitBuckets: the maps that were made are those of the plan that is wanted.
func (b *bucketState) commit(at *step) {
	for _, name := range slices.Sorted(maps.Keys(b.next)) {
		next, former := b.next[name], b.maps[name]
		if next == former {
			continue
		}
		b.maps[name] = next
		b.changed = append(b.changed, name)
		if changes := buckets.Compare(former, next); changes != (buckets.Changes{}) {
			at.note("buckets", name, "", fmt.Sprintf("generation %d", next.Generation), changes.String())
		}
		if next.Generation == b.acknowledged[name] && len(next.Steps) == 0 {
			delete(b.counts, name)
		}
	}
	clear(b.next)
	b.closes = earliest{}
	for name, m := range b.maps {
		// What should be closed and is not waits for something else.
		if due := m.Due(at.current.config.MoveAgeMax); at.current.isStateless(name) && due.After(at.now) {
			b.closes.add(due)
		}
	}
}

// statelessWith a backend: the services.
func (in *inputs) statelessWith(backend string) (services []string) {
	for _, name := range in.stateless {
		if hasMember(in.byName[name], backend) {
			services = append(services, name)
		}
	}
	return services
}

func hasMember(service *config.Service, backend string) bool {
	return slices.ContainsFunc(service.Members, func(m config.Member) bool { return m.Backend.Name == backend })
}

func (in *inputs) isStateless(name string) bool {
	service := in.byName[name]
	return service != nil && service.Mode == config.ModeStateless
}

// check by time.
func (b *bucketState) check(at *step, h *healthState) {
	silent, allHeard := b.agents.check(at)
	b.agentsChanged(at, h, silent)
	if allHeard || b.agreement.again.isDue(at.now) {
		b.due.add(at.stateless()...)
	}
	if !b.closes.isDue(at.now) {
		return
	}
	b.closes = earliest{}
	for name, m := range b.maps {
		if len(m.Steps) > 0 {
			b.due.add(name)
		}
	}
}

// acknowledgeBuckets of a plan that the forwarder has taken.
func (b *bucketState) acknowledge(at *step, generations map[string]uint64) {
	for name := range b.maps {
		if _, isThere := generations[name]; !isThere && !at.current.isStateless(name) {
			delete(b.maps, name)
			delete(b.counts, name)
			delete(b.uncertain, name)
			delete(b.lacking, name)
			delete(b.agreement.proposals, name)
			b.changed = append(b.changed, name)
		}
	}
	for name, generation := range generations {
		if b.acknowledged[name] != generation {
			b.due.add(name)
		}
	}
	b.acknowledged = generations
	b.acknowledgements++
}

func (b *bucketState) view(at *step, service string) *BucketsView {
	m := b.maps[service]
	if m == nil || !at.current.isStateless(service) {
		return nil
	}
	return &BucketsView{
		Summary: m.Summarize(b.counts[service]), Count: len(m.Buckets), Generation: m.Agreed(), Agreement: b.viewAgreement(at, service),
		Acknowledged: b.acknowledged[service], Waiting: m.Waiting, Unknown: b.unknown[service], MoveAgeMax: at.current.config.MoveAgeMax,
	}
}

// changedBuckets says which service's number of buckets differs from what runs:
// all its connections would change their backends. Empty: none does.
func (in *inputs) changedBuckets(c *config.Config) (problem string) {
	if in == nil {
		return ""
	}
	for i := range c.Services {
		next := &c.Services[i]
		now := in.byName[next.Name]
		if now != nil && now.Buckets != 0 && next.Buckets != 0 && now.Buckets != next.Buckets {
			return fmt.Sprintf("services[%d].buckets: %d in place of %d would move every connection of %s: remove the service and add it under another name, or leave the number", i, next.Buckets, now.Buckets, next.Name)
		}
	}
	return ""
}
