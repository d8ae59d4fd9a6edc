package brain

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/agreement"
	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/config"
)

// fleet is several brains that share what a model of etcd holds.
type fleet struct {
	t        *testing.T
	machines []*world
	leader   string
	away     map[string]bool
	revision int64
	stored   map[string]agreement.Stored
	told     map[string]agreement.Told
	verdicts map[string]agreement.Verdicts
}

func sharing(t *testing.T, machine int) *config.Config {
	t.Helper()
	return sharingWith(t, machine, func(shared string) string { return shared })
}

func sharingWith(t *testing.T, machine int, change func(shared string) string) *config.Config {
	t.Helper()
	missing := func(string) ([]byte, fs.FileMode, error) { return nil, 0, fs.ErrNotExist }
	_, shared, _ := strings.Cut(stateless, "addresses: [10.0.0.1]}\n")
	own := fmt.Sprintf("machine: {name: lb-%d, addresses: [10.0.0.%d]}\netcd: {cluster: c1, endpoints: [\"http://10.0.0.9:2379\"]}\n", machine, machine)
	shared += "cluster: {name: c1}\npeers: [{name: lb-1, addresses: [10.0.0.1]}, {name: lb-2, addresses: [10.0.0.2]}, {name: lb-3, addresses: [10.0.0.3]}]\n"
	c, err := config.ParseToCompile([]config.Source{{Name: "own.yaml", Data: []byte(own)}, {Name: "etcd", Data: []byte(change(shared)), Generation: 1}}, missing)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func startFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{
		t: t, leader: "lb-1", away: map[string]bool{},
		stored: map[string]agreement.Stored{}, told: map[string]agreement.Told{}, verdicts: map[string]agreement.Verdicts{},
	}
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 3 {
		w := &world{t: t, state: New(began), now: began, accepts: true}
		f.machines = append(f.machines, w)
		w.do(ConfigLoaded{Config: sharing(t, i+1)})
		w.connect(nil)
		w.probe("10.1.0.11", true)
		w.probe("10.1.0.12", true)
	}
	f.pass(2 * time.Second)
	f.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	return f
}

func (f *fleet) name(w *world) string { return w.state.machineName() }

// exchange what is desired of each machine in etcd, and what it reads there.
func (f *fleet) exchange() {
	for _, w := range f.machines {
		want := w.last.Agreement
		if f.away[f.name(w)] || want == nil {
			continue
		}
		f.verdicts[want.Machine] = want.Verdicts
		f.tell(want)
		for service, p := range want.Proposals {
			f.write(want.Machine, service, p)
		}
	}
	for _, w := range f.machines {
		if f.away[f.name(w)] {
			w.do(AgreementAway{Reason: "connection refused"})
			continue
		}
		w.do(AgreementSeen{Seen: &agreement.Seen{
			Leader: f.leader, Leads: f.leader == f.name(w),
			Maps: maps.Clone(f.stored), Told: maps.Clone(f.told), Verdicts: maps.Clone(f.verdicts),
		}})
	}
}

func (f *fleet) tell(want *Agreement) {
	for service, revision := range want.Rejoins {
		if f.stored[service].Revision != revision {
			return
		}
	}
	former, isThere := f.told[want.Machine]
	if former.Withdrawn && !want.Told.Withdrawn && want.Rejoins == nil {
		return
	}
	if !isThere || former.Number != want.Told.Number {
		f.revision++
		told := want.Told
		told.Revision = f.revision
		f.told[want.Machine] = told
	}
}

func (f *fleet) write(machine, service string, p *agreement.Proposal) {
	if p.AsLeader && f.leader != machine || f.stored[service].Revision != p.Previous {
		return
	}
	f.revision++
	if p.Map == nil {
		delete(f.stored, service)
		return
	}
	f.stored[service] = agreement.Stored{Map: p.Map, Revision: f.revision}
}

func (f *fleet) pass(d time.Duration) {
	for range d / (50 * time.Millisecond) {
		for _, w := range f.machines {
			w.pass(50 * time.Millisecond)
		}
		f.exchange()
	}
}

