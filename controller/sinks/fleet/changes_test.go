package fleet

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

var (
	now = time.Unix(1_800_000_000, 0).UTC()
	web = Drained{KindBackend, "web-1"}
)

func TestTheLatestChangeCounts(t *testing.T) {
	drained := Change{web, true, "lb-1", now}
	for name, c := range map[string]struct {
		other Change
		isIt  bool
	}{
		"later":                      {Change{web, false, "lb-1", now.Add(1)}, true},
		"earlier":                    {Change{web, false, "lb-9", now.Add(-1)}, false},
		"of that time, greater name": {Change{web, false, "lb-2", now}, true},
		"of that time, lesser name":  {Change{web, false, "lb-0", now}, false},
	} {
		want := Changes{drained}
		if c.isIt {
			want = Changes{c.other}
		}
		one, other := Changes{drained}.Merge(Changes{c.other}, now), Changes{c.other}.Merge(Changes{drained}, now)
		if !one.Equal(want) || !other.Equal(want) {
			t.Errorf("%s: %v and %v", name, one, other)
		}
	}
}

// Machines that hear of the same changes in any order, some of them often, have the same.
func TestMachinesAgreeWhateverTheyHearFirst(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var all Changes
		for range 1 + random.IntN(2*ChangesMax) {
			all = append(all, Change{Drained{KindBackend, fmt.Sprint(random.IntN(ChangesMax))}, random.IntN(2) == 0, fmt.Sprint(random.IntN(3)), now.Add(time.Duration(random.IntN(9)))})
		}
		merge := func(changes Changes) (merged Changes) {
			for _, change := range changes {
				merged = merged.Merge(Changes{change}, now)
			}
			return merged
		}
		one := merge(all)
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		other := merge(append(slices.Clone(all), all[:len(all)/2]...))
		if !one.Equal(other) || !slices.IsSortedFunc(one, func(a, b Change) int { return a.Drained.Compare(b.Drained) }) {
			t.Fatalf("%v\n%v", one, other)
		}
	}
}

func TestACommandIsLaterThanAChangeOfAClockThatIsAhead(t *testing.T) {
	known := Changes{{web, true, "lb-2", now.Add(time.Hour)}}
	end := known.Next(web, false, "lb-1", now)
	if merged := known.Merge(Changes{end}, now); len(merged) != 1 || merged[0].Drain {
		t.Errorf("the undrain %v does not count", end)
	}
	if other := known.Next(Drained{KindService, "web-1"}, true, "lb-1", now); !other.Time.Equal(now) {
		t.Errorf("of another thing: %v", other)
	}
}

func TestEndsOfDrainsAreForgottenAndDrainsAreNot(t *testing.T) {
	changes := Changes{{Drained{KindBackend, "a"}, false, "lb-1", now}, {Drained{KindBackend, "b"}, true, "lb-1", now}}
	if merged := changes.Merge(nil, now.Add(endedKept)); len(merged) != 2 {
		t.Errorf("too soon: %v", merged)
	}
	if merged := changes.Merge(nil, now.Add(endedKept+1)); len(merged) != 1 || !merged[0].Drain {
		t.Errorf("left are %v", merged)
	}
}

func TestChangesAreBounded(t *testing.T) {
	var drains, ends Changes
	for i := range 2 * ChangesMax {
		drains = append(drains, Change{Drained{KindBackend, fmt.Sprintf("b%04d", i)}, true, "lb-1", now.Add(time.Duration(i))})
		ends = append(ends, Change{Drained{KindService, fmt.Sprintf("s%04d", i)}, false, "lb-1", now.Add(time.Hour)})
	}
	half := drains[:ChangesMax/2]
	if merged := half.Merge(ends, now); len(merged) != ChangesMax || len(merged.Apply(nil)) != ChangesMax/2 || !merged.HasRoomFor(web) {
		t.Errorf("%d are kept, %d of them drains", len(merged), len(merged.Apply(nil)))
	}
	full := ends.Merge(drains, now)
	if len(full) != ChangesMax || full[0].Name != fmt.Sprintf("b%04d", ChangesMax) || full.HasRoomFor(web) || !full.HasRoomFor(full[0].Drained) {
		t.Errorf("%d are kept, from %v", len(full), full[0])
	}
}

func TestChangesApplyToWhatIsDrained(t *testing.T) {
	a, b, c := Drained{KindBackend, "a"}, Drained{KindBackend, "b"}, Drained{KindService, "a"}
	changes := Changes{{a, false, "lb-1", now}, {c, true, "lb-1", now}}
	if got := changes.Apply([]Drained{a, b}); !slices.Equal(got, []Drained{b, c}) {
		t.Errorf("drained are %v", got)
	}
}

func TestChangesAreKeptAndSentAsTheyAre(t *testing.T) {
	changes := Changes{Changes{}.Next(web, true, "lb-1", time.Now())}
	var kept Changes
	text, err := json.Marshal(changes)
	if err != nil || json.Unmarshal(text, &kept) != nil || !kept.Equal(changes) {
		t.Errorf("%s: %v", text, err)
	}
	if received, ahead := ChangesOf(changes.Message(), time.Now()); !received.Equal(changes) || ahead != "" {
		t.Errorf("received %v %s", received, ahead)
	}
}

func TestChangesThatCannotBeFollowedAreLeftOut(t *testing.T) {
	at := func(after time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(after)) }
	var many []*fleetv1.DrainChange
	for i := range 5000 {
		many = append(many, &fleetv1.DrainChange{Kind: "backend", Name: fmt.Sprint(i), Time: at(0)})
	}
	if changes, _ := ChangesOf(many, now); len(changes) != ChangesMax {
		t.Errorf("%d are taken", len(changes))
	}
	changes, ahead := ChangesOf([]*fleetv1.DrainChange{
		{Kind: "pool", Name: "of a later version", Time: at(0)}, {Kind: "backend", Time: at(0)}, {Kind: "backend", Name: "no time"},
		{Kind: "backend", Name: "no such time", Time: &timestamppb.Timestamp{Seconds: 1 << 62}}, {Kind: "backend", Name: "a", Machine: "lb-2\x1b", Time: at(aheadMax + 1)},
		{Kind: "backend", Name: "web-1\x1b[2J", Drained: true, Time: at(aheadMax)}, nil,
	}, now)
	if len(changes) != 1 || changes[0].Name != `web-1\x1b[2J` || ahead != `lb-2\x1b` {
		t.Errorf("taken are %v, ahead is %q", changes, ahead)
	}
}
