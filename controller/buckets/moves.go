package buckets

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// CountsAfter is how long after every load balancer has the new backend in charge
// a count of the old one's shows that nothing is left there: a handshake that was
// under way, whose SYN was answered by a cookie, is in no count.
const CountsAfter = 5 * time.Second

// State of a backend, as a map's buckets see it.
type State int

const (
	// Gone: not configured any more, disabled, or down: its connections are lost.
	Gone State = iota
	// Unreachable: down, but it stays named where it had buckets, since it may come back
	// with its connections.
	Unreachable
	// Unprobed: nothing is known of it yet by a controller that has started, so its
	// buckets stay where they are.
	Unprobed
	// Alive: it may at least keep what it has.
	Alive
)

// Backend as of now.
type Backend struct {
	State   State
	Address netip.Addr
}

// Count of the connections that a backend's agent has in each bucket of a service.
type Count struct {
	// Buckets that are missing have none.
	ByBucket map[uint32]uint32
	At       time.Time
}

// Situation is what the next map depends on, beside the one before.
type Situation struct {
	// Of the service.
	Buckets uint32
	// Those that take new connections, in order of name. Empty: none does.
	Members []Member
	// Where there are no members, packets do not go to draining ones either.
	NoneServe bool
	// By name; what is missing is gone.
	Backends map[string]Backend
	// The latest generation that every load balancer has.
	Acknowledged uint64
	// The other load balancers cannot be asked: nothing changes but the buckets of
	// backends that are gone, and what is named of these.
	Alone bool
	// By backend; what is missing is not known.
	Counts map[string]Count
	// When a move closes at the latest.
	MoveAgeMax time.Duration
	Now        time.Time
}

// Next is the map that follows; m itself if nothing changes. m may be nil: there
// was none, or one of another size. The buckets of backends that are gone move at
// once; everything else goes a step on if every load balancer has this map.
func (m *Map) Next(s Situation) *Map {
	if m == nil || len(m.Buckets) != int(s.Buckets) {
		former := m
		m = &Map{Buckets: make([]Bucket, s.Buckets)}
		if former != nil {
			m.Generation = former.Generation
		}
	}
	n := &next{Situation: s, former: m, steps: m.Steps, waiting: m.Waiting, isAcknowledged: !s.Alone && s.Acknowledged >= m.Generation, index: map[string]int{}}
	for i, member := range s.Members {
		n.index[member.Backend] = i
	}
	if !s.Alone {
		n.noteAcknowledged()
	}
	if len(s.Members) == 0 && (s.NoneServe && !s.Alone || !n.anyOwnerAlive()) {
		n.buckets = m.Buckets
		return n.finish(true)
	}
	n.buckets = slices.Clone(m.Buckets)
	for i := range n.buckets {
		n.step(uint32(i), &n.buckets[i])
	}
	if len(s.Members) > 0 {
		n.assign()
	}
	return n.finish(false)
}

// next map under way.
type next struct {
	Situation
	former *Map
	// Of the members, by name.
	index map[string]int
	// Every load balancer has the former map.
	isAcknowledged bool
	// Of the former map, and whether every load balancer has one of them now.
	steps             map[uint64]Step
	newlyAcknowledged bool
	buckets           []Bucket
	waiting           int
}

// noteAcknowledged steps: every load balancer has them.
func (n *next) noteAcknowledged() {
	for generation, step := range n.former.Steps {
		if step.AcknowledgedAt.IsZero() && generation <= n.Acknowledged {
			if !n.newlyAcknowledged {
				n.steps, n.newlyAcknowledged = maps.Clone(n.steps), true
			}
			step.AcknowledgedAt = n.Now
			n.steps[generation] = step
		}
	}
}

// step of one bucket's moves: those that are due.
func (n *next) step(bucket uint32, b *Bucket) {
	if b.Next != "" && !n.isMember(b.Next) && (!n.Alone || n.state(b.Next) == Gone) || n.isAlive(b.Owner) && n.isUnknown(b.Next) {
		b.Next = ""
	}
	b.Earlier = n.nameable(bucket, b.Earlier)
	if b.Next != "" && (n.isAcknowledged || !n.isAlive(b.Owner)) {
		n.moveTo(b, b.Next)
	}
}

// nameable are those that may have connections of the bucket. Never edits earlier.
func (n *next) nameable(bucket uint32, earlier []Earlier) []Earlier {
	isOver := func(e Earlier) bool {
		return n.state(e.Backend) == Gone || n.isAcknowledged && n.isClosed(bucket, e)
	}
	if !slices.ContainsFunc(earlier, isOver) {
		return earlier
	}
	return slices.DeleteFunc(slices.Clone(earlier), isOver)
}

// isClosed: no connection is left, or too much time has passed.
func (n *next) isClosed(bucket uint32, e Earlier) bool {
	step := n.steps[e.Generation]
	if !n.Now.Before(step.At.Add(n.MoveAgeMax)) {
		return true
	}
	count, isKnown := n.Counts[e.Backend]
	return isKnown && !step.AcknowledgedAt.IsZero() && !count.At.Before(step.AcknowledgedAt.Add(CountsAfter)) && count.ByBucket[bucket] == 0
}

// moveTo the backend that has the bucket from now on.
func (n *next) moveTo(b *Bucket, to string) {
	earlier := slices.DeleteFunc(slices.Clone(b.Earlier), func(e Earlier) bool { return e.Backend == to || e.Backend == b.Owner })
	// A backend that is down is named only where those that are not leave room.
	if state := n.state(b.Owner); state >= Unprobed || state == Unreachable && len(earlier) < ChainMax {
		earlier = slices.Insert(earlier, 0, Earlier{b.Owner, n.former.Generation + 1})
	}
	*b = Bucket{Owner: to, Earlier: earlier}
}

