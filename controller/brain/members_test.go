package brain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/config"
)

const fromFile = `
machine: {addresses: [10.0.0.1]}
services: [{name: web, vips: [{address: 203.0.113.10}], pools: [web]}]
pools: [{name: web, from: {file: /etc/guideway/web.json}, shrink_delay: 5m, drain_time: 1m}]
`

var webFile = config.MemberSource{File: "/etc/guideway/web.json"}

// membersAt are the backends at these last bytes of 10.1.0.0/24.
func membersAt(last ...int) []config.PoolMember {
	var members []config.PoolMember
	for _, n := range last {
		address := netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)})
		members = append(members, config.PoolMember{Name: address.String(), Address: address, Weight: 1})
	}
	return members
}

func (w *world) lists(last ...int) {
	w.do(MembersRead{Pool: "web", From: webFile, Members: membersAt(last...)})
}

func (w *world) fails(problem string) {
	w.do(MembersRead{Pool: "web", From: webFile, Problem: problem})
}

// members of the running plan, by their last bytes; * for one that drains.
func (w *world) expectMembers(want string) {
	w.t.Helper()
	var got []string
	for _, group := range w.running.GetGroups() {
		for _, m := range group.Members {
			text := strings.TrimPrefix(m.Backend, "10.1.0.")
			if m.State == stateDraining {
				text += "*"
			}
			got = append(got, text)
		}
	}
	if strings.Join(got, " ") != want {
		w.t.Errorf("members %q, want %q", strings.Join(got, " "), want)
	}
}

func (w *world) source() MemberSourceView {
	w.t.Helper()
	views := w.state.View(false).MemberSources
	if len(views) != 1 {
		w.t.Fatalf("sources %+v", views)
	}
	return views[0]
}

func TestAPoolHasTheMembersThatItsSourceLists(t *testing.T) {
	w := start(t, fromFile)
	if w.running != nil {
		t.Fatal("a plan was made before the source was asked: it would empty the pool of a forwarder that has members")
	}
	w.lists(3, 1, 2)
	w.expectMembers("1 2 3")
	generation := w.running.Generation
	w.lists(2, 3, 1)
	if w.running.Generation != generation {
		t.Error("another order made another plan")
	}
	w.lists(1, 2, 3, 4)
	w.expectMembers("1 2 3 4")
}

func TestAMemberThatLeavesDrainsBeforeItIsRemoved(t *testing.T) {
	w := start(t, fromFile)
	w.lists(1, 2, 3)
	w.lists(1, 2)
	w.expectMembers("1 2 3*")
	if b := w.backend("10.1.0.3"); b.Reason != "no longer in file /etc/guideway/web.json" {
		t.Errorf("reason %q", b.Reason)
	}
	w.lists(1, 2, 3)
	w.expectMembers("1 2 3")
	w.lists(1, 2)
	w.pass(59 * time.Second)
	w.expectMembers("1 2 3*")
	w.pass(time.Second)
	w.expectMembers("1 2")
}

func TestASourceThatFailsChangesNothing(t *testing.T) {
	w := start(t, fromFile)
	w.lists(1, 2)
	success := w.now
	w.pass(time.Minute)
	w.fails("no such file")
	w.pass(time.Hour)
	w.fails("no such file")
	w.expectMembers("1 2")
	if v := w.source(); v.Problem != "no such file" || !v.LastSuccess.Equal(success) || !v.ProblemSince.Equal(success.Add(time.Minute)) {
		t.Errorf("shown %+v", v)
	}
	w.lists(1, 2)
	if v := w.source(); v.Problem != "" || v.LastSuccess.Equal(success) {
		t.Errorf("shown %+v", v)
	}
}

func TestTheFirstPlanIsMadeWhenASourceHasFailed(t *testing.T) {
	w := start(t, fromFile)
	if w.last.Plan != nil {
		t.Fatalf("there is a plan before the source was asked: %v", w.last.Plan)
	}
	w.fails("no such file")
	if w.last.Plan == nil {
		t.Error("there is no plan after it failed")
	}
}

