package brain

// Bucket maps that several load balancers share: what this machine runs of what etcd
// holds, what it says there, and as the leader writes. Package agreement decides;
// here is what it needs to know.
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
	a := &s.agreement
	former := a.seen
	if a.away != "" {
		s.note("buckets", "etcd", "lost", "answers", "bucket maps are agreed on again")
	}
	wasAway := a.away != "" || former == nil
	if wasAway {
		a.answersSince = s.now
	}
	a.seen, a.away = e.Seen, ""
	if told := s.agreement.told(s.machineName()); !told.Withdrawn && a.rejoined > 0 && told.Number >= a.rejoined {
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
			s.buckets.due.add(service)
		}
	}
}

func (e AgreementAway) apply(s *State) {
	if s.agreement.away == e.Reason {
		return
	}
	if s.agreement.away == "" {
		s.note("buckets", "etcd", "answers", "lost", "only buckets of dead backends move: "+e.Reason)
	}
	s.agreement.away = e.Reason
	s.agreement.leadsSince = time.Time{}
	s.buckets.due.add(s.stateless()...)
}

// agreeAgain is when time alone is the next to change something; zero: it does not.
func (s *State) agreeAgain() (next earliest) {
	a := &s.agreement
	if s.current.agrees() && a.seen != nil && a.away == "" {
		for _, after := range []time.Duration{registeredAfter, waitedAfter} {
			if at := a.answersSince.Add(after); at.After(s.now) {
				next.add(at)
			}
		}
	}
	if at := s.withdrawnAt(); at.After(s.now) {
		next.add(at)
	}
	return next
}

// withdrawnAt is when routers have moved away from this machine, which is drained by
// command; zero: it is not.
func (s *State) withdrawnAt() time.Time {
	if s.drains.machine == nil {
		return time.Time{}
	}
	return s.drains.machine.until.Add(withdrawnAfter)
}

func (s *State) isWithdrawn() bool {
	at := s.withdrawnAt()
	return !at.IsZero() && !s.now.Before(at) && !s.routes.announceAnything()
}

