package buckets

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// figures is what figures 11 and 12 (bench/figures) show of buckets beside the
// tables of the Maglev paper: how even shares are, and how many buckets move when
// backends fail. Counted here because only this package assigns.
type figures struct {
	Backends int      `json:"backends"`
	Buckets  uint32   `json:"buckets"`
	Least    int      `json:"least"`
	Most     int      `json:"most"`
	Failures []failed `json:"failures"`
}

// failed backends, drawn at random, and the buckets that moved.
type failed struct {
	Backends    int `json:"backends"`
	Repetitions int `json:"repetitions"`
	Sum         int `json:"sum"`
	// Of these, buckets that the failed backends had.
	Own int `json:"own"`
	Min int `json:"min"`
	Max int `json:"max"`
}

const figuresFile = "testdata/figures.json"

// UPDATE_FIGURES=1 rewrites the file.
func TestFiguresAreWhatMapsDo(t *testing.T) {
	var all []figures
	for _, backends := range []int{100, 1000} {
		all = append(all, countFigures(backends, Max))
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, '\n')
	if os.Getenv("UPDATE_FIGURES") != "" {
		if err := os.WriteFile(figuresFile, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := os.ReadFile(figuresFile); err != nil || string(kept) != string(text) {
		t.Errorf("%s is not what maps do (%v): UPDATE_FIGURES=1 go test ./controller/buckets rewrites it, then make figures FIGURES=\"11 12\"", figuresFile, err)
	}
}

func countFigures(backends int, count uint32) figures {
	var all []Member
	for i := range backends {
		all = append(all, Member{Backend: fmt.Sprintf("backend-%05d", i), Weight: 1})
	}
	var none *Map
	before := none.Next(serving(count, all))
	has := before.Owned()
	f := figures{Backends: backends, Buckets: count, Least: int(count)}
	for _, member := range all {
		f.Least, f.Most = min(f.Least, has[member.Backend]), max(f.Most, has[member.Backend])
	}
	for _, n := range []int{1, 2, 5, 10, 15, 20, 30, 40, 50} {
		f.Failures = append(f.Failures, countMoved(all, n, func(left []Member) int {
			return moved(before, before.Next(serving(count, left)))
		}, has))
	}
	return f
}

func countMoved(all []Member, n int, moved func(left []Member) int, has map[string]int) failed {
	random := rand.New(rand.NewPCG(12, uint64(n)))
	result := failed{Backends: n, Repetitions: 200}
	for at := range result.Repetitions {
		gone := random.Perm(len(all))[:n]
		var left []Member
		for i, member := range all {
			if slices.Contains(gone, i) {
				result.Own += has[member.Backend]
			} else {
				left = append(left, member)
			}
		}
		count := moved(left)
		if at == 0 || count < result.Min {
			result.Min = count
		}
		result.Max = max(result.Max, count)
		result.Sum += count
	}
	return result
}
