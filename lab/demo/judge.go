package demo

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/guideway/guideway/lab/load"
)

// allowance is what an event may break, decided as early as can be.
type allowance struct {
	// connections that may end, counted and named before anything is killed.
	connections map[load.Flow]bool
	// request tells whether a failed request was the event's right to break;
	// nil: none is. Requests begin and end while an event goes on, so this is
	// a rule; the rule is fixed before the load stops.
	request func(load.Failure) bool
}

// count the connections of a kind that may break.
func (a allowance) count(live []load.Live, kind string) int {
	n := 0
	for _, l := range live {
		if l.Kind == kind && a.connections[l.Flow] {
			n++
		}
	}
	return n
}

// judgement of one event's failures.
type judgement struct {
	// byRule are the failed requests that only the rule allows.
	byRule int
	// beyond are the failures that nothing allows.
	beyond []load.Failure
}

// judge each failure of a load. A keep-alive connection that was allowed to
// break fails the request that found out.
func (a allowance) judge(failures []load.Failure) judgement {
	var j judgement
	for _, failure := range failures {
		switch {
		case a.connections[failure.Flow]:
		case failure.Kind != load.KindEcho && a.request != nil && a.request(failure):
			j.byRule++
		default:
			j.beyond = append(j.beyond, failure)
		}
	}
	return j
}

// describe failures in a line per reason, for people.
func describe(failures []load.Failure) []string {
	counts := map[string]int{}
	examples := map[string]load.Failure{}
	for _, failure := range failures {
		key := fmt.Sprintf("%s %s", failure.Kind, failure.Reason)
		if counts[key] == 0 {
			examples[key] = failure
		}
		counts[key]++
	}
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		example := examples[key]
		lines = append(lines, fmt.Sprintf("%d × %s, as %s of %q, begun %s, failed after %v", counts[key], key,
			example.Flow, example.Backend, example.Begun.Format("15:04:05.000"), example.Failed.Sub(example.Begun).Round(time.Millisecond)))
	}
	return lines
}

// Share of one backend in new connections.
type Share struct {
	Backend string `json:"backend"`
	// Share and Ideal are fractions of all new connections.
	Share float64 `json:"share"`
	Ideal float64 `json:"ideal"`
	// Sigma is the standard deviation that chance alone gives, relative to
	// the ideal.
	Sigma float64 `json:"sigma"`
}

// newShares of the backends, which all have the same weight. A backend that
// served nobody has its line too; one that should not have served has an
// ideal of zero.
func newShares(counts map[string]int, backends []string) []Share {
	total := 0
	for _, n := range counts {
		total += n
	}
	all := slices.Clone(backends)
	for name := range counts {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	var list []Share
	for _, name := range all {
		share := Share{Backend: name}
		if slices.Contains(backends, name) {
			share.Ideal = 1 / float64(len(backends))
			share.Sigma = math.Sqrt((1 - share.Ideal) / (float64(max(total, 1)) * share.Ideal))
		}
		share.Share = float64(counts[name]) / float64(max(total, 1))
		list = append(list, share)
	}
	return list
}

// deviation from the ideal, relative to it.
func (s Share) deviation() float64 {
	if s.Ideal == 0 {
		return math.Inf(1)
	}
	return s.Share/s.Ideal - 1
}

// tolerance: the larger of 5 % and what chance exceeds once in 16,000 times.
func (s Share) tolerance() float64 { return max(0.05, 4*s.Sigma) }

func (s Share) good() bool { return math.Abs(s.deviation()) <= s.tolerance() }
