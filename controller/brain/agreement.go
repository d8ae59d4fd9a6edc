package brain

// Bucket maps shared by several load balancers: which map this machine runs, what it
// reports to etcd, and what it writes as the leader. Package agreement decides; this file
// supplies its input.
//
//	etcd ─► AgreementSeen ─► agreement.Part ─► Run: plan, disk
//	                                       └─► Propose, told, verdicts: Desired.Agreement ─► etcd

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/agreement"
	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

const (
	// When etcd has answered for so long, controllers that live have said what they
	// find; and a machine that has not said yet which map it has does not run.
	registeredAfter = 3 * time.Second
	waitedAfter     = 10 * time.Second
	// Routers have moved to other paths this long after routes were withdrawn.
	withdrawnAfter = 5 * time.Second
)

type (
	// AgreementSeen is what etcd holds of bucket maps, and what machines say of them.
	AgreementSeen struct{ Seen *agreement.Seen }
	// AgreementAway: etcd does not answer.
	AgreementAway struct{ Reason string }
)

// Agreement is what this machine is to have in etcd.
type Agreement struct {
	Machine, Shard string
	// It may be the leader.
	Lead bool
	Told agreement.Told
	// Not nil: this machine gets packets again when Told is written, which is only to
	// be done while etcd's maps have these revisions, by service.
	Rejoins  map[string]int64
	Verdicts agreement.Verdicts
	// By service; a map that is nil is to be removed.
	Proposals map[string]*agreement.Proposal
}

// agreementState is what is known of etcd.
type agreementState struct {
	// As read last; nil: never.
	seen *agreement.Seen
	away string
	// It has answered, and this machine has led, since then; zero: not now.
	answersSince, leadsSince time.Time
	proposals                map[string]*agreement.Proposal
	// What is wanted in etcd, and by what this was decided; nil: nothing.
	wanted *Agreement
	basis  basis
	// Withdrawn was wanted of etcd, by this controller or by one before it; and the number
	// of what said afterwards that packets come again, 0: nothing did.
	saidWithdrawn bool
	rejoined      uint64
	// By the Step before, when time alone changes something; zero: it does not.
	again earliest
}

// agrees: buckets are assigned together with other machines.
func (in *inputs) agrees() bool {
	return in != nil && in.config.Etcd != nil && len(in.config.Peers) > 0 && len(in.stateless) > 0
}

func (e AgreementSeen) apply(s *State) {
	b, a := &s.buckets, &s.buckets.agreement
	former := a.seen
	if a.away != "" {
		s.note("buckets", "etcd", "lost", "answers", "bucket maps are agreed on again")
	}
	wasAway := a.away != "" || former == nil
	if wasAway {
		a.answersSince = s.now
	}
	a.seen, a.away = e.Seen, ""
	if told := a.told(s.machineName()); !told.Withdrawn && a.rejoined > 0 && told.Number >= a.rejoined {
		a.saidWithdrawn, a.rejoined = false, 0
	}
	switch {
	case !e.Seen.Leads:
		a.leadsSince = time.Time{}
	case a.leadsSince.IsZero():
		a.leadsSince = s.now
	}
	if former == nil || former.Leader != e.Seen.Leader {
		s.note("buckets", "leader", "", e.Seen.Leader, "elected in etcd")
	}
	isNews := wasAway || former.Leader != e.Seen.Leader || former.Leads != e.Seen.Leads ||
		!reflect.DeepEqual(former.Told, e.Seen.Told) || !reflect.DeepEqual(former.Verdicts, e.Seen.Verdicts)
	for _, service := range s.stateless() {
		if isNews || former.Maps[service].Revision != e.Seen.Maps[service].Revision {
			b.due.add(service)
		}
	}
}

func (e AgreementAway) apply(s *State) {
	a := &s.buckets.agreement
	if a.away == e.Reason {
		return
	}
	if a.away == "" {
		s.note("buckets", "etcd", "answers", "lost", "only buckets of dead backends move: "+e.Reason)
	}
	a.away, a.leadsSince = e.Reason, time.Time{}
	s.buckets.due.add(s.stateless()...)
}

