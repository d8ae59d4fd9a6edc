package buckets

import (
	"testing"
	"time"
)

// What the lost map may have given away is named, and the map goes on from there.
func TestAMapThatIsRunAgainNamesWhereItsStepsWouldHaveLed(t *testing.T) {
	before := new(Map).Next(serving(256, members("a", "b")))
	s := serving(256, members("b"), "a")
	prepared := before.acknowledged(s)
	again := prepared.Again(began)
	if again.Generation != prepared.Generation+2 {
		t.Errorf("generation %d follows %d", again.Generation, prepared.Generation)
	}
	for i := range again.Buckets {
		was, b := prepared.Buckets[i], again.Buckets[i]
		if b.Owner != was.Owner || b.Next != "" || was.Next != "" && (len(b.Earlier) != 1 || b.Earlier[0].Backend != was.Next) {
			t.Fatalf("bucket %d: %+v follows %+v", i, b, was)
		}
	}
	s.Now = began.Add(time.Second)
	next := again.acknowledged(s).acknowledged(s)
	for i := range next.Buckets {
		if next.Buckets[i].Owner != "b" || before.Buckets[i].Owner == "a" && next.Buckets[i].Earlier[0].Backend != "a" {
			t.Fatalf("bucket %d: %+v", i, next.Buckets[i])
		}
	}
}

// Of a load balancer that cannot ask the others: dead backends' buckets go, and
// nothing else changes, not even what a move has prepared.
func TestAloneOnlyDeadBackendsBucketsMove(t *testing.T) {
	first := new(Map).Next(serving(256, members("a", "b", "c")))
	s := serving(256, members("b", "c"), "a")
	prepared := first.acknowledged(s)
	alone := serving(256, members("c"), "a")
	alone.Alone, alone.Acknowledged = true, prepared.Generation
	next := prepared.Next(alone)
	for i := range next.Buckets {
		was, b := prepared.Buckets[i], next.Buckets[i]
		if was.Owner == "b" && b.Owner == "b" || was.Owner != "b" && b.Owner != was.Owner || was.Next == "c" && b.Next != "c" {
			t.Fatalf("bucket %d: %+v follows %+v", i, b, was)
		}
	}
	if next.MadeOf != prepared.Generation || next.Next(alone) != next {
		t.Errorf("made of %d, want %d, and nothing more to do", next.MadeOf, prepared.Generation)
	}
	_, read, err := Unmarshal(must(next.Marshal("web")))
	if err != nil || read.MadeOf != next.MadeOf {
		t.Errorf("kept as made of %d: %v", read.MadeOf, err)
	}
}

func must(data []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return data
}
