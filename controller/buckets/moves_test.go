package buckets

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const modelBuckets = 256

// model of two load balancers that have the service's maps, each with its own
// delay, of backends with agents, and of a router that sends any packet to either
// load balancer.
type model struct {
	t      *testing.T
	random *rand.Rand
	// Steps do not wait for acknowledgements, or for counts.
	careless, countless bool
	balancers           [2]*Map
	latest              *Map
	backends            map[string]Backend
	keeps               bool
	connections         []connection
	now                 time.Time
	counts              map[string]Count
	broken, moves       int
	// By backend, when it failed last; and packets that found a connection there
	// from before.
	failedAt        map[string]time.Time
	survived        int
	longest, waited int
}

type connection struct {
	bucket  int
	backend string
	opened  time.Time
}

func newModel(t *testing.T, seed uint64) *model {
	return &model{
		t: t, random: rand.New(rand.NewPCG(seed, 1)), now: began,
		backends: map[string]Backend{}, counts: map[string]Count{}, failedAt: map[string]time.Time{},
	}
}

func (w *model) situation() Situation {
	s := Situation{
		Buckets: modelBuckets, Backends: w.backends, Counts: w.counts, MoveAgeMax: 1000 * time.Hour, Now: w.now,
		Acknowledged: min(w.balancers[0].Generation, w.balancers[1].Generation),
	}
	if w.careless {
		s.Acknowledged = w.latest.Generation
	}
	for i := range 6 {
		if name := fmt.Sprint("b", i); w.backends[name].State == Alive && w.random.IntN(3) > 0 {
			s.Members = append(s.Members, Member{Backend: name, Weight: 1 + uint32(w.random.IntN(3))})
		}
	}
	return s
}

// round: packets, another map, and load balancers that get it or do not.
func (w *model) round() {
	for range 200 {
		w.packet()
	}
	w.now = w.now.Add(time.Second)
	w.report()
	s := w.situation()
	if len(s.Members) == 0 {
		return
	}
	next := w.latest.Next(s)
	w.moves += moved(w.latest, next)
	w.waited = max(w.waited, next.Waiting)
	for bucket := range next.Buckets {
		w.longest = max(w.longest, next.Buckets[bucket].chain())
	}
	w.latest = next
	for at := range w.balancers {
		if w.random.IntN(2) == 0 {
			w.balancers[at] = w.latest
		}
	}
}

// packet of a new connection, or of an old one, by either load balancer.
func (w *model) packet() {
	m := w.balancers[w.random.IntN(2)]
	if len(w.connections) == 0 || w.random.IntN(4) == 0 {
		bucket := w.random.IntN(modelBuckets)
		if owner := m.Buckets[bucket].Owner; w.backends[owner].State == Alive {
			w.connections = append(w.connections, connection{bucket, owner, w.now})
		}
		return
	}
	at := w.random.IntN(len(w.connections))
	c := w.connections[at]
	b := &m.Buckets[c.bucket]
	arrives := w.arrives(append([]string{b.Owner}, b.Others()...), c.backend)
	hasFailed := !w.failedAt[c.backend].Before(c.opened)
	switch {
	case arrives && hasFailed && w.backends[c.backend].State == Alive:
		w.survived++
	case !arrives && !hasFailed:
		w.broken++
	}
	if arrives && w.random.IntN(8) > 0 {
		return
	}
	w.connections = slices.Delete(w.connections, at, at+1)
}

// arrives where the connection is, or is lost at a dead backend; else the last
// agent's kernel resets it.
func (w *model) arrives(chain []string, backend string) bool {
	for _, name := range chain {
		if name == backend || w.backends[name].State != Alive {
			return true
		}
	}
	return false
}

// report of some agents.
func (w *model) report() {
	if w.countless {
		return
	}
	for name := range w.backends {
		count := Count{ByBucket: map[uint32]uint32{}, At: w.now}
		for _, c := range w.connections {
			if c.backend == name {
				count.ByBucket[uint32(c.bucket)]++
			}
		}
		if w.random.IntN(2) == 0 {
			w.counts[name] = count
		}
	}
}

// fail a backend, or bring one back: with none of its connections, unless it keeps
// them.
func (w *model) fail() {
	name := fmt.Sprint("b", w.random.IntN(6))
	switch state := w.backends[name].State; {
	case state != Alive:
		if w.balancers[0] != w.latest || w.balancers[1] != w.latest {
			return // it would answer for load balancers that still send to it
		}
		w.backends[name] = Backend{State: Alive}
	case w.keeps:
		w.backends[name] = Backend{State: Unreachable}
		w.failedAt[name] = w.now
	default:
		w.backends[name] = Backend{}
		w.connections = slices.DeleteFunc(w.connections, func(c connection) bool { return c.backend == name })
	}
}

func (w *model) run(fails bool) *model {
	for i := range 6 {
		w.backends[fmt.Sprint("b", i)] = Backend{State: Alive}
	}
	var none *Map
	w.latest = none.Next(Situation{Buckets: modelBuckets, Members: members("b0", "b1", "b2"), Backends: w.backends, Now: w.now})
	w.balancers = [2]*Map{w.latest, w.latest}
	for round := range 300 {
		if fails && round%5 == 0 {
			w.fail()
		}
		w.round()
	}
	return w
}

// Whatever drains, comes, gets another weight, fails or recovers, however late a
// load balancer is: no connection breaks but those of backends that failed.
func TestNoConnectionBreaksByMoves(t *testing.T) {
	for seed := range uint64(6) {
		for _, fails := range []bool{false, true} {
			w := newModel(t, seed)
			w.keeps = seed%2 == 0
			w.run(fails)
			if w.broken != 0 || w.moves < 200 || !fails && w.longest != ChainMax || (fails && w.keeps) != (w.survived > 0) {
				t.Errorf("seed %d, backends fail %v: %d broke; %d moves, chains up to %d, up to %d waited, %d packets to backends that recovered", seed, fails, w.broken, w.moves, w.longest, w.waited, w.survived)
			}
		}
	}
}

// So that the test above can fail.
func TestAStepThatDoesNotWaitBreaksConnections(t *testing.T) {
	w := newModel(t, 1)
	w.careless = true
	if w.run(false).broken == 0 {
		t.Error("nothing broke")
	}
}

// Without counts nothing closes, so buckets soon wait; and none is lost for that.
func TestWithoutCountsBucketsWait(t *testing.T) {
	w := newModel(t, 1)
	w.countless = true
	if w.run(false); w.broken != 0 || w.waited == 0 {
		t.Errorf("%d broke, up to %d waited", w.broken, w.waited)
	}
}