// setAgain to when time alone is the next to change something.
func (a *agreementState) setAgain(at *step, withdrawnAt time.Time) {
	a.again = earliest{}
	if at.current.agrees() && a.seen != nil && a.away == "" {
		for _, after := range []time.Duration{registeredAfter, waitedAfter} {
			if due := a.answersSince.Add(after); due.After(at.now) {
				a.again.add(due)
			}
		}
	}
	if withdrawnAt.After(at.now) {
		a.again.add(withdrawnAt)
	}
}

// withdrawnAt is when routers have moved away from this machine, which is drained by
// command; zero: it is not.
func (ds *drainsState) withdrawnAt() time.Time {
	if ds.machine == nil {
		return time.Time{}
	}
	return ds.machine.until.Add(withdrawnAfter)
}

func (rs *routesState) isWithdrawn(at *step) bool {
	due := rs.drains.withdrawnAt()
	return !due.IsZero() && !at.now.Before(due) && !rs.announceAnything()
}

// part of this machine in a service's map.
func (b *bucketState) part(at *step, service string) *agreement.Part {
	c, a := at.current.config, &b.agreement
	p := &agreement.Part{
		Machine: c.Machine.Name, Shard: c.Machine.Shard, Service: service, Machines: at.current.sharers(),
		Own: b.maps[service], OwnUncertain: b.uncertain[service], Seen: a.seen, Away: a.away != "",
	}
	if a.seen == nil {
		return p
	}
	answers := at.now.Sub(a.answersSince)
	p.Waited = answers >= waitedAfter || b.lacking[service]
	p.Registered = answers >= registeredAfter || !slices.ContainsFunc(p.Set(), func(machine string) bool {
		return machine != p.Machine && a.seen.Verdicts[machine] == nil
	})
	return p
}

// sharers are the machines that the config names, this one first.
func (in *inputs) sharers() []string {
	names := []string{in.config.Machine.Name}
	for _, peer := range in.config.Peers {
		names = append(names, peer.Name)
	}
	return names
}

// nextAgreed is the map that this machine runs of a service, and what it proposes; nil:
// it has none yet.
func (b *bucketState) nextAgreed(at *step, h *healthState, service *config.Service, group *planv1.Group) *buckets.Map {
	p := b.part(at, service.Name)
	local := b.situation(at, h, service, group)
	run := p.Run(local)
	if run != nil && run != p.Own {
		delete(b.uncertain, service.Name)
	}
	switch {
	case run != nil && run.NamesOthers(local.Backends):
		b.lacking[service.Name] = true
		run = withoutOthers(run, local)
	case run == nil || run.MadeOf == 0: // else it is still what was made without others
		delete(b.lacking, service.Name)
	}
	delete(b.agreement.proposals, service.Name)
	if h.firstRound {
		agreed := b.situation(at, h, service, b.votedGroup(at, h, service, group))
		agreed.Counts = b.countsSince(service.Name, b.agreement.leadsSince)
		if proposal := p.Propose(agreed); proposal != nil {
			b.agreement.proposals[service.Name] = proposal
		}
	}
	return run
}

// withoutOthers is a map without the backends that the config does not have (any more,
// or yet): no plan may name them. The machine does not have the agreed map then.
func withoutOthers(m *buckets.Map, local buckets.Situation) *buckets.Map {
	local.Alone = true
	all := make(map[string]buckets.Backend, len(local.Backends))
	for name, backend := range local.Backends {
		all[name] = buckets.Backend{State: buckets.Alive, Address: backend.Address}
	}
	local.Backends = all
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if len(local.Members) > 0 {
			break
		}
		local.Members = append(local.Members, buckets.Member{Backend: name, Weight: 1})
	}
	return m.Next(local)
}

