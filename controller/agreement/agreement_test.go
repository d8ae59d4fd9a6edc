package agreement

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/buckets"
)

const (
	modelBuckets = 256
	service      = "web"
)

// fleet is a model of load balancers that share etcd, each with its own delays, of
// backends with agents, and of a router that sends any packet to any load balancer
// that announces.
type fleet struct {
	t      *testing.T
	random *rand.Rand
	// What is left out, so that a test can fail.
	careless careless
	// Whatever may happen to it.
	hazards hazards

	machines []*machine
	etcd     etcd
	// etcd answers no machine.
	away bool

	backends    map[string]buckets.Backend
	weights     [6]uint32
	counts      map[string]buckets.Count
	connections []connection
	now         time.Time

	broken, moves, leaders, aways, withdrawals, broughtBack int
}

type careless struct{ acknowledgements, joins bool }

type hazards struct{ leader, away, oneAway, withdraw, restart, damage, fail bool }

type machine struct {
	name string
	own  *buckets.Map
	// What packets go by.
	forwarder *buckets.Map
	seen      *Seen
	cutOff    bool
	withdrawn bool
	announces bool
}

type etcd struct {
	revision int64
	leader   string
	stored   map[string]Stored
	told     map[string]Told
}

type connection struct {
	bucket  int
	backend string
}

