package events

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/guideway/guideway/lab/traffic/load"
)

// allowance is what an event may break, decided as early as can be.
type allowance struct {
	// connections that may end, counted and named before anything is killed.
	connections map[load.Flow]bool
	// request: whether a failed request was the event's right to break;
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