func (f *fleet) probe(address string, ok bool, machines ...int) {
	for range 3 {
		for _, i := range machines {
			f.machines[i].probe(address, ok)
		}
		f.pass(200 * time.Millisecond)
	}
}

func (f *fleet) expectOwners(want map[string]int) {
	f.t.Helper()
	for _, w := range f.machines {
		if got := w.owners(); !maps.Equal(got, want) {
			f.t.Errorf("%s: buckets of backends: %v, want %v", f.name(w), got, want)
		}
		m := f.stored["web"].Map
		if own := w.last.Maps["web"]; own != m {
			f.t.Errorf("%s has another map than etcd", f.name(w))
		}
	}
}

func TestLoadBalancersRunTheMapThatTheLeaderWrites(t *testing.T) {
	f := startFleet(t)
	f.machines[1].do(DrainBackend{Backend: "web-1", Drain: true}) // on one that does not lead
	f.pass(2 * time.Second)
	f.expectOwners(map[string]int{"web-2": 256})
	f.machines[1].do(DrainBackend{Backend: "web-1"})
	f.pass(2 * time.Second)
	f.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
}

// An undrain ends the drain of its own machine alone, and says whose others there are.
func TestAnUndrainNamesTheMachinesThatDrain(t *testing.T) {
	f := startFleet(t)
	f.machines[1].do(DrainBackend{Backend: "web-1", Drain: true})
	f.pass(2 * time.Second)
	w := f.machines[0]
	w.do(DrainBackend{Backend: "web-1"})
	f.pass(2 * time.Second)
	f.expectOwners(map[string]int{"web-2": 256})
	if why := w.state.DrainedElsewhere("web-1"); !strings.Contains(why, "on lb-2, too") {
		t.Errorf("%q", why)
	}
	for _, why := range []string{w.state.DrainedElsewhere("web-2"), f.machines[1].state.DrainedElsewhere("web-1"), New(w.now).DrainedElsewhere("web-1")} {
		if why != "" {
			t.Error(why)
		}
	}
}

func TestEachStepWaitsForEveryLoadBalancer(t *testing.T) {
	f := startFleet(t)
	f.machines[2].accepts = false
	f.machines[0].do(DrainBackend{Backend: "web-1", Drain: true})
	f.pass(5 * time.Second)
	for _, w := range f.machines[:2] {
		w.expectOwners(map[string]int{"web-1": 128, "web-2": 128}) // prepared
		w.expectMoves(128)
		view := w.state.View(false).Services[0].Buckets.Agreement
		if len(view.Lags) != 1 || view.Lags[0].Machine != "lb-3" || view.Leader != "lb-1" {
			t.Errorf("%+v", view)
		}
	}
	// Its lease is lost, and its controller dies: that changes nothing.
	f.away["lb-3"] = true
	delete(f.verdicts, "lb-3")
	f.pass(5 * time.Second)
	f.machines[0].expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	f.away["lb-3"] = false
	f.machines[2].accept()
	f.machines[2].accepts = true
	f.pass(2 * time.Second)
	f.expectOwners(map[string]int{"web-2": 256})
}

func TestTheNextLeaderGoesOnInEachStep(t *testing.T) {
	for steps := range 8 {
		f := startFleet(t)
		f.machines[0].do(DrainBackend{Backend: "web-1", Drain: true})
		f.pass(time.Duration(steps) * 50 * time.Millisecond)
		f.leader = ""
		f.away["lb-1"] = true // its forwarder goes on
		f.pass(time.Second)
		f.leader = "lb-2"
		f.pass(time.Second)
		f.away["lb-1"] = false
		f.pass(5 * time.Second)
		if steps == 0 {
			continue // etcd did not hear of the drain before the leader was killed; it does now
		}
		f.expectOwners(map[string]int{"web-2": 256})
	}
}