func TestASetThatEmptiesOrHalvesAPoolWaits(t *testing.T) {
	for what, set := range map[string][]int{"empty": {}, "half": {1, 2}, "others": {5, 6, 7, 8}} {
		w := start(t, fromFile)
		w.lists(1, 2, 3, 4)
		w.lists(set...)
		all := slices.Compact(slices.Sorted(slices.Values(append([]int{1, 2, 3, 4}, set...))))
		want := strings.Trim(fmt.Sprint(all), "[]")
		w.expectMembers(want)
		if v := w.source(); v.Waiting == 0 || !v.WaitingUntil.Equal(v.WaitingSince.Add(5*time.Minute)) {
			t.Errorf("%s: shown %+v", what, v)
		}
		w.pass(4 * time.Minute)
		w.lists(set...)
		w.expectMembers(want)
		w.pass(time.Hour)
		w.expectMembers(want) // only a set ends the wait: the source may have died
		w.fails("no answer")
		w.expectMembers(want)
		w.lists(set...)
		w.pass(time.Minute)
		w.expectMembers(strings.Trim(fmt.Sprint(set), "[]"))
	}
}

func TestAFlappingSourceMovesNothing(t *testing.T) {
	w := start(t, fromFile)
	w.lists(1, 2, 3, 4)
	generation := w.running.Generation
	for range 100 {
		w.lists()
		w.pass(10 * time.Second)
		w.fails("no answer")
		w.lists(1)
		w.pass(10 * time.Second)
		w.lists(1, 2, 3, 4)
		w.pass(10 * time.Second)
	}
	if w.running.Generation != generation {
		t.Errorf("%d plans were made", w.running.Generation-generation)
	}
}

func TestAPoolThatShrinksInStepsWaitsAtHalf(t *testing.T) {
	w := start(t, fromFile)
	w.lists(1, 2, 3, 4, 5, 6, 7, 8)
	for n := 7; n > 0; n-- {
		w.lists([]int{1, 2, 3, 4, 5, 6, 7}[:n]...)
		w.pass(5 * time.Second)
	}
	w.expectMembers("1 2 3 4 5 6* 7* 8*")
	w = start(t, fromFile)
	for n := 8; n > 2; n-- { // slowly is on purpose
		w.lists([]int{1, 2, 3, 4, 5, 6, 7, 8}[:n]...)
		w.pass(6 * time.Minute)
	}
	w.expectMembers("1 2 3")
}

func TestMembersThatDoNotFitTheConfigChangeNothing(t *testing.T) {
	w := start(t, fromFile)
	w.lists(1, 2)
	vip := membersAt(3)
	vip[0].Address = netip.MustParseAddr("203.0.113.10")
	w.do(MembersRead{Pool: "web", From: webFile, Members: append(membersAt(1, 2), vip...)})
	w.expectMembers("1 2")
	if problem := w.source().Problem; !strings.Contains(problem, "pools[0].backends[2].address: 203.0.113.10 is also a VIP") {
		t.Errorf("problem %q", problem)
	}
	w.lists(1, 2, 3)
	w.expectMembers("1 2 3")
}

func TestAPoolThatGetsASourceKeepsItsBackendsUntilTheSourceAnswers(t *testing.T) {
	w := start(t, strings.Replace(fromFile, "from: {file: /etc/guideway/web.json}, shrink_delay: 5m, drain_time: 1m", "backends: [{address: 10.1.0.1}, {address: 10.1.0.2}]", 1))
	w.expectMembers("1 2")
	w.do(ConfigLoaded{Config: parse(t, fromFile)})
	w.expectMembers("1 2")
	w.fails("no such file")
	w.expectMembers("1 2")
	w.do(MembersRead{Pool: "web", From: config.MemberSource{DNS: "web.internal"}, Members: membersAt(9)})
	w.expectMembers("1 2") // of another source
	w.lists(1, 2, 3)
	w.expectMembers("1 2 3")
}