// assign buckets to members, and begin the moves that follow from it.
func (n *next) assign() {
	places, before := make([]place, len(n.buckets)), make([]int, len(n.buckets))
	for i := range n.buckets {
		places[i] = n.place(&n.buckets[i])
		before[i] = places[i].owner
	}
	waiting := assign(places, n.Members)
	if n.isAcknowledged { // else all wait
		n.waiting = waiting
	}
	for i := range places {
		if owner := places[i].owner; owner != before[i] {
			n.begin(&n.buckets[i], n.Members[owner].Backend, places[i].urgent)
		}
	}
}

func (n *next) place(b *Bucket) place {
	p := place{owner: free, chain: b.chain(), urgent: !n.isAlive(b.Owner)}
	p.fixed = !p.urgent && (!n.isAcknowledged || n.Backends[b.destination()].State == Unprobed)
	if owner, isMember := n.index[b.destination()]; isMember {
		p.owner = owner
	}
	for _, e := range b.Earlier {
		if member, isMember := n.index[e.Backend]; isMember {
			p.earlier = append(p.earlier, member)
		}
	}
	return p
}

// begin a move: at once where the backend in charge is dead, for nothing is left
// there to be found by load balancers that are a step behind.
func (n *next) begin(b *Bucket, to string, isUrgent bool) {
	if isUrgent {
		n.moveTo(b, to)
	} else {
		b.Next = to
	}
}

func (n *next) anyOwnerAlive() bool {
	return slices.ContainsFunc(n.former.Buckets, func(b Bucket) bool { return n.isAlive(b.Owner) })
}

func (n *next) isMember(backend string) bool {
	_, isMember := n.index[backend]
	return isMember
}

// isUnknown to other agents: see Member.
func (n *next) isUnknown(backend string) bool {
	at, isMember := n.index[backend]
	return isMember && n.Members[at].Unknown
}

// isAlive: it may be in charge.
func (n *next) isAlive(backend string) bool { return n.Backends[backend].State >= Unprobed }

// state of a backend that connections may live on: one that has another address
// than it had is another machine.
func (n *next) state(backend string) State {
	now := n.Backends[backend]
	if address, isKnown := n.former.Addresses[backend]; isKnown && address != now.Address {
		return Gone
	}
	return now.State
}

// finish with the former map where nothing differs; one that differs in what is
// known of it only has the same generation.
func (n *next) finish(unserved bool) *Map {
	former := n.former
	isSame := former.Generation > 0 && unserved == former.Unserved &&
		slices.EqualFunc(former.Buckets, n.buckets, func(a, b Bucket) bool { return a.equal(&b) })
	m := &Map{Generation: former.Generation, Buckets: n.buckets, Unserved: unserved, Waiting: n.waiting}
	if !isSame {
		m.Generation++
	}
	if n.Alone {
		m.MadeOf = former.Agreed()
	}
	m.Addresses = n.addressesOf(m)
	if isSame && !n.newlyAcknowledged && m.Waiting == former.Waiting && maps.Equal(m.Addresses, former.Addresses) {
		return former
	}
	m.Steps = n.stepsOf(m)
	return m
}

// stepsOf a map: those that it still names backends for.
func (n *next) stepsOf(m *Map) map[uint64]Step {
	var steps map[uint64]Step
	for i := range m.Buckets {
		for _, e := range m.Buckets[i].Earlier {
			if _, isThere := steps[e.Generation]; isThere {
				continue
			}
			if steps == nil {
				steps = map[uint64]Step{}
			}
			step, isKnown := n.steps[e.Generation]
			if !isKnown {
				step = Step{At: n.Now}
			}
			steps[e.Generation] = step
		}
	}
	return steps
}

func (n *next) addressesOf(m *Map) map[string]netip.Addr {
	addresses := map[string]netip.Addr{}
	for _, name := range m.Backends() {
		address, isKnown := n.former.Addresses[name]
		if now, isThere := n.Backends[name]; isThere {
			address, isKnown = now.Address, true
		}
		if isKnown {
			addresses[name] = address
		}
	}
	return addresses
}

// Due is when the next move closes by its age; zero: none is open.
func (m *Map) Due(moveAgeMax time.Duration) time.Time {
	var first time.Time
	for _, step := range m.Steps {
		if first.IsZero() || step.At.Before(first) {
			first = step.At
		}
	}
	if first.IsZero() {
		return first
	}
	return first.Add(moveAgeMax)
}

// Again is the map that all return to who may have gone on from m by a map that is
// lost: the next step of m's moves may have been made somewhere, so that connections
// live where buckets would have gone. It has a later generation than the lost one.
func (m *Map) Again(now time.Time) *Map {
	again := *m
	again.Generation, again.MadeOf = m.Generation+2, 0
	again.Buckets, again.Steps = slices.Clone(m.Buckets), maps.Clone(m.Steps)
	for i := range again.Buckets {
		b := &again.Buckets[i]
		if b.Next == "" {
			continue
		}
		earlier := slices.DeleteFunc(slices.Clone(b.Earlier), func(e Earlier) bool { return e.Backend == b.Next })
		*b = Bucket{Owner: b.Owner, Earlier: slices.Insert(earlier, 0, Earlier{b.Next, again.Generation})}
		if again.Steps == nil {
			again.Steps = map[uint64]Step{}
		}
		again.Steps[again.Generation] = Step{At: now}
	}
	return &again
}
