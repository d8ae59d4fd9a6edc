package buckets

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

var parseAddress = netip.MustParseAddr

var began = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func members(names ...string) []Member {
	var all []Member
	for _, name := range names {
		all = append(all, Member{Backend: name, Weight: 1})
	}
	return all
}

// serving situation: these members, and those that drain.
func serving(count uint32, now []Member, draining ...string) Situation {
	s := Situation{Buckets: count, Members: now, Backends: map[string]Backend{}, MoveAgeMax: time.Hour, Now: began}
	for _, member := range now {
		s.Backends[member.Backend] = Backend{State: Alive}
	}
	for _, name := range draining {
		s.Backends[name] = Backend{State: Alive}
	}
	return s
}

// acknowledged by every load balancer.
func (m *Map) acknowledged(s Situation) *Map {
	s.Acknowledged = m.Generation
	return m.Next(s)
}

// moved counts the buckets that another backend has afterwards.
func moved(before, after *Map) int {
	moved := 0
	for bucket := range after.Buckets {
		if bucket >= len(before.Buckets) || before.Buckets[bucket].Owner != after.Buckets[bucket].Owner {
			moved++
		}
	}
	return moved
}

// Backends that fail or come: shares are within one bucket of ideal, and no
// assignment within those shares moves fewer. What fails moves at once, the rest by
// the two steps behind it.
func TestSharesAreIdealAndFewestBucketsMove(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		count := uint32(256) << random.IntN(6)
		var former *Map
		for range 20 {
			var now []Member
			for i := range 1 + random.IntN(int(count)/PerBackend) {
				if random.IntN(3) > 0 {
					now = append(now, Member{Backend: fmt.Sprintf("b%04d", i), Weight: 1 + uint32(random.IntN(4)*random.IntN(50))})
				}
			}
			s := serving(count, now)
			next := former.Next(s)
			if len(now) == 0 {
				if !next.Unserved || len(next.Plan().ByBucket) != 0 {
					t.Fatal("a bucket without a member")
				}
				former = next
				continue
			}
			next = next.acknowledged(s).acknowledged(s)
			// Nothing counts connections here: what moved closes by age.
			s.Now = began.Add(time.Hour)
			next = next.acknowledged(s)
			holdShares(t, next, count, now)
			if former != nil && len(former.Buckets) > 0 && former.Buckets[0].Owner != "" {
				holdMoves(t, former, next, count, now)
			}
			if again := next.acknowledged(s); again != next {
				t.Fatalf("the same members, another map: %d moved", moved(next, again))
			}
			former = next
		}
	}
}

func ideal(count uint32, member Member, members []Member) float64 {
	total := 0.0
	for _, m := range members {
		total += float64(m.Weight)
	}
	return float64(count) * float64(member.Weight) / total
}

func holdShares(t *testing.T, m *Map, count uint32, now []Member) {
	t.Helper()
	if len(m.Buckets) != int(count) {
		t.Fatalf("%d buckets, want %d", len(m.Buckets), count)
	}
	has := m.Owned()
	for _, member := range now {
		if off := float64(has[member.Backend]) - ideal(count, member, now); off <= -1 || off >= 1 {
			t.Fatalf("%s has %d, ideal %.2f", member.Backend, has[member.Backend], ideal(count, member, now))
		}
	}
}

// holdMoves: what must move is what members may not keep, which is at most the
// ceiling of their ideal shares, and what lacks to the floors of others.
func holdMoves(t *testing.T, former, next *Map, count uint32, now []Member) {
	t.Helper()
	had := former.Owned()
	mustLeave, mustCome := 0, 0
	for name, n := range had {
		at := slices.IndexFunc(now, func(m Member) bool { return m.Backend == name })
		if at < 0 {
			mustLeave += n
			continue
		}
		ceiling := int(ideal(count, now[at], now))
		if ideal(count, now[at], now) > float64(ceiling) {
			ceiling++
		}
		mustLeave += max(0, n-ceiling)
	}
	for _, member := range now {
		mustCome += max(0, int(ideal(count, member, now))-had[member.Backend])
	}
	if moved := moved(former, next); moved != max(mustLeave, mustCome) {
		t.Fatalf("%d moved, %d must leave, %d must come", moved, mustLeave, mustCome)
	}
}