// countsSince a machine has become the leader: those that came before were of a time
// that the former leader's clock has noted.
func (b *bucketState) countsSince(service string, since time.Time) map[string]buckets.Count {
	counts := maps.Clone(b.counts[service])
	maps.DeleteFunc(counts, func(_ string, count buckets.Count) bool { return count.At.Before(since.Add(buckets.CountsAfter)) })
	return counts
}

// votedGroup has the states that the majority of live controllers finds, and drains of
// all machines.
func (b *bucketState) votedGroup(at *step, h *healthState, service *config.Service, group *planv1.Group) *planv1.Group {
	seen, machine := b.agreement.seen, at.machineName()
	voted := &planv1.Group{Name: group.GetName()}
	for i, m := range group.GetMembers() {
		state := m.GetState()
		if state != stateDisabled {
			votes := append(seen.Votes(machine, group.GetName(), m.GetBackend()), b.vote(at, h, service.Members[i], m))
			switch agreement.Majority(votes) {
			case agreement.Down:
				state = stateDown
			case agreement.Keeps:
				state = stateDraining
			case agreement.TakesNew:
				state = stateActive
			}
		}
		if state == stateActive && (m.GetWeight() == 0 || len(seen.DrainedOn(m.GetBackend(), at.current.sharers())) > 0) {
			state = stateDraining
		}
		voted.Members = append(voted.Members, &planv1.Member{Backend: m.GetBackend(), Weight: m.GetWeight(), State: state})
	}
	return voted
}

// vote of this machine about a member.
func (b *bucketState) vote(at *step, h *healthState, member config.Member, m *planv1.Member) agreement.Vote {
	switch m.GetState() {
	case stateActive:
		return agreement.TakesNew
	case stateDraining:
		return agreement.Keeps
	case stateDown:
		switch {
		case !h.judgedBefore(at, member):
		case b.agents.speaks(m.GetBackend()):
			return agreement.Keeps
		default:
			return agreement.Down
		}
	}
	return agreement.Unknown
}

// DrainedElsewhere says why buckets do not come back to a backend when it is no longer
// drained here, and what ends that; empty: they do, or it has none.
func (s *State) DrainedElsewhere(backend string) string {
	if !s.current.agrees() || len(s.current.statelessWith(backend)) == 0 {
		return ""
	}
	others := s.buckets.agreement.seen.DrainedOn(backend, s.current.sharers()[1:])
	if len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("%s is drained by command on %s, too, and its buckets of stateless services come back when it is on none: `guideway undrain backend %s` there; remove a machine that was taken out from the config's `peers`", backend, enumerate(others), backend)
}

// verdicts of this machine by the plan that is wanted. One that is cut off has none.
func (b *bucketState) verdicts(at *step, h *healthState, wanted *planv1.Plan) agreement.Verdicts {
	verdicts := agreement.Verdicts{}
	if !h.cutOffSince.IsZero() {
		return verdicts
	}
	needed := map[string]*config.Service{}
	for i := range at.current.services {
		if service := &at.current.services[i]; service.Mode == config.ModeStateless {
			needed[service.Group] = service
		}
	}
	for _, group := range wanted.GetGroups() {
		service := needed[group.GetName()]
		if service == nil || len(service.Members) != len(group.GetMembers()) {
			continue
		}
		votes := map[string]agreement.Vote{}
		for i, m := range group.GetMembers() {
			if vote := b.vote(at, h, service.Members[i], m); vote != agreement.Unknown {
				votes[m.GetBackend()] = vote
			}
		}
		verdicts[group.GetName()] = votes
	}
	return verdicts
}