func TestABackendIsDeadByTheMajority(t *testing.T) {
	f := startFleet(t)
	f.probe("10.1.0.12", false, 0) // the leader alone
	f.pass(2 * time.Second)
	f.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	f.probe("10.1.0.12", false, 1)
	f.pass(2 * time.Second)
	f.expectOwners(map[string]int{"web-1": 256})
}

func TestWhileEtcdIsAwayOnlyDeadBackendsBucketsMove(t *testing.T) {
	f := startFleet(t)
	f.away = map[string]bool{"lb-1": true, "lb-2": true, "lb-3": true}
	f.pass(time.Second)
	for _, w := range f.machines {
		w.do(DrainBackend{Backend: "web-1", Drain: true})
	}
	f.pass(2 * time.Second)
	f.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	for _, w := range f.machines {
		w.do(DrainBackend{Backend: "web-1"})
	}
	f.probe("10.1.0.12", false, 0, 1, 2)
	for _, w := range f.machines {
		w.expectOwners(map[string]int{"web-1": 256})
		if view := w.state.View(false).Services[0].Buckets.Agreement; !view.MadeAlone || view.Problem == "" {
			t.Errorf("%+v", view)
		}
	}
	made := f.machines[1].bucketMap()
	clear(f.away)
	f.pass(20 * time.Second)
	f.expectOwners(map[string]int{"web-1": 256})
	if now := f.machines[1].bucketMap(); !slices.Equal(now.ByBucket, made.ByBucket) {
		t.Error("the leader has not taken up what all had made")
	}
	var told []string
	for _, t := range f.machines[0].log {
		if t.Kind == "buckets" && t.Name == "etcd" {
			told = append(told, fmt.Sprintf("%s > %s: %s", t.From, t.To, t.Reason))
		}
	}
	if want := []string{"answers > lost: only buckets of dead backends move: connection refused", "lost > answers: bucket maps are agreed on again"}; !slices.Equal(told, want) {
		t.Errorf("told %q", told)
	}
}

// What one alone found dead goes back to it when etcd answers.
func TestTheAgreedMapWins(t *testing.T) {
	f := startFleet(t)
	f.away["lb-3"] = true
	f.probe("10.1.0.12", false, 2)
	f.machines[2].expectOwners(map[string]int{"web-1": 256})
	f.away["lb-3"] = false
	f.pass(12 * time.Second)
	f.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
}

func TestAWithdrawnMachineIsNotWaitedForAndComesBackWithThePresentMap(t *testing.T) {
	f := startFleet(t)
	w := f.machines[2]
	w.do(DrainMachine{Drain: true})
	f.pass(10 * time.Second)
	if !f.told["lb-3"].Withdrawn {
		t.Fatal("not withdrawn")
	}
	f.away["lb-3"] = true
	f.machines[0].do(DrainBackend{Backend: "web-1", Drain: true})
	f.pass(2 * time.Second)
	f.machines[0].expectOwners(map[string]int{"web-2": 256})
	w.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	w.do(DrainMachine{})
	f.pass(2 * time.Second)
	w.expectRoutes() // it cannot have the present map
	f.away["lb-3"] = false
	f.pass(3 * time.Second)
	w.expectRoutes(vip)
	f.expectOwners(map[string]int{"web-2": 256})
	if f.told["lb-3"].Withdrawn {
		t.Error("moves do not wait for it")
	}
}

// restart a machine's controller with what is on disk.
func (f *fleet) restart(machine int) *world {
	former := f.machines[machine]
	w := &world{t: f.t, state: New(former.now), now: former.now, accepts: true}
	w.do(BucketMapsKept{Maps: former.last.Maps, Withdrawn: former.last.Withdrawn})
	if former.state.Drained().Machine {
		w.do(DrainMachine{Drain: true})
	}
	w.do(ConfigLoaded{Config: sharing(f.t, machine+1)})
	w.connect(former.last.Plan)
	f.machines[machine] = w
	return w
}