func TestOnlyAFailedBackendsBucketsMoveAndAtOnce(t *testing.T) {
	var none *Map
	before := none.Next(serving(4096, members("a", "b", "c", "d")))
	after := before.Next(serving(4096, members("a", "c", "d")))
	for bucket := range before.Buckets {
		if was, is := before.Buckets[bucket].Owner, after.Buckets[bucket]; was != "b" && was != is.Owner || is.chain() != 0 {
			t.Fatalf("bucket %d of %s: now %+v", bucket, was, is)
		}
	}
	if moved := moved(before, after); moved != 1024 {
		t.Errorf("%d moved, want the 1024 of b", moved)
	}
	if after.Generation != before.Generation+1 {
		t.Errorf("generation %d follows %d", after.Generation, before.Generation)
	}
}

// c is new, and not all agents know it.
func TestABackendThatOtherAgentsDoNotKnowGetsOnlyDeadBackendsBuckets(t *testing.T) {
	var none *Map
	before := none.Next(serving(256, members("a", "b")))
	s := serving(256, members("a", "b", "c"))
	s.Members[2].Unknown = true
	waits := before.acknowledged(s)
	if owned := waits.Owned(); waits.Generation != before.Generation || owned["c"] != 0 || waits.Waiting != 85 {
		t.Fatalf("generation %d, %v, %d wait", waits.Generation, owned, waits.Waiting)
	}

	known := serving(256, members("a", "b", "c"))
	prepared := waits.acknowledged(known)
	bucket := slices.IndexFunc(prepared.Buckets, func(b Bucket) bool { return b.Next == "c" })
	if bucket < 0 {
		t.Fatal("nothing moves to c though all know it")
	}
	// One forgets it again: what was prepared is taken back.
	if b := prepared.acknowledged(s).Buckets[bucket]; b.Next != "" {
		t.Errorf("%+v", b)
	}

	died := serving(256, members("b", "c"))
	died.Members[1].Unknown = true
	if owned := before.Next(died).Owned(); owned["b"] != 256 {
		t.Errorf("a died: %v", owned)
	}
	died.Members[0].Unknown = true
	after := before.Next(died)
	if owned := after.Owned(); owned["b"] < 128 || owned["c"] == 0 || owned["b"]+owned["c"] != 256 {
		t.Errorf("a died, and nobody knows another: %v", owned)
	}
	for bucket := range before.Buckets {
		if was := before.Buckets[bucket].Owner; was == "b" && after.Buckets[bucket].Owner != "b" {
			t.Fatalf("bucket %d of a living backend moved", bucket)
		}
	}
}

// Of three with one share each, c has less than its own and may not get more: it keeps
// that, and the others share the rest.
func TestABackendThatIsNotKnownKeepsWhatItHas(t *testing.T) {
	var none *Map
	before := none.Next(serving(256, append(members("a", "b"), Member{Backend: "c", Weight: 1})))
	s := serving(256, members("a", "b", "c"))
	s.Members[0].Weight, s.Members[1].Weight, s.Members[2].Weight = 1, 1, 2
	s.Members[2].Unknown = true
	had := before.Owned()["c"]
	after := before.acknowledged(s)
	if owned := after.Owned(); owned["c"] != had || after.Waiting != 128-had {
		t.Errorf("c had %d: %v, %d wait", had, owned, after.Waiting)
	}
}

func TestBackendsThatAllFailedGetBackWhatTheyHad(t *testing.T) {
	var none *Map
	before := none.Next(serving(256, members("a", "b")))
	failed := before.Next(serving(256, nil))
	if !failed.Unserved || failed.Generation != 2 || len(failed.Plan().ByBucket) != 0 {
		t.Errorf("generation %d, %d buckets", failed.Generation, len(failed.Plan().ByBucket))
	}
	after := failed.Next(serving(256, members("a", "b")))
	if moved(before, after) != 0 || after.Generation != 3 || after.Unserved {
		t.Errorf("%d moved, generation %d", moved(before, after), after.Generation)
	}
}

func TestAMapOfAnotherSizeCountsAsNone(t *testing.T) {
	var none *Map
	before := none.Next(serving(256, members("a", "b")))
	if after := before.Next(serving(512, members("a", "b"))); len(after.Buckets) != 512 || after.Generation != 2 || after.Owned()["a"] != 256 {
		t.Errorf("%d buckets, generation %d", len(after.Buckets), after.Generation)
	}
}

