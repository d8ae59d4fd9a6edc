package compile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

func groupOf(table Table, others ...string) *planv1.Group {
	group := &planv1.Group{Name: "web"}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		group.Members = append(group.Members, &planv1.Member{Backend: name, Weight: table[name], State: planv1.BackendState_BACKEND_STATE_ACTIVE})
	}
	for _, name := range others {
		group.Members = append(group.Members, &planv1.Member{Backend: name, Weight: 1, State: planv1.BackendState_BACKEND_STATE_DOWN})
	}
	return group
}

func TestEarlierTablesAreTheLatestEightEachOnce(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var history []Table // the latest first, each once
	var former []Table
	for round := range 500 {
		table := Table{}
		for i := range 4 {
			if random.IntN(3) > 0 {
				table[fmt.Sprintf("be-%d", i)] = 1 + random.Uint32N(2)
			}
		}
		group := groupOf(table, "down")
		setEarlier(group, former)
		earlier := EarlierTables(group)
		want := slices.DeleteFunc(slices.Clone(history), func(other Table) bool { return SameTable(other, table) })
		want = want[:min(len(want), earlierTablesMax)]
		if !slices.EqualFunc(earlier, want, maps.Equal) {
			t.Fatalf("round %d: present %v\n%v, want\n%v", round, table, earlier, want)
		}
		again := groupOf(table, "down")
		setEarlier(again, Tables(group))
		if !proto.Equal(group, again) {
			t.Fatalf("round %d: what did not change gave %v, then %v", round, group, again)
		}
		former = Tables(group)
		history = want
		if len(table) > 0 {
			history = slices.Concat([]Table{table}, want)
		}
	}
}

func TestASlowStartsWeightsAreTheSameTableWhenItEnds(t *testing.T) {
	before, during, after := Table{"a": 5, "b": 5}, Table{"a": 5, "b": 4}, Table{"a": 1, "b": 1}
	group := groupOf(after)
	setEarlier(group, []Table{during, before})
	if got := EarlierTables(group); len(got) != 1 || !maps.Equal(got[0], during) {
		t.Errorf("earlier tables %v", got)
	}
	if !SameTable(before, after) || SameTable(during, after) || SameTable(Table{"a": 1}, after) || SameTable(Table{"a": 1, "c": 1}, after) {
		t.Error("tables are compared by something else than proportions")
	}
}

func TestDifferencesHoldWhatDiffersAndNothingElse(t *testing.T) {
	got := differences(Table{"a": 1, "b": 1, "c": 2}, Table{"b": 1, "c": 3, "d": 1})
	var texts []string
	for _, one := range got {
		texts = append(texts, fmt.Sprintf("%s %d", one.Backend, one.Weight))
	}
	if !slices.Equal(texts, []string{"a 0", "c 3", "d 1"}) {
		t.Errorf("differences %v", texts)
	}
}
