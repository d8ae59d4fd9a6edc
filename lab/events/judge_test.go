package events

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/traffic/load"
)

func flow(port uint16) load.Flow {
	return load.Flow{
		Source:      netip.AddrPortFrom(netip.MustParseAddr("10.10.1.1"), port),
		Destination: netip.MustParseAddrPort("203.0.113.20:7000"),
	}
}

func TestOnlyAllowedFailuresAreForgiven(t *testing.T) {
	found := time.Unix(100, 0)
	allowed := allowance{
		connections: map[load.Flow]bool{flow(1): true, flow(2): true},
		request:     func(f load.Failure) bool { return f.Begun.Before(found) },
	}
	failures := []load.Failure{
		{Kind: load.KindEcho, Flow: flow(1)},
		{Kind: load.KindEcho, Flow: flow(3), Reason: "read: reset", Begun: found.Add(-time.Second)},
		{Kind: load.KindKeepAlive, Flow: flow(2), Begun: found.Add(time.Second)},
		{Kind: load.KindFresh, Flow: flow(4), Begun: found.Add(-time.Second)},
		{Kind: load.KindFresh, Flow: flow(5), Reason: "dial: time limit", Begun: found.Add(time.Second)},
	}
	j := allowed.judge(failures)
	if j.byRule != 1 || len(j.beyond) != 2 {
		t.Fatalf("judgement %+v", j)
	}
	lines := describe(j.beyond)
	if len(lines) != 2 || !strings.Contains(lines[0], "echo read: reset") || !strings.Contains(lines[1], "fresh dial: time limit") {
		t.Errorf("described as %q", lines)
	}
	if got := (allowance{}).judge(failures); len(got.beyond) != len(failures) || got.byRule != 0 {
		t.Errorf("without any allowance %+v", got)
	}
}

func TestARSTWithoutASocketIsNoSecondWorker(t *testing.T) {
	closing, first := tracker{machine: "lb-1", worker: 1, class: "closing"}, tracker{machine: "lb-1", class: "unconfirmed"}
	for name, test := range map[string]struct {
		list []tracker
		want int
	}{
		"one":                         {[]tracker{closing}, 1},
		"one that had a first packet": {[]tracker{first}, 1},
		"a RST hashed anew":           {[]tracker{first, closing}, 1},
		"two workers":                 {[]tracker{closing, {machine: "lb-1", class: "established"}}, 2},
	} {
		if got := confirmed(test.list); len(got) != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhoMayBreakWhenAMachineDies(t *testing.T) {
	live := []load.Live{
		{Kind: load.KindEcho, Flow: flow(1), Backend: "be-1"},      // moves to be-2
		{Kind: load.KindEcho, Flow: flow(2), Backend: "be-2"},      // stays
		{Kind: load.KindEcho, Flow: flow(3), Backend: "be-1"},      // would move, but is on lb-2
		{Kind: load.KindKeepAlive, Flow: flow(4), Backend: "be-1"}, // tracked nowhere
	}
	trackedBy := map[load.Flow][]tracker{
		flow(1): {{machine: "lb-1"}}, flow(2): {{machine: "lb-1"}}, flow(3): {{machine: "lb-2"}},
	}
	selected := map[load.Flow]string{flow(1): "be-2", flow(2): "be-2", flow(3): "be-2", flow(4): "be-2"}

	two := mayBreak(live, trackedBy, selected, "lb-1", true)
	if len(two) != 2 || !two[flow(1)] || !two[flow(4)] {
		t.Errorf("of two machines: %v", two)
	}
	three := mayBreak(live, trackedBy, selected, "lb-1", false)
	if len(three) != 3 || three[flow(2)] {
		t.Errorf("of three machines: %v", three)
	}
	if n := (allowance{connections: two}).count(live, load.KindEcho); n != 1 {
		t.Errorf("%d echo connections", n)
	}
}

func TestFlowsThatAreTrackedWhereTheyShouldNotBe(t *testing.T) {
	live := []load.Live{
		{Flow: flow(1), Backend: "be-1"}, {Flow: flow(2), Backend: "be-1"},
		{Flow: flow(3), Backend: "be-1"}, {Flow: flow(4), Backend: "be-1"},
	}
	trackedBy := map[load.Flow][]tracker{
		flow(1): {{"lb-1", 0, "be-1", ""}},
		flow(2): {{"lb-1", 0, "be-1", ""}, {"lb-1", 1, "be-1", ""}},
		flow(3): {{"lb-2", 0, "be-2", ""}},
	}
	problems := strings.Join(append(trackedByProblems(live, trackedBy), trackedTwice(live, trackedBy)), "\n")
	for _, want := range []string{"1 flows are on more than one worker", "1 of 4 flows are not tracked", "1 flows are tracked for another backend"} {
		if !strings.Contains(problems, want) {
			t.Errorf("%q is not in %q", want, problems)
		}
	}
	if none := trackedByProblems(live[:1], trackedBy); none != nil {
		t.Errorf("problems %q", none)
	}
	if none := trackedTwice(live[:1], trackedBy); none != "" {
		t.Errorf("problem %q", none)
	}
}

func TestAnswersOfTheForwarderAreMatchedToTheirFlows(t *testing.T) {
	out := `{"flow":"tcp 10.10.1.1 1 203.0.113.20 7000","service":"echo","backend":"be-2-v6","slot":7}` + "\n"
	selected, err := parseSelected([]byte(out), []load.Flow{flow(1)})
	if err != nil || selected[flow(1)] != "be-2" {
		t.Errorf("selected %v, %v", selected, err)
	}
	for name, bad := range map[string]struct {
		out   string
		flows []load.Flow
	}{
		"too few":       {out, []load.Flow{flow(1), flow(2)}},
		"another flow":  {out, []load.Flow{flow(2)}},
		"of no service": {strings.Replace(out, `"be-2-v6"`, "null", 1), []load.Flow{flow(1)}},
	} {
		if _, err := parseSelected([]byte(bad.out), bad.flows); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestAForwarderThatBeganAnewCountsFromZero(t *testing.T) {
	for _, test := range [][3]uint64{{10, 15, 5}, {10, 10, 0}, {10, 3, 3}} {
		if got := sinceLast(test[0], test[1]); got != test[2] {
			t.Errorf("since %d at %d: %d, want %d", test[0], test[1], got, test[2])
		}
	}
}