func TestANumberOfBucketsIsAPowerOfTwo(t *testing.T) {
	for count, valid := range map[uint32]bool{0: false, 128: false, 256: true, 257: false, 4096: true, 8192: true, 16384: false} {
		if Valid(count) != valid {
			t.Errorf("%d: %v", count, !valid)
		}
	}
}

// A drain, step by step; what a forwarder gets; and what is made of that where
// nothing else is known.
func TestADrainIsPreparedMovedAndClosed(t *testing.T) {
	var none *Map
	before := none.Next(serving(256, members("a", "b")))
	bucket := slices.IndexFunc(before.Buckets, func(b Bucket) bool { return b.Owner == "a" })
	s := serving(256, members("b"), "a")
	if before.Next(s) != before {
		t.Error("a step that no load balancer has was followed by another")
	}
	prepared := before.acknowledged(s)
	if b := prepared.Buckets[bucket]; b.Owner != "a" || b.Next != "b" || prepared.Generation != 2 {
		t.Fatalf("generation %d: %+v", prepared.Generation, b)
	}
	if prepared.Next(s) != prepared {
		t.Error("moved before every load balancer was prepared")
	}
	after := prepared.acknowledged(s)
	if b := after.Buckets[bucket]; b.Owner != "b" || b.Next != "" || !slices.Equal(b.Others(), []string{"a"}) {
		t.Fatalf("%+v", b)
	}
	plan := after.Plan()
	if len(plan.Moves) != 128 || plan.Generation != 3 || plan.Moves[0].Bucket != uint32(bucket) || plan.Backends[plan.Moves[0].Others[0]] != "a" {
		t.Errorf("%d moves, the first %v", len(plan.Moves), plan.Moves[0])
	}
	rebuilt := FromPlan(plan, after.Addresses, began.Add(time.Minute))
	if got := rebuilt.Plan(); got.String() != plan.String() {
		t.Errorf("%v", got)
	}
	if due := rebuilt.Due(time.Hour); !due.Equal(began.Add(time.Hour + time.Minute)) {
		t.Errorf("closes at %v", due)
	}
	acknowledgedAt := after.acknowledged(s)
	if acknowledgedAt.Generation != after.Generation || acknowledgedAt.Steps[3].AcknowledgedAt.IsZero() {
		t.Fatalf("generation %d: %v", acknowledgedAt.Generation, acknowledgedAt.Steps)
	}
	late := s
	late.Now = began.Add(time.Hour - time.Second)
	if acknowledgedAt.acknowledged(late) != acknowledgedAt {
		t.Error("closed before its time")
	}
	late.Now = acknowledgedAt.Due(time.Hour)
	if closed := acknowledgedAt.acknowledged(late); closed.Buckets[bucket].chain() != 0 || closed.Generation != 4 || closed.Steps != nil {
		t.Errorf("generation %d: %+v", closed.Generation, closed.Buckets[bucket])
	}
}

func TestAMoveClosesWhenTheAgentCountsNothingInItsBucket(t *testing.T) {
	var none *Map
	s := serving(256, members("b"), "a")
	m := none.Next(serving(256, members("a", "b"))).acknowledged(s).acknowledged(s)
	m = m.acknowledged(s) // acknowledgedAt
	var bucket uint32
	for m.Buckets[bucket].chain() == 0 {
		bucket++
	}
	count := func(after time.Duration, connections uint32) Situation {
		s.Now = began.Add(after)
		s.Counts = map[string]Count{"a": {ByBucket: map[uint32]uint32{bucket: connections}, At: s.Now}}
		return s
	}
	if m.acknowledged(count(CountsAfter-time.Second, 0)) != m {
		t.Error("closed by a count from when handshakes may have been under way")
	}
	m = m.acknowledged(count(CountsAfter, 1))
	if m.Buckets[bucket].chain() != 1 || len(m.Plan().Moves) != 1 {
		t.Errorf("%d moves are open, want that of the bucket with a connection", len(m.Plan().Moves))
	}
	if m = m.acknowledged(count(2*CountsAfter, 0)); len(m.Plan().Moves) != 0 {
		t.Errorf("%d moves are open", len(m.Plan().Moves))
	}
}

