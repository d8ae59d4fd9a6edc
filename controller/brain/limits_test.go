package brain

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestALimitThatIsReachedForLongIsToldTwice(t *testing.T) {
	w := servingWeb(t)
	w.log = nil
	status := func(limit Limit) {
		w.do(ForwarderStatus{Generation: w.running.GetGeneration(), Limits: []Limit{limit}})
	}
	count := func(name string, isState bool, counts ...uint64) {
		for _, n := range counts {
			status(Limit{Name: name, Refused: "packets", Count: n, IsState: isState})
			w.pass(10 * time.Second)
		}
	}
	// What was counted before this controller started is no news; a forwarder that starts anew counts from 0.
	count("table", false, 100, 100, 105, 106, 106, 107, 3, 3, 3, 3, 3, 3, 3, 3, 4)
	count("targets", true, 0, 7, 9, 8, 0, 0, 0, 0, 0, 0, 0, 0)
	for second := range uint64(600) {
		status(Limit{Name: "flood", Refused: "packets", Count: second})
		w.pass(time.Second)
	}
	var told []string
	for _, t := range w.log {
		told = append(told, fmt.Sprintf("%s %s: %s > %s (%s)", t.Kind, t.Name, t.From, t.To, t.Reason))
	}
	want := []string{
		"limit table: not reached > reached (5 packets)", "limit table: reached > not reached (10 packets, in 40s)", "limit table: not reached > reached (1 packets)",
		"limit targets: not reached > reached (7 packets)", "limit targets: reached > not reached (9 packets, in 20s)",
		"limit flood: not reached > reached (1 packets)",
	}
	if !slices.Equal(told, want) {
		t.Errorf("told:\n%s", strings.Join(told, "\n"))
	}
}