func newFleet(t *testing.T, seed uint64, machines int) *fleet {
	f := &fleet{
		t: t, random: rand.New(rand.NewPCG(seed, 7)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		backends: map[string]buckets.Backend{}, counts: map[string]buckets.Count{},
		etcd: etcd{leader: "lb-1", stored: map[string]Stored{}, told: map[string]Told{}},
	}
	for i := range machines {
		f.machines = append(f.machines, &machine{name: fmt.Sprint("lb-", i+1), announces: true})
	}
	for i := range 6 {
		f.backends[fmt.Sprint("b", i)] = buckets.Backend{State: buckets.Alive}
	}
	return f
}

func (f *fleet) names() (names []string) {
	for _, m := range f.machines {
		names = append(names, m.name)
	}
	return names
}

func (f *fleet) part(m *machine) *Part {
	return &Part{
		Machine: m.name, Service: service, Machines: f.names(), Own: m.own, Seen: m.seen,
		Away: f.away || m.cutOff, Registered: true, Waited: f.random.IntN(4) == 0,
	}
}

// situation as each machine finds it.
func (f *fleet) situation() buckets.Situation {
	s := buckets.Situation{Buckets: modelBuckets, Backends: f.backends, Counts: f.counts, MoveAgeMax: 1000 * time.Hour, Now: f.now}
	for i := range 6 {
		if name := fmt.Sprint("b", i); f.backends[name].State == buckets.Alive && f.weights[i] > 0 {
			s.Members = append(s.Members, buckets.Member{Backend: name, Weight: f.weights[i]})
		}
	}
	return s
}

// reweight backends: they drain, come, or get another weight.
func (f *fleet) reweight() {
	for i := range f.weights {
		f.weights[i] = uint32(f.random.IntN(4))
	}
}

// act does one thing that a machine does, or that happens to it.
func (f *fleet) act(m *machine) {
	if m.withdrawn && f.etcd.told[m.name].Withdrawn {
		return // it is switched off until it is to announce again
	}
	reaches := !f.away && !m.cutOff
	switch f.random.IntN(6) {
	case 0:
		if reaches {
			f.see(m)
		}
	case 1:
		m.own = f.part(m).Run(f.situation())
	case 2:
		m.forwarder = m.own
	case 3:
		if reaches {
			f.acknowledge(m)
		}
	case 4, 5:
		if reaches {
			f.propose(m)
		}
	}
}

func (f *fleet) see(m *machine) {
	m.seen = &Seen{Leader: f.etcd.leader, Leads: f.etcd.leader == m.name, Maps: maps.Clone(f.etcd.stored), Told: maps.Clone(f.etcd.told)}
}

// acknowledge what the forwarder has; a machine that is to announce again does so in the
// transaction that says so.
func (f *fleet) acknowledge(m *machine) {
	former := f.etcd.told[m.name]
	told := Told{Withdrawn: m.withdrawn, Maps: map[string]uint64{}, Number: former.Number + 1}
	if m.forwarder != nil {
		told.Maps[service] = m.forwarder.Agreed()
	}
	isJoining := former.Withdrawn && !m.withdrawn
	if isJoining && !f.careless.joins {
		if m.seen == nil || m.seen.Maps[service].Map == nil || m.seen.Maps[service].Revision != f.etcd.stored[service].Revision || m.forwarder == nil || m.forwarder.Agreed() != m.seen.Maps[service].Map.Generation {
			return
		}
	}
	f.etcd.revision++
	told.Revision = f.etcd.revision
	f.etcd.told[m.name] = told
	if !m.withdrawn {
		m.announces = true
	}
}

func (f *fleet) propose(m *machine) {
	if f.careless.acknowledgements && m.seen != nil && m.seen.Maps[service].Map != nil {
		for name, told := range m.seen.Told {
			told.Maps = map[string]uint64{service: 1 << 60}
			m.seen.Told[name] = told
		}
	}
	p := f.part(m).Propose(f.situation())
	if p == nil || p.AsLeader && f.etcd.leader != m.name || p.Previous != f.etcd.stored[service].Revision {
		return
	}
	for name, revision := range p.Withdrawn {
		if f.etcd.told[name].Revision != revision && !f.careless.joins {
			return
		}
	}
	if former := f.etcd.stored[service].Map; former != nil {
		for i := range former.Buckets {
			if former.Buckets[i].Owner != p.Map.Buckets[i].Owner {
				f.moves++
			}
		}
	} else if f.etcd.revision > 0 && f.etcd.stored[service].Revision > 0 {
		f.broughtBack++
	}
	f.etcd.revision++
	f.etcd.stored[service] = Stored{Map: p.Map, Revision: f.etcd.revision}
}

// hazard of all that may happen.
func (f *fleet) hazard() {
	m := f.machines[f.random.IntN(len(f.machines))]
	switch f.random.IntN(7) {
	case 0:
		if f.hazards.leader {
			f.etcd.leader = []string{"", m.name, m.name}[f.random.IntN(3)]
			f.leaders++
		}
	case 1:
		// Else those that etcd told of a dead backend before it went away have other maps
		// than those that find it by themselves: the agreed one wins, and what was opened
		// by others breaks.
		if f.hazards.away && (!f.hazards.fail || f.away || f.allSame()) {
			f.away = !f.away
			f.aways++
		}
	case 2:
		if f.hazards.oneAway {
			m.cutOff = !m.cutOff
		}
	case 3:
		if f.hazards.withdraw {
			f.withdraw(m)
		}
	case 4:
		if f.hazards.restart { // with what is on disk
			m.seen = nil
		}
	case 5:
		if stored := f.etcd.stored[service]; f.hazards.damage && stored.Map != nil {
			f.etcd.revision++
			f.etcd.stored[service] = Stored{Problem: "it is damaged", Revision: f.etcd.revision}
		}
	case 6:
		if f.hazards.fail && (!f.hazards.away || f.allSame()) {
			f.fail()
		}
	}
}

// withdraw a machine's routes, or begin to bring it back.
func (f *fleet) withdraw(m *machine) {
	if m.withdrawn {
		m.withdrawn = false // announces when it has told so
		return
	}
	others := slices.DeleteFunc(slices.Clone(f.machines), func(o *machine) bool { return o == m || !o.announces })
	if len(others) == 0 || !m.announces {
		return
	}
	m.withdrawn, m.announces = true, false
	f.withdrawals++
}

func (f *fleet) allSame() bool {
	stored := f.etcd.stored[service].Map
	return !slices.ContainsFunc(f.machines, func(m *machine) bool {
		return m.own == nil || m.own != stored || m.forwarder != stored || m.seen == nil
	})
}

// fail a backend with its connections, or bring one back.
func (f *fleet) fail() {
	name, alive := fmt.Sprint("b", f.random.IntN(6)), 0
	for _, b := range f.backends {
		if b.State == buckets.Alive {
			alive++
		}
	}
	if f.backends[name].State == buckets.Alive {
		if alive <= 2 {
			return
		}
		f.backends[name] = buckets.Backend{}
		f.connections = slices.DeleteFunc(f.connections, func(c connection) bool { return c.backend == name })
		return
	}
	if f.allSame() {
		f.backends[name] = buckets.Backend{State: buckets.Alive}
	}
}

func (f *fleet) packet() {
	var announcing []*machine
	for _, m := range f.machines {
		if m.announces && m.forwarder != nil {
			announcing = append(announcing, m)
		}
	}
	if len(announcing) == 0 {
		return
	}
	m := announcing[f.random.IntN(len(announcing))].forwarder
	if len(f.connections) == 0 || f.random.IntN(4) == 0 {
		bucket := f.random.IntN(modelBuckets)
		if owner := m.Buckets[bucket].Owner; f.backends[owner].State == buckets.Alive {
			f.connections = append(f.connections, connection{bucket, owner})
		}
		return
	}
	at := f.random.IntN(len(f.connections))
	c := f.connections[at]
	b := &m.Buckets[c.bucket]
	arrives := slices.ContainsFunc(append([]string{b.Owner}, b.Others()...), func(name string) bool {
		return name == c.backend || f.backends[name].State != buckets.Alive
	})
	if !arrives {
		f.broken++
	}
	if !arrives || f.random.IntN(8) == 0 {
		f.connections = slices.Delete(f.connections, at, at+1)
	}
}

func (f *fleet) report() {
	for name := range f.backends {
		count := buckets.Count{ByBucket: map[uint32]uint32{}, At: f.now}
		for _, c := range f.connections {
			if c.backend == name {
				count.ByBucket[uint32(c.bucket)]++
			}
		}
		f.counts[name] = count
	}
}

func (f *fleet) run() *fleet {
	hasBegun := false
	for round := range 400 {
		if round%4 == 0 && !f.away { // else each machine would find other members when it goes on by itself
			f.reweight()
		}
		for range 60 {
			f.packet()
		}
		f.now = f.now.Add(time.Second)
		f.report()
		for range 10 * len(f.machines) {
			f.act(f.machines[f.random.IntN(len(f.machines))])
			f.packet()
		}
		hasBegun = hasBegun || f.allSame()
		if hasBegun && f.random.IntN(4) == 0 {
			f.hazard()
		}
	}
	return f
}

// Whatever drains, comes or gets another weight, whichever machine leads, lags, is cut off from
// etcd, restarts or withdraws: no connection breaks.
func TestNoConnectionBreaksByMovesThatSeveralAgreeOn(t *testing.T) {
	for name, hazards := range map[string]hazards{
		"nothing":     {},
		"leader":      {leader: true},
		"etcd away":   {away: true},
		"one cut off": {oneAway: true},
		"withdrawals": {withdraw: true},
		"restarts":    {restart: true},
		"damage":      {damage: true},
		"backends":    {fail: true},
		"everything":  {leader: true, away: true, oneAway: true, withdraw: true, restart: true, damage: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(3) {
				f := newFleet(t, seed, 2+int(seed%2))
				f.hazards = hazards
				f.run()
				if f.broken != 0 || f.moves < 50 || hazards.damage && f.broughtBack == 0 {
					t.Errorf("seed %d: %d broke; %d moves, %d leaders, %d outages, %d withdrawals, %d maps brought back", seed, f.broken, f.moves, f.leaders, f.aways, f.withdrawals, f.broughtBack)
				}
			}
		})
	}
}

// Backends that die while etcd is away lose their own connections alone.
func TestBackendsThatDieWhileEtcdIsAway(t *testing.T) {
	for seed := range uint64(3) {
		f := newFleet(t, seed, 3)
		f.hazards = hazards{fail: true, away: true}
		if f.run(); f.broken != 0 || f.aways == 0 {
			t.Errorf("seed %d: %d broke; %d moves, %d outages", seed, f.broken, f.moves, f.aways)
		}
	}
}

// So that the tests above can fail.
func TestStepsThatDoNotWaitBreakConnections(t *testing.T) {
	f := newFleet(t, 1, 3)
	f.careless.acknowledgements = true
	if f.run().broken == 0 {
		t.Errorf("without acknowledgements nothing broke by %d moves", f.moves)
	}
	broken := 0
	for seed := range uint64(10) {
		f := newFleet(t, seed, 3)
		f.careless.joins, f.hazards.withdraw = true, true
		broken += f.run().broken
	}
	if broken == 0 {
		t.Error("machines that announce again without a look at the present map broke nothing")
	}
}
