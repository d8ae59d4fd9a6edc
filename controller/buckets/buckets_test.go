package buckets

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

func owner(m *planv1.BucketMap, bucket int) string { return m.Backends[m.ByBucket[bucket]] }

func shares(m *planv1.BucketMap) map[string]int {
	counts := map[string]int{}
	for bucket := range m.ByBucket {
		counts[owner(m, bucket)]++
	}
	return counts
}

func members(names ...string) []Member {
	var all []Member
	for _, name := range names {
		all = append(all, Member{name, 1})
	}
	return all
}

// Any sequence of changes of members: shares are within one bucket of ideal, and
// no assignment within those shares moves fewer.
func TestSharesAreIdealAndFewestBucketsMove(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		count := uint32(256) << random.IntN(6)
		var former Former
		for range 20 {
			var now []Member
			for i := range 1 + random.IntN(int(count)/PerBackend) {
				if random.IntN(3) > 0 {
					now = append(now, Member{fmt.Sprintf("b%04d", i), 1 + uint32(random.IntN(4)*random.IntN(50))})
				}
			}
			next := Assign(former, count, now)
			if len(now) == 0 {
				if len(next.ByBucket) != 0 {
					t.Fatal("a bucket without a member")
				}
				former = former.Then(next)
				continue
			}
			holdShares(t, next, count, now)
			if former.Given != nil {
				holdMoves(t, former.Given, next, count, now)
			}
			if again := Assign(former.Then(next), count, now); again != next {
				t.Fatalf("the same members, another map: %d moved", Moved(next, again))
			}
			former = former.Then(next)
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

func holdShares(t *testing.T, m *planv1.BucketMap, count uint32, now []Member) {
	t.Helper()
	if len(m.ByBucket) != int(count) {
		t.Fatalf("%d buckets, want %d", len(m.ByBucket), count)
	}
	has := shares(m)
	for _, member := range now {
		if off := float64(has[member.Backend]) - ideal(count, member, now); off <= -1 || off >= 1 {
			t.Fatalf("%s has %d, ideal %.2f", member.Backend, has[member.Backend], ideal(count, member, now))
		}
	}
}

// holdMoves: what must move is what members may not keep, which is at most the
// ceiling of their ideal shares, and what lacks to the floors of others.
func holdMoves(t *testing.T, former, next *planv1.BucketMap, count uint32, now []Member) {
	t.Helper()
	had := shares(former)
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
	if moved := Moved(former, next); moved != max(mustLeave, mustCome) {
		t.Fatalf("%d moved, %d must leave, %d must come", moved, mustLeave, mustCome)
	}
}

func TestOnlyAFailedBackendsBucketsMove(t *testing.T) {
	before := Assign(Former{}, 4096, members("a", "b", "c", "d"))
	after := Assign(Former{}.Then(before), 4096, members("a", "c", "d"))
	for bucket := range before.ByBucket {
		if was := owner(before, bucket); was != "b" && was != owner(after, bucket) {
			t.Fatalf("bucket %d moved from %s to %s", bucket, was, owner(after, bucket))
		}
	}
	if moved := Moved(before, after); moved != 1024 {
		t.Errorf("%d moved, want the 1024 of b", moved)
	}
	if after.Generation != before.Generation+1 {
		t.Errorf("generation %d follows %d", after.Generation, before.Generation)
	}
}

func TestAMapOfAnotherSizeCountsAsNone(t *testing.T) {
	before := Assign(Former{}, 256, members("a", "b"))
	if after := Assign(Former{}.Then(before), 512, members("a", "b")); len(after.ByBucket) != 512 || Moved(before, after) < 256 {
		t.Errorf("%d buckets", len(after.ByBucket))
	}
}

func TestANumberOfBucketsIsAPowerOfTwo(t *testing.T) {
	for count, valid := range map[uint32]bool{0: false, 128: false, 256: true, 257: false, 4096: true, 8192: true, 16384: false} {
		if Valid(count) != valid {
			t.Errorf("%d: %v", count, !valid)
		}
	}
}