func TestABackendThatIsDownIsNamedIfItKeepsItsConnections(t *testing.T) {
	var none *Map
	before := none.Next(serving(256, members("a", "b")))
	s := serving(256, members("b"))
	s.Backends["a"] = Backend{State: Unreachable}
	if moves := before.Next(s).Plan().Moves; len(moves) != 128 {
		t.Errorf("kept: %d moves", len(moves))
	}
	delete(s.Backends, "a")
	if moves := before.Next(s).Plan().Moves; len(moves) != 0 {
		t.Errorf("not kept: %d moves", len(moves))
	}
}

func TestABackendWithAnotherAddressHasNoConnectionsFromBefore(t *testing.T) {
	at := func(s Situation, address string) Situation {
		s.Backends["a"] = Backend{State: Alive, Address: netip.MustParseAddr(address)}
		return s
	}
	var none *Map
	before := none.Next(at(serving(256, members("a", "b")), "10.1.0.11"))
	drained := before.acknowledged(at(serving(256, members("b"), "a"), "10.1.0.11"))
	after := drained.acknowledged(at(serving(256, members("b"), "a"), "10.1.0.11"))
	if len(after.Plan().Moves) != 128 {
		t.Fatalf("%d moves", len(after.Plan().Moves))
	}
	if changed := after.Next(at(serving(256, members("b"), "a"), "10.1.0.99")); len(changed.Plan().Moves) != 0 {
		t.Errorf("%d moves name its new address", len(changed.Plan().Moves))
	}
	// It keeps its buckets, though, and those can be moved on.
	stays := before.Next(at(serving(256, members("a", "b")), "10.1.0.99"))
	s := at(serving(256, members("b"), "a"), "10.1.0.99")
	if later := stays.acknowledged(s).acknowledged(s); len(later.Plan().Moves) != 128 {
		t.Errorf("%d moves", len(later.Plan().Moves))
	}
}

// From a to b and back: the bucket comes home, and its chain does not grow.
func TestABucketGoesBackToWhereItWas(t *testing.T) {
	var none *Map
	m := none.Next(serving(256, members("a", "b", "c")))
	first := m
	away, back := serving(256, members("b", "c"), "a"), serving(256, members("a", "b", "c"))
	for range 5 {
		m = m.acknowledged(away).acknowledged(away)
		m = m.acknowledged(back).acknowledged(back)
	}
	// Of 256 buckets one of the three has 86, and it need not be the same.
	if moved := moved(first, m); moved > 1 {
		t.Errorf("%d did not come back", moved)
	}
	for bucket := range m.Buckets {
		if m.Buckets[bucket].chain() > 2 {
			t.Fatalf("bucket %d: %+v", bucket, m.Buckets[bucket])
		}
	}
}

func TestWhatWouldMakeAChainTooLongWaits(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e"}
	var none *Map
	m := none.Next(serving(256, members("a")))
	for at := range names[1:] {
		s := serving(256, members(names[at+1]), names[:at+1]...)
		m = m.acknowledged(s)
		if at < ChainMax {
			m = m.acknowledged(s)
		}
	}
	if owned := m.Owned(); owned["d"] != 256 || m.Waiting != 256 {
		t.Errorf("owners %v, %d wait", owned, m.Waiting)
	}
	s := serving(256, members("e"), "b", "c", "d") // a is gone
	m = m.acknowledged(s).acknowledged(s)
	m = m.acknowledged(s)
	if owned := m.Owned(); owned["e"] != 256 || m.Waiting != 0 {
		t.Errorf("owners %v, %d wait", owned, m.Waiting)
	}
}

func TestASummaryCountsBucketsMovesAndConnections(t *testing.T) {
	m := halfway() // a has drained, b drains now
	counts := map[string]Count{"a": {ByBucket: map[uint32]uint32{}, At: began}}
	for bucket := range m.Buckets {
		counts["a"].ByBucket[uint32(bucket)] = 2
	}
	summary := m.Summarize(counts)
	total, named := 0, 0
	for _, use := range summary.Backends {
		total, named = total+use.Owned, named+use.Next+use.Earlier
	}
	connections, buckets := uint64(0), 0
	for _, move := range summary.Moves {
		buckets += move.Buckets
		connections += move.Connections
		if move.Moved != !move.Since.IsZero() || move.From == "b" && (move.Moved || move.To != "c") || move.From == "a" && move.Moved && move.CountedAt.IsZero() {
			t.Errorf("%+v", move)
		}
	}
	if total != 256 || named != buckets || connections != 2*86 || len(summary.Moves) != 3 || summary.Moving < 128 {
		t.Errorf("%+v", summary)
	}
}