// decideAgreement is what this machine is to have in etcd; nil: it shares nothing.
func (s *State) decideAgreement() *Agreement {
	b, a := &s.buckets, &s.buckets.agreement
	isDrained, isWithdrawn := s.routes.drains.machine != nil, s.routes.isWithdrawn(&s.step)
	if !a.basis.differs(s.plan.decisions, b.acknowledgements, s.health.commands, a.seen, a.away, isDrained, isWithdrawn) {
		return a.wanted
	}
	if !s.current.agrees() || !s.forwarder.met {
		a.wanted = nil
		return nil
	}
	c := s.current.config
	next := &Agreement{
		Machine: c.Machine.Name, Shard: c.Machine.Shard, Lead: s.health.firstRound && s.health.cutOffSince.IsZero(),
		Verdicts: b.verdicts(&s.step, &s.health, s.plan.wanted), Proposals: maps.Clone(a.proposals),
		Told: agreement.Told{Shard: c.Machine.Shard, Maps: map[string]uint64{}, Drained: slices.Sorted(maps.Keys(s.health.drained))},
	}
	for _, service := range s.stateless() {
		next.Told.Maps[service] = b.acknowledged[service]
	}
	b.tellWithdrawal(&s.step, next, isDrained, isWithdrawn)
	b.proposeRemovals(&s.step, next)
	// After one of a clock that has been set back since, too.
	next.Told.Number = max(uint64(s.now.UnixNano()), a.told(s.machineName()).Number+1)
	if a.wanted != nil {
		next.Told.Number = max(next.Told.Number, a.wanted.Told.Number+1)
	}
	if a.wanted != nil && sameTold(a.wanted.Told, next.Told) && (a.wanted.Rejoins == nil) == (next.Rejoins == nil) {
		next.Told.Number = a.wanted.Told.Number
	}
	if next.Rejoins != nil && a.rejoined == 0 {
		a.rejoined = next.Told.Number
	}
	a.wanted = next
	return next
}

// sameTold but for its number.
func sameTold(a, b agreement.Told) bool {
	a.Number, b.Number = 0, 0
	return reflect.DeepEqual(a, b)
}

// tellWithdrawal says whether packets come here. A machine that had withdrawn says
// that they come again when it has the present maps, and announces after that; until
// then etcd keeps what it has.
func (b *bucketState) tellWithdrawal(at *step, next *Agreement, isDrained, isWithdrawn bool) {
	a := &b.agreement
	if isWithdrawn {
		next.Told.Withdrawn = true
		a.saidWithdrawn, a.rejoined = true, 0
		return
	}
	stored := a.told(at.machineName())
	if !b.isToldWithdrawn(at) {
		return
	}
	a.saidWithdrawn = true
	next.Rejoins = map[string]int64{}
	for _, service := range at.stateless() {
		m := a.stored(service)
		if isDrained || !b.hasPresent(service, m) {
			next.Told.Withdrawn, next.Rejoins = stored.Withdrawn, nil
			a.rejoined = 0
			return
		}
		next.Rejoins[service] = m.Revision
	}
}

// isToldWithdrawn: etcd has this machine withdrawn, or may have.
func (b *bucketState) isToldWithdrawn(at *step) bool {
	return b.agreement.saidWithdrawn || b.agreement.told(at.machineName()).Withdrawn
}

// hasPresent says whether the forwarder has the map that etcd holds; or there is none,
// as the service never had a backend.
func (b *bucketState) hasPresent(service string, stored agreement.Stored) bool {
	if stored.Map == nil {
		return stored.Revision == 0 && b.agreement.seen != nil && b.maps[service] == nil
	}
	return stored.Map.Generation == b.acknowledged[service]
}

// proposeRemovals of maps whose services the config does not have any more, and no
// machine either.
func (b *bucketState) proposeRemovals(at *step, next *Agreement) {
	seen := b.agreement.seen
	if seen == nil || !seen.Leads || b.agreement.away != "" {
		return
	}
	for service, stored := range seen.Maps {
		isConfigured := slices.ContainsFunc(at.current.config.Services, func(c config.Service) bool { return c.Name == service })
		if isConfigured {
			continue
		}
		isHeld := false
		for _, told := range seen.Told {
			_, has := told.Maps[service]
			isHeld = isHeld || has
		}
		if !isHeld {
			next.Proposals[service] = &agreement.Proposal{Previous: stored.Revision, AsLeader: true}
		}
	}
}