func TestMembersSurviveARestart(t *testing.T) {
	w := start(t, fromFile)
	w.lists(1, 2, 3)
	w.lists(1, 2)
	kept := w.last.Members
	again := &world{t: t, state: New(w.now), now: w.now, accepts: true}
	again.do(MembersRestored{Pools: kept})
	again.do(ConfigLoaded{Config: parse(t, fromFile)})
	again.connect(w.running)
	again.expectMembers("1 2 3*")
	again.fails("no answer")
	again.pass(time.Minute)
	again.expectMembers("1 2")
	again.lists(1) // half of what there was
	again.expectMembers("1 2")
	if v := again.source(); v.LastSuccess.IsZero() {
		t.Errorf("shown %+v", v)
	}
}

func TestABackendThatLeavesOnePoolOfAServiceStaysActiveByTheOther(t *testing.T) {
	const two = `
machine: {addresses: [10.0.0.1]}
services: [{name: web, vips: [{address: 203.0.113.10}], pools: [web, more]}]
pools:
- {name: web, from: {file: /etc/guideway/web.json}}
- {name: more, backends: [{address: 10.1.0.2, weight: 7}]}
`
	w := start(t, two)
	w.lists(1, 3, 4)
	w.do(MembersRead{Pool: "web", From: webFile, Members: append(membersAt(1, 3, 4), config.PoolMember{Name: "10.1.0.2", Address: netip.MustParseAddr("10.1.0.2"), Weight: 7})})
	w.lists(1, 3, 4)
	w.expectMembers("1 2 3 4")
	if b := w.backend("10.1.0.2"); b.Weight != 7 || !slices.Equal(b.Pools, []string{"more"}) {
		t.Errorf("backend %+v", b)
	}
}

func TestAThousandMembersComeAndGo(t *testing.T) {
	w := start(t, fromFile)
	var all []int
	for n := range 1000 {
		all = append(all, n+1)
	}
	w.lists(all...)
	if n := len(w.running.Groups[0].Members); n != 1000 {
		t.Fatalf("%d members", n)
	}
	w.lists(all[:900]...)
	w.pass(2 * time.Minute)
	if n := len(w.running.Groups[0].Members); n != 900 {
		t.Errorf("%d members", n)
	}
}

func TestMembersWhosePlanTheForwarderRefusesAreLeftOutUntilTheyDiffer(t *testing.T) {
	w := start(t, fromFile)
	w.lists(1, 2, 3)
	loaded := w.last.Trusted
	w.accepts = false
	w.lists(1, 2, 3, 4)
	w.do(PlanRefused{Generation: w.last.Plan.Generation, Reason: "too many"})
	w.accepts = true
	w.pass(100 * time.Millisecond)
	w.expectMembers("1 2 3")
	if v := w.state.View(false).Config; !v.Stale || !strings.Contains(v.Problem, "too many") {
		t.Errorf("config %+v", v)
	}
	w.lists(1, 2, 3, 4)
	w.expectMembers("1 2 3")
	w.lists(1, 2, 3, 5)
	w.expectMembers("1 2 3 4* 5")
	if v := w.state.View(false).Config; v.Stale || w.last.Trusted != loaded {
		t.Errorf("config %+v", v)
	}
}

func TestAConfigThatTheForwarderRefusesTakesNoMembersAway(t *testing.T) {
	w := start(t, fromFile)
	w.lists(1, 2, 3)
	w.accepts = false
	w.do(ConfigLoaded{Config: parse(t, strings.Replace(fromFile, "from: {file: /etc/guideway/web.json}, shrink_delay: 5m, drain_time: 1m", "backends: [{address: 10.1.0.9}]", 1))})
	w.do(PlanRefused{Generation: w.last.Plan.Generation, Reason: "no"})
	w.accepts = true
	w.pass(100 * time.Millisecond)
	w.expectMembers("1 2 3")
	w.lists(1, 2, 3, 4)
	w.expectMembers("1 2 3 4")
}