// A controller that starts, is told to come back and has not read etcd yet has maps that
// may be older than those of the others by any number of steps.
func TestAWithdrawnMachineStaysSoOverRestarts(t *testing.T) {
	for _, undrains := range []string{"before the restart", "after it"} {
		f := startFleet(t)
		f.machines[2].do(DrainMachine{Drain: true})
		f.pass(10 * time.Second)
		f.away["lb-3"] = true
		f.machines[0].do(DrainBackend{Backend: "web-1", Drain: true})
		f.pass(2 * time.Second)
		if undrains == "before the restart" {
			f.machines[2].do(DrainMachine{})
		}
		w := f.restart(2)
		w.do(DrainMachine{})
		w.settle(true, "10.1.0.11", "10.1.0.12")
		w.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
		w.expectRoutes()
		f.tell(w.last.Agreement) // as decided before etcd was read
		if !f.told["lb-3"].Withdrawn {
			t.Errorf("undrained %s: moves wait for it, and it has an older map", undrains)
		}
		f.pass(2 * time.Second)
		w.expectRoutes() // etcd is away
		f.away["lb-3"] = false
		f.pass(3 * time.Second)
		w.expectRoutes(vip)
		f.expectOwners(map[string]int{"web-2": 256})
		if f.told["lb-3"].Withdrawn || w.last.Withdrawn {
			t.Errorf("undrained %s: moves do not wait for it", undrains)
		}
	}
}

// A service that never had a backend has no map that a machine could take first.
func TestAMachineComesBackThoughAServiceHasNoMap(t *testing.T) {
	f := startFleet(t)
	empty := func(shared string) string {
		shared = strings.Replace(shared, "services:\n", "services:\n- {name: new, vips: [{address: 203.0.113.11, ports: [80]}], pools: [new], mode: stateless, encap: geneve, buckets: 256}\n", 1)
		return strings.Replace(shared, "pools:\n", "pools:\n- {name: new, backends: [{name: new-1, address: 10.1.0.21}], health_checks: [http-ok]}\n", 1)
	}
	for i, w := range f.machines {
		w.do(ConfigLoaded{Config: sharingWith(t, i+1, empty)})
	}
	f.probe("10.1.0.21", false, 0, 1, 2)
	w := f.machines[2]
	w.do(DrainMachine{Drain: true})
	f.pass(10 * time.Second)
	w.do(DrainMachine{})
	f.pass(3 * time.Second)
	w.expectRoutes(vip)
	if f.told["lb-3"].Withdrawn || f.stored["new"].Map != nil {
		t.Errorf("%+v, %+v", f.told["lb-3"], f.stored)
	}
}

// What a machine says has a higher number than what it said before, also where its
// clock was set back meanwhile: else it would wait for ever until etcd has its word.
func TestNumbersOfWhatIsToldOnlyGrow(t *testing.T) {
	f := startFleet(t)
	w := f.machines[2]
	seen := *w.state.buckets.agreement.seen
	told := seen.Told["lb-3"]
	told.Number = 1 << 62
	seen.Told = map[string]agreement.Told{"lb-3": told}
	w.do(AgreementSeen{Seen: &seen})
	former := told.Number
	for _, drain := range []bool{true, false} {
		w.do(DrainBackend{Backend: "web-1", Drain: drain})
		number := w.last.Agreement.Told.Number
		if number <= former {
			t.Errorf("%d after %d", number, former)
		}
		former = number
	}
}

func TestADamagedOrLostMapIsBroughtBack(t *testing.T) {
	for what, stored := range map[string]map[string]agreement.Stored{
		"damaged": {"web": {Problem: "no JSON", Revision: 1000}},
		"lost":    {},
	} {
		f := startFleet(t)
		f.machines[0].do(DrainBackend{Backend: "web-1", Drain: true})
		f.pass(2 * time.Second)
		f.stored, f.revision = stored, 1000
		f.exchange()
		if view := f.machines[1].state.View(false).Services[0].Buckets.Agreement; view.Problem == "" {
			t.Errorf("%s: nothing is said", what)
		}
		f.pass(3 * time.Second)
		f.expectOwners(map[string]int{"web-2": 256})
	}
}