// part of this machine in a service's map.
func (s *State) part(service string) *agreement.Part {
	c, a := s.current.config, &s.agreement
	p := &agreement.Part{
		Machine: c.Machine.Name, Shard: c.Machine.Shard, Service: service, Machines: s.current.sharers(),
		Own: s.buckets.maps[service], OwnUncertain: s.buckets.uncertain[service], Seen: a.seen, Away: a.away != "",
	}
	if a.seen == nil {
		return p
	}
	answers := s.now.Sub(a.answersSince)
	p.Waited = answers >= waitedAfter || s.buckets.lacking[service]
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
func (s *State) nextAgreed(service *config.Service, group *planv1.Group) *buckets.Map {
	p := s.part(service.Name)
	local := s.situation(service, group)
	run := p.Run(local)
	if run != nil && run != p.Own {
		delete(s.buckets.uncertain, service.Name)
	}
	switch {
	case run != nil && run.NamesOthers(local.Backends):
		s.buckets.lacking[service.Name] = true
		run = withoutOthers(run, local)
	case run == nil || run.MadeOf == 0: // else it is still what was made without others
		delete(s.buckets.lacking, service.Name)
	}
	delete(s.agreement.proposals, service.Name)
	if s.health.firstRound {
		agreed := s.situation(service, s.votedGroup(service, group))
		agreed.Counts = s.buckets.countsSince(service.Name, s.agreement.leadsSince)
		if proposal := p.Propose(agreed); proposal != nil {
			s.agreement.proposals[service.Name] = proposal
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
func (s *State) votedGroup(service *config.Service, group *planv1.Group) *planv1.Group {
	seen, machine := s.agreement.seen, s.machineName()
	voted := &planv1.Group{Name: group.GetName()}
	for i, m := range group.GetMembers() {
		state := m.GetState()
		if state != stateDisabled {
			votes := append(seen.Votes(machine, group.GetName(), m.GetBackend()), s.vote(service.Members[i], m))
			switch agreement.Majority(votes) {
			case agreement.Down:
				state = stateDown
			case agreement.Keeps:
				state = stateDraining
			case agreement.TakesNew:
				state = stateActive
			}
		}
		if state == stateActive && (m.GetWeight() == 0 || len(seen.DrainedOn(m.GetBackend(), s.current.sharers())) > 0) {
			state = stateDraining
		}
		voted.Members = append(voted.Members, &planv1.Member{Backend: m.GetBackend(), Weight: m.GetWeight(), State: state})
	}
	return voted
}

// vote of this machine about a member.
func (s *State) vote(member config.Member, m *planv1.Member) agreement.Vote {
	switch m.GetState() {
	case stateActive:
		return agreement.TakesNew
	case stateDraining:
		return agreement.Keeps
	case stateDown:
		switch {
		case !s.health.judgedBefore(&s.step, member):
		case s.agents.speaks(m.GetBackend()):
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
	hasBuckets := slices.ContainsFunc(s.stateless(), func(service string) bool {
		return slices.ContainsFunc(s.current.byName[service].Members, func(m config.Member) bool { return m.Backend.Name == backend })
	})
	if !s.current.agrees() || !hasBuckets {
		return ""
	}
	others := s.agreement.seen.DrainedOn(backend, s.current.sharers()[1:])
	if len(others) == 0 {
		return ""
	}
	return fmt.Sprintf("%s is drained by command on %s, too, and its buckets of stateless services come back when it is on none: `guideway undrain backend %s` there; remove a machine that was taken out from the config's `peers`", backend, enumerate(others), backend)
}

// verdicts of this machine by the plan that is wanted. One that is cut off has none.
func (s *State) verdicts() agreement.Verdicts {
	verdicts := agreement.Verdicts{}
	if !s.health.cutOffSince.IsZero() {
		return verdicts
	}
	needed := map[string]*config.Service{}
	for i := range s.current.services {
		if service := &s.current.services[i]; service.Mode == config.ModeStateless {
			needed[service.Group] = service
		}
	}
	for _, group := range s.plan.wanted.GetGroups() {
		service := needed[group.GetName()]
		if service == nil || len(service.Members) != len(group.GetMembers()) {
			continue
		}
		votes := map[string]agreement.Vote{}
		for i, m := range group.GetMembers() {
			if vote := s.vote(service.Members[i], m); vote != agreement.Unknown {
				votes[m.GetBackend()] = vote
			}
		}
		verdicts[group.GetName()] = votes
	}
	return verdicts
}

// decideAgreement is what this machine is to have in etcd; nil: it shares nothing.
func (s *State) decideAgreement() *Agreement {
	a := &s.agreement
	if !s.agreementDue() {
		return a.wanted
	}
	if !s.current.agrees() || !s.forwarder.met {
		a.wanted = nil
		return nil
	}
	c := s.current.config
	next := &Agreement{
		Machine: c.Machine.Name, Shard: c.Machine.Shard, Lead: s.health.firstRound && s.health.cutOffSince.IsZero(),
		Verdicts: s.verdicts(), Proposals: maps.Clone(a.proposals),
		Told: agreement.Told{Shard: c.Machine.Shard, Maps: map[string]uint64{}, Drained: slices.Sorted(maps.Keys(s.health.drained))},
	}
	for _, service := range s.stateless() {
		next.Told.Maps[service] = s.buckets.acknowledged[service]
	}
	s.tellWithdrawal(next)
	s.proposeRemovals(next)
	// After one of a clock that has been set back since, too.
	next.Told.Number = max(uint64(s.now.UnixNano()), s.agreement.told(s.machineName()).Number+1)
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
func (s *State) tellWithdrawal(next *Agreement) {
	a := &s.agreement
	if s.isWithdrawn() {
		next.Told.Withdrawn = true
		a.saidWithdrawn, a.rejoined = true, 0
		return
	}
	stored := s.agreement.told(s.machineName())
	if !s.isToldWithdrawn() {
		return
	}
	a.saidWithdrawn = true
	next.Rejoins = map[string]int64{}
	for _, service := range s.stateless() {
		m := s.agreement.stored(service)
		if s.drains.machine != nil || !s.hasPresent(service, m) {
			next.Told.Withdrawn, next.Rejoins = stored.Withdrawn, nil
			a.rejoined = 0
			return
		}
		next.Rejoins[service] = m.Revision
	}
}

// isToldWithdrawn: etcd has this machine withdrawn, or may have.
func (s *State) isToldWithdrawn() bool {
	return s.agreement.saidWithdrawn || s.agreement.told(s.machineName()).Withdrawn
}

// hasPresent says whether the forwarder has the map that etcd holds; or there is none,
// as the service never had a backend.
func (s *State) hasPresent(service string, stored agreement.Stored) bool {
	if stored.Map == nil {
		return stored.Revision == 0 && s.agreement.seen != nil && s.buckets.maps[service] == nil
	}
	return stored.Map.Generation == s.buckets.acknowledged[service]
}

// proposeRemovals of maps whose services the config does not have any more, and no
// machine either.
func (s *State) proposeRemovals(next *Agreement) {
	seen := s.agreement.seen
	if seen == nil || !seen.Leads || s.agreement.away != "" {
		return
	}
	for service, stored := range seen.Maps {
		isConfigured := slices.ContainsFunc(s.current.config.Services, func(c config.Service) bool { return c.Name == service })
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
func (s *State) whyBucketsWait(service *config.Service) string {
	if service.Mode != config.ModeStateless || !s.current.agrees() {
		return ""
	}
	a := &s.agreement
	switch {
	case s.buckets.maps[service.Name] == nil:
		return "waiting for the bucket map that the load balancers share: " + cmp.Or(a.away, "etcd has none yet that could be used")
	case s.isToldWithdrawn():
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

func (s *State) viewAgreement(service string) *AgreementView {
	if !s.current.agrees() {
		return nil
	}
	p := s.part(service)
	view := &AgreementView{Lags: p.Lags(), Problem: p.Missing(), MadeAlone: p.Own != nil && p.Own.MadeOf > 0}
	switch {
	case p.Away:
		view.Problem = "etcd does not answer, so only buckets of dead backends move: " + s.agreement.away
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
func (s *State) bucketGenerations(plan *planv1.Plan) map[string]uint64 {
	generations := map[string]uint64{}
	for _, service := range plan.GetServices() {
		running := service.GetBucketMap()
		if running == nil {
			continue
		}
		generations[service.GetName()] = running.GetGeneration()
		if m := s.buckets.maps[service.GetName()]; m != nil {
			generations[service.GetName()] = m.Agreed()
		}
		if (s.buckets.uncertain[service.GetName()] || s.buckets.lacking[service.GetName()]) && s.current.agrees() {
			generations[service.GetName()] = 0
		}
	}
	return generations
}

// situation of a service as this machine finds its members, or by other states.
func (s *State) situation(service *config.Service, group *planv1.Group) buckets.Situation {
	situation := compile.BucketSituation(service, group)
	for i, m := range group.GetMembers() {
		known := situation.Backends[m.GetBackend()]
		switch {
		case m.GetState() != stateDown:
		case !s.health.judgedBefore(&s.step, service.Members[i]):
			known.State = buckets.Unprobed
		case s.agents.speaks(m.GetBackend()):
			known.State = buckets.Alive
		}
		situation.Backends[m.GetBackend()] = known
	}
	s.buckets.unknown[service.Name] = s.agents.unknownMembers(s.current, s.buckets.maps[service.Name], &situation)
	situation.Counts = s.buckets.counts[service.Name]
	situation.MoveAgeMax, situation.Now = s.current.config.MoveAgeMax, s.now
	return situation
}