// whyBucketsWait says why a stateless service may not be announced yet, though it has
// backends; empty: it may.
func (b *bucketState) whyWaits(at *step, service *config.Service) string {
	if service.Mode != config.ModeStateless || !at.current.agrees() {
		return ""
	}
	a := &b.agreement
	switch {
	case b.maps[service.Name] == nil:
		return "waiting for the bucket map that the load balancers share: " + cmp.Or(a.away, "etcd has none yet that could be used")
	case b.isToldWithdrawn(at):
		return "waiting until etcd says that packets come here again, so that moves of buckets wait for this machine: " + cmp.Or(a.away, "it takes the present bucket maps first")
	}
	return ""
}

func (a *agreementState) told(machine string) agreement.Told {
	if a.seen == nil {
		return agreement.Told{}
	}
	return a.seen.Told[machine]
}

func (a *agreementState) stored(service string) agreement.Stored {
	if a.seen == nil {
		return agreement.Stored{}
	}
	return a.seen.Maps[service]
}

// AgreementView is what people see of it, of one service.
type AgreementView struct {
	// The machine that assigns buckets; empty: none does.
	Leader string
	// Those that moves wait for in general, and now.
	LoadBalancers []string
	Lags          []agreement.Lag
	// Why moves do not go on otherwise; empty: they do.
	Problem string
	// This machine made its map by itself while etcd was away.
	MadeAlone bool
}

func (b *bucketState) viewAgreement(at *step, service string) *AgreementView {
	if !at.current.agrees() {
		return nil
	}
	p := b.part(at, service)
	view := &AgreementView{Lags: p.Lags(), Problem: p.Missing(), MadeAlone: p.Own != nil && p.Own.MadeOf > 0}
	switch {
	case p.Away:
		view.Problem = "etcd does not answer, so only buckets of dead backends move: " + b.agreement.away
	case p.Seen == nil:
		view.Problem = "etcd has not been read yet"
	default:
		view.Leader, view.LoadBalancers = p.Seen.Leader, p.Set()
		if p.Seen.Refused != "" {
			view.Problem = p.Seen.Refused
		}
		if view.Problem == "" && view.Leader == "" {
			view.Problem = "no machine leads: none has finished its first round of probes, or etcd denies them the keys below leader/ (docs/etcd.md)"
		}
	}
	return view
}

// bucketGenerations of a plan's maps, as agreed on.
func (b *bucketState) generations(at *step, plan *planv1.Plan) map[string]uint64 {
	generations := map[string]uint64{}
	for _, service := range plan.GetServices() {
		running := service.GetBucketMap()
		if running == nil {
			continue
		}
		generations[service.GetName()] = running.GetGeneration()
		if m := b.maps[service.GetName()]; m != nil {
			generations[service.GetName()] = m.Agreed()
		}
		if (b.uncertain[service.GetName()] || b.lacking[service.GetName()]) && at.current.agrees() {
			generations[service.GetName()] = 0
		}
	}
	return generations
}

// situation of a service as this machine finds its members, or by other states.
func (b *bucketState) situation(at *step, h *healthState, service *config.Service, group *planv1.Group) buckets.Situation {
	situation := compile.BucketSituation(service, group)
	for i, m := range group.GetMembers() {
		known := situation.Backends[m.GetBackend()]
		switch {
		case m.GetState() != stateDown:
		case !h.judgedBefore(at, service.Members[i]):
			known.State = buckets.Unprobed
		case b.agents.speaks(m.GetBackend()):
			known.State = buckets.Alive
		}
		situation.Backends[m.GetBackend()] = known
	}
	b.unknown[service.Name] = b.agents.unknownMembers(at.current, b.maps[service.Name], &situation)
	situation.Counts = b.counts[service.Name]
	situation.MoveAgeMax, situation.Now = at.current.config.MoveAgeMax, at.now
	return situation
}