// Who may write in etcd cannot have all count from where there is no room.
func TestAMapWhoseGenerationJumpsIsNotFollowedAndMovesGoOn(t *testing.T) {
	for _, generation := range []uint64{1 << 40, buckets.GenerationMax} {
		f := startFleet(t)
		former := f.stored["web"].Map.Generation
		jumped := *f.stored["web"].Map
		jumped.Generation = generation
		f.revision++
		f.stored["web"] = agreement.Stored{Map: &jumped, Revision: f.revision}
		f.told["lb-9"] = agreement.Told{Shard: "default", Maps: map[string]uint64{"web": math.MaxUint64}}
		f.exchange()
		if view := f.machines[1].state.View(false).Services[0].Buckets.Agreement; !strings.Contains(view.Problem, "was not made by Guideway") {
			t.Errorf("generation %d: %q", generation, view.Problem)
		}
		f.pass(2 * time.Second)
		f.machines[0].do(DrainBackend{Backend: "web-1", Drain: true})
		f.pass(3 * time.Second)
		f.expectOwners(map[string]int{"web-2": 256})
		if now := f.stored["web"].Map.Generation; now <= former || now > former+10 {
			t.Errorf("generation %d became %d, after %d", generation, now, former)
		}
	}
}

// Not by a machine either that has no map of its own yet.
func TestAMachineThatStartsFollowsNoJump(t *testing.T) {
	f := startFleet(t)
	jumped := *f.stored["web"].Map
	jumped.Generation = 1 << 40
	f.revision++
	f.stored["web"] = agreement.Stored{Map: &jumped, Revision: f.revision}
	again := &world{t: t, state: New(f.machines[2].now), now: f.machines[2].now, accepts: true}
	again.do(ConfigLoaded{Config: sharing(t, 3)})
	again.connect(nil)
	again.settle(true, "10.1.0.11", "10.1.0.12")
	f.machines[2] = again
	f.pass(3 * time.Second)
	f.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	if now := f.stored["web"].Map.Generation; now > 100 {
		t.Errorf("generation %d", now)
	}
}

func TestAMachineThatStartsHasNoMapBeforeEtcdDoes(t *testing.T) {
	f := startFleet(t)
	again := &world{t: t, state: New(f.machines[2].now), now: f.machines[2].now, accepts: true}
	again.do(ConfigLoaded{Config: sharing(t, 3)})
	again.connect(nil)
	again.settle(true, "10.1.0.11", "10.1.0.12")
	again.expectOwners(map[string]int{})
	again.expectRoutes()
	f.machines[2] = again
	f.pass(2 * time.Second)
	f.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
	again.expectRoutes(vip)
}

// One after the other has the config without a backend: none sends to it then, and
// what moves does not go on before all have it.
func TestABackendThatIsRemovedIsNamedByNoPlan(t *testing.T) {
	f := startFleet(t)
	without := func(shared string) string {
		return strings.Replace(shared, ", {name: web-2, address: 10.1.0.12}", "", 1)
	}
	for i, w := range f.machines {
		w.do(ConfigLoaded{Config: sharingWith(t, i+1, without)})
		w.pass(2 * coalesce)
		w.expectOwners(map[string]int{"web-1": 256})
		if len(w.bucketMap().Backends) != 1 {
			t.Errorf("%s names %v", f.name(w), w.bucketMap().Backends)
		}
		f.pass(time.Second)
	}
	f.expectOwners(map[string]int{"web-1": 256})
	// And back, the leader first: the others do not know the backend yet.
	f.machines[0].do(ConfigLoaded{Config: sharing(t, 1)})
	f.probe("10.1.0.12", true, 0)
	f.pass(time.Second)
	for _, w := range f.machines {
		w.expectOwners(map[string]int{"web-1": 256})
	}
	for i, w := range f.machines[1:] {
		w.do(ConfigLoaded{Config: sharing(t, i+2)})
	}
	f.probe("10.1.0.12", true, 0, 1, 2)
	f.pass(2 * time.Second)
	f.expectOwners(map[string]int{"web-1": 128, "web-2": 128})
}
