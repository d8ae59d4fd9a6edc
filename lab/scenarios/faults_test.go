package scenarios_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/traffic/load"
)

// Faults that must not hurt: each happens to a load balancer, the router, a backend
// or etcd while clients are served, and is judged by what clients saw, by how long it
// took until all was right again, and by whether an operator is told.
//
// The environment says which (`make faults`):
//
//	FAULTS         names with commas between, in this order, `a+b` for two at a time;
//	               `all`; or none: those marked short, without those of etcd. In an
//	               emulated machine: those that take one, alone and with each that goes
//	               with them
//	SEED           decides on the order (unless names are given) and on the machine
//	               that is hit; 0, the default: as listed, and lb-2
//	PAIRS          how many pairs happen besides, drawn by the seed
//	LAB_ROUTER     bird or frr; default both, where routes matter, if FAULTS has names
//	FAULTS_REPORT  a file for the table, as docs/faults.md is one

// fault that must not hurt.
type fault struct {
	name string
	// what happens, and what ends it, for people.
	what string
	// parts that it takes away or changes: two of one part do not happen at once.
	parts []string
	// routes: they may change, so it happens with each router. etcd: it needs one.
	routes, etcd bool
	// routesStay: no next hop goes away at the router.
	routesStay bool
	// short: part of `make test`.
	short bool
	// ownMachine: it changes what all processes of a kernel share, so that it happens in an
	// emulated machine only (`make vms SUITES=labs`).
	ownMachine bool
	limits
	// prepare the lab before the load begins; nil: nothing. Its t.Cleanup undoes it.
	prepare func(*stage)
	// begin it; cure ends it.
	begin func(*stage) (cure func())
	// told waits until an operator is told, and returns where and what; nil: it is
	// no fault to be told of.
	told func(*stage) string
}

// limits of what a fault may do. No request may fail and no connection break but
// what the stage forgives.
type limits struct {
	// pause of a message, told after the begin, right again after the cure.
	pause, telling, again time.Duration
}

// What faults have that give no limit of their own. A lost packet is sent again after
// 0.2 s, 0.4 s, 0.8 s ...; a starting controller probes, announces, and the router
// learns.
var usually = limits{pause: time.Second, telling: 15 * time.Second, again: 20 * time.Second}

// stage of one or two faults at once.
type stage struct {
	*testing.T
	running *hosts.Lab
	etcd    *etcds
	// victim is the load balancer that is hit, other the one that is not.
	victim, other string
	// second router, where a fault has prepared one.
	second *server
	// forgives a failure that is the fault's right; nil: none.
	forgives func(load.Failure) bool
	// logs' sizes at the beginning, so that only later lines are looked at.
	logs map[string]int64
}

// outcome of one or two faults at once.
type outcome struct {
	name, router                  string
	requests, failed              int
	connections, broken, forgiven int
	pause, told, again            time.Duration
	words                         []string
}

// stepWallClock of the machine; nil: this one is not emulated.
var stepWallClock func(step time.Duration) error

func TestFaults(t *testing.T) {
	needLab(t)
	chosen, err := chooseFaults(os.Getenv, stepWallClock != nil)
	if err != nil {
		t.Fatal(err)
	}
	if chosen.sets = canHappen(t, chosen.sets); len(chosen.sets) == 0 {
		return
	}
	only := os.Getenv("LAB_ROUTER")
	if only == "" && os.Getenv("FAULTS") == "" {
		only = "bird"
	}
	var outcomes []outcome
	for _, shape := range []struct {
		router string
		etcd   bool
	}{{"bird", false}, {"frr", false}, {"bird", true}} {
		if only != "" && only != shape.router || shape.etcd && os.Getenv("FAULTS") == "" && !nightly {
			continue
		}
		fits := slices.DeleteFunc(slices.Clone(chosen.sets), func(set []fault) bool { return !belongs(set, shape.router, shape.etcd) })
		if len(fits) == 0 {
			continue
		}
		name := shape.router
		if shape.etcd {
			name += "_and_etcd"
		}
		t.Run(name, func(t *testing.T) {
			happen(t, shape.router, shape.etcd, fits, chosen.random, func(o outcome) { outcomes = append(outcomes, o) })
		})
	}
	if len(outcomes) == 0 {
		t.Fatal("no fault happened")
	}
	t.Logf("\n%s", tableOf(outcomes))
	if file := os.Getenv("FAULTS_REPORT"); file != "" {
		writeReport(t, file, outcomes)
	}
}

// canHappen on this machine: the others are skipped by their names.
func canHappen(t *testing.T, sets [][]fault) (can [][]fault) {
	for _, set := range sets {
		if stepWallClock != nil || !slices.ContainsFunc(set, func(f fault) bool { return f.ownMachine }) {
			can = append(can, set)
			continue
		}
		t.Run(nameOf(set), func(t *testing.T) { t.Skip("needs an emulated machine: make vms SUITES=labs") })
	}
	return can
}

// nameOf a set of faults, as FAULTS has it.
func nameOf(set []fault) string {
	var names []string
	for _, f := range set {
		names = append(names, f.name)
	}
	return strings.Join(names, "+")
}

// belongs: which lab a set of faults happens in. With FRR only where routes matter.
func belongs(set []fault, router string, etcd bool) bool {
	any := func(is func(fault) bool) bool { return slices.ContainsFunc(set, is) }
	needsEtcd := any(func(f fault) bool { return f.etcd })
	return needsEtcd == etcd && (router == "bird" || any(func(f fault) bool { return f.routes }))
}

// choice of faults, and what their seed decides further.
type choice struct {
	// sets that happen one after the other, each of one or two faults.
	sets   [][]fault
	random *rand.Rand
}

func chooseFaults(get func(string) string, emulated bool) (choice, error) {
	seed, err := number(get, "SEED")
	if err != nil {
		return choice{}, err
	}
	pairs, err := number(get, "PAIRS")
	if err != nil {
		return choice{}, err
	}
	var c choice
	if seed != 0 {
		c.random = rand.New(rand.NewPCG(uint64(seed), 0))
	}
	names := strings.FieldsFunc(get("FAULTS"), func(r rune) bool { return r == ',' || r == ' ' })
	for _, name := range names {
		if name == "all" {
			continue
		}
		set, err := faultsNamed(name)
		if err != nil {
			return choice{}, err
		}
		c.sets = append(c.sets, set)
	}
	for _, f := range faults {
		if slices.Contains(names, "all") || len(names) == 0 && (!emulated && f.short || emulated && f.ownMachine) {
			c.sets = append(c.sets, []fault{f})
		}
	}
	if len(names) == 0 && emulated {
		c.sets = append(c.sets, pairsOfOwnMachine()...)
	}
	if c.random != nil && (len(names) == 0 || slices.Contains(names, "all")) {
		c.random.Shuffle(len(c.sets), func(i, j int) { c.sets[i], c.sets[j] = c.sets[j], c.sets[i] })
	}
	for range pairs {
		c.sets = append(c.sets, drawPair(c.random, emulated))
	}
	return c, nil
}

func number(get func(string) string, name string) (int, error) {
	text := get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s=%s: not a number from 0 on", name, text)
	}
	return n, nil
}

// faultsNamed `a`, or `a+b`.
func faultsNamed(names string) ([]fault, error) {
	var set []fault
	for name := range strings.SplitSeq(names, "+") {
		i := slices.IndexFunc(faults, func(f fault) bool { return f.name == name })
		if i < 0 {
			return nil, fmt.Errorf("fault %q is unknown: give some of %s", name, strings.Join(faultNames(), ", "))
		}
		set = append(set, faults[i])
	}
	if len(set) > 2 || len(set) == 2 && !goTogether(set[0], set[1]) {
		return nil, fmt.Errorf("faults %s do not happen at once: give two that take away different parts", names)
	}
	return set, nil
}

func faultNames() []string {
	var names []string
	for _, f := range faults {
		names = append(names, f.name)
	}
	return names
}

func goTogether(a, b fault) bool {
	return !slices.ContainsFunc(a.parts, func(part string) bool { return slices.Contains(b.parts, part) })
}

// pairsOfOwnMachine: each fault that takes a machine of its own, with each that does not.
func pairsOfOwnMachine() (pairs [][]fault) {
	for _, own := range faults {
		for _, other := range faults {
			if own.ownMachine && !other.ownMachine && goTogether(own, other) {
				pairs = append(pairs, []fault{own, other})
			}
		}
	}
	return pairs
}

func drawPair(random *rand.Rand, emulated bool) []fault {
	if random == nil {
		random = rand.New(rand.NewPCG(0, 0))
	}
	for {
		a, b := faults[random.IntN(len(faults))], faults[random.IntN(len(faults))]
		if a.name != b.name && goTogether(a, b) && (emulated || !a.ownMachine && !b.ownMachine) {
			return []fault{a, b}
		}
	}
}

// happen one set after the other in one lab.
func happen(t *testing.T, router string, etcd bool, sets [][]fault, random *rand.Rand, report func(outcome)) {
	o := optionsAlone(t, "faults-"+router)
	o.Router = router
	running := up(t, o)
	s := stage{running: running, victim: "lb-2", other: "lb-1"}
	if etcd {
		s.etcd = etcdWithSpare(t, running)
	}
	for i, set := range sets {
		name := nameOf(set)
		if random != nil && random.IntN(2) == 0 {
			s.victim, s.other = s.other, s.victim
		}
		whole := false
		t.Run(name, func(t *testing.T) {
			at := s
			at.T = t
			result := at.suffer(1+i%200, set)
			result.name, result.router = name, router
			report(result)
			whole = true
		})
		if !whole {
			t.FailNow() // the next would begin with what this has left
		}
	}
}

// suffer the faults under load, and judge what came of them.
func (s *stage) suffer(block int, set []fault) outcome {
	for _, f := range set {
		if f.prepare != nil {
			f.prepare(s)
		}
	}
	remote := loadForTakeOver(s.T, s.running, block, 100)
	s.Cleanup(func() { _ = remote.Abandon() }) // of one that was stopped: nothing to do
	time.Sleep(time.Second)
	s.rememberLogs()
	stopWatch := nothing
	if !slices.ContainsFunc(set, func(f fault) bool { return !f.routesStay }) {
		stop := keepEyeOnRoutes(s.T, s.running)
		stopWatch = func() { stop() }
	}
	var result outcome
	began := time.Now()
	var cures []func()
	for _, f := range set {
		cures = append(cures, f.begin(s))
	}
	for _, f := range set {
		if f.told != nil {
			result.words = append(result.words, f.told(s))
			result.told = time.Since(began)
		}
	}
	cured := time.Now()
	for _, cure := range slices.Backward(cures) {
		cure()
	}
	s.waitWhole()
	result.again = time.Since(cured)
	time.Sleep(2 * time.Second)
	stopWatch()
	report, err := remote.Stop()
	if err != nil {
		s.Fatal(err)
	}
	s.judge(set, &result, report)
	return result
}

// judge what clients saw, and how long it took.
func (s *stage) judge(set []fault, result *outcome, report load.Report) {
	result.requests, result.failed = report.Requests, report.Failed
	result.connections, result.broken, result.pause = report.Connections, report.Broken, report.LongestPause
	var unforgiven []load.Failure
	for _, failure := range report.Failures {
		if s.forgives == nil || !s.forgives(failure) {
			unforgiven = append(unforgiven, failure)
		}
	}
	result.forgiven = len(report.Failures) - len(unforgiven)
	if len(unforgiven) > 0 || report.Failed+report.Broken != len(report.Failures) || report.Messages == 0 || report.Requests == 0 {
		s.Errorf("%d of %d connections broken, %d of %d requests failed, %d messages, of which not forgiven: %+v",
			report.Broken, report.Connections, report.Failed, report.Requests, report.Messages, unforgiven)
	}
	may := limitsOf(set)
	for what, time := range map[string][2]time.Duration{
		"the longest pause of a message was": {result.pause, may.pause},
		"an operator was told after":         {result.told, may.telling},
		"all was right again after":          {result.again, may.again},
	} {
		if time[0] > time[1] {
			s.Errorf("%s %v, more than %v", what, time[0].Round(1e6), time[1])
		}
	}
	s.Logf("%d requests, %d failed; %d connections, %d broken (%d failures forgiven); longest pause %v; told after %v, right again after %v\n%s",
		result.requests, result.failed, result.connections, result.broken, result.forgiven, result.pause.Round(1e6), result.told.Round(1e6), result.again.Round(1e6), strings.Join(result.words, "\n"))
}

// limitsOf faults at once: the sum of theirs.
func limitsOf(set []fault) limits {
	var sum limits
	for _, f := range set {
		own := f.limitsOr(usually)
		sum.pause, sum.telling, sum.again = sum.pause+own.pause, sum.telling+own.telling, sum.again+own.again
	}
	return sum
}

func (l limits) limitsOr(other limits) limits {
	if l.pause == 0 {
		l.pause = other.pause
	}
	if l.telling == 0 {
		l.telling = other.telling
	}
	if l.again == 0 {
		l.again = other.again
	}
	return l
}

// waitWhole until all plans and routes are as before, each peer is up, and doctor
// finds no failure on any machine.
func (s *stage) waitWhole() {
	s.Helper()
	if err := s.running.WaitReady(s.Context(), time.Minute); err != nil {
		s.Fatal(err)
	}
	waitPeers(s.T, s.running)
	if s.etcd != nil {
		s.etcd.untilRun(s.T)
	}
	s.untilNoFailure()
}

// untilNoFailure is found by doctor, on any machine.
func (s *stage) untilNoFailure() {
	s.Helper()
	for _, machine := range s.running.LoadBalancers() {
		eventually(s.T, time.Minute, "doctor on "+machine+" finds no failure", func() error {
			findings, err := s.doctor(machine)
			if failed := slices.IndexFunc(findings, func(f shownFinding) bool { return f.Grade == "fail" }); err == nil && failed >= 0 {
				err = fmt.Errorf("it finds %+v", findings[failed])
			}
			return err
		})
	}
}

// must stops the fault at an error.
func (s *stage) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// logged are the files of the load balancers' logs.
func (s *stage) logged() []string {
	var files []string
	for _, machine := range s.running.LoadBalancers() {
		found, _ := filepath.Glob(filepath.Join(s.running.Options().RunDir, machine, "*.log")) // the pattern is good
		files = append(files, found...)
	}
	return files
}

func (s *stage) rememberLogs() {
	s.logs = map[string]int64{}
	for _, file := range s.logged() {
		if info, err := os.Stat(file); err == nil {
			s.logs[file] = info.Size()
		}
	}
}

// logSays waits for a line of a process's log that was written since the beginning.
func (s *stage) logSays(machine, process, pattern string) string {
	s.Helper()
	wanted := regexp.MustCompile(pattern)
	file := filepath.Join(s.running.Options().RunDir, machine, process+".log")
	var found string
	eventually(s.T, time.Minute, fmt.Sprintf("the log of %s/%s has %q", machine, process, pattern), func() error {
		content, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(content[s.logs[file]:])) {
			if wanted.MatchString(line) {
				_, found, _ = strings.Cut(strings.TrimSpace(line), " ") // without its time
				found = rustModule.ReplaceAllString(strings.TrimSpace(found), "")
				return nil
			}
		}
		return errNotYet
	})
	return fmt.Sprintf("the log of the %s: \"%s\"", process, found)
}

// rustModule that wrote a line.
var rustModule = regexp.MustCompile(`guideway_forwarder[a-z_:]* `)

// doctorSays waits for a warning or failure of doctor on a machine.
func (s *stage) doctorSays(machine, pattern string) string {
	s.Helper()
	wanted := regexp.MustCompile(pattern)
	where := "`doctor`"
	if machine == s.other {
		where = "`doctor` on another machine"
	}
	var found string
	eventually(s.T, time.Minute, fmt.Sprintf("doctor on %s has %q", machine, pattern), func() error {
		findings, err := s.doctor(machine)
		if err != nil {
			return err
		}
		for _, f := range findings {
			if f.Grade != "ok" && wanted.MatchString(f.What+": "+f.Text) {
				found = fmt.Sprintf("%s %s: %s", f.Grade, f.What, f.Text)
				return nil
			}
		}
		return fmt.Errorf("it finds %+v", findings)
	})
	return fmt.Sprintf("%s: \"%s\"", where, s.asInstalled(found))
}

// asInstalled has paths as packages have them, instead of the lab's.
func (s *stage) asInstalled(text string) string {
	for _, machine := range s.running.LoadBalancers() {
		directory := filepath.Join(s.running.Options().RunDir, machine)
		text = strings.NewReplacer(directory+"/run/", "/run/guideway/", directory+"/run", "/run/guideway",
			directory+"/state-", "/var/lib/guideway-", directory+"/state/", "/var/lib/guideway/").Replace(text)
	}
	return text
}

type shownFinding struct{ Grade, What, Text string }

func (s *stage) doctor(machine string) ([]shownFinding, error) {
	out, err := on(s.T, s.running, machine, "doctor", "-o", "json")
	var findings []shownFinding
	if broken := json.Unmarshal([]byte(out), &findings); broken != nil {
		return nil, errors.Join(err, broken) // it ends with 1 where something fails
	}
	return findings, nil
}

// silence a load balancer: what it sends does not come to the router, nor what is
// sent to it from there, but links are up.
func (s *stage) silence(machine string) (lift func()) {
	s.Helper()
	n, err := s.running.Network.LoadBalancer(machine)
	s.must(err)
	return s.filter(fmt.Sprintf(`chain from { type filter hook prerouting priority -300; iifname %q drop; }
chain to { type filter hook postrouting priority 300; oifname %[1]q drop; }`, n.Port))
}

// filter on the router until it is lifted.
func (s *stage) filter(chains string) (lift func()) {
	s.Helper()
	s.must(s.running.Network.FilterRouter(s.Context(), chains))
	lift = func() { s.must(s.running.Network.FilterRouter(cleanUp(s.T), "")) }
	s.Cleanup(func() { _ = s.running.Network.FilterRouter(cleanUp(s.T), "") })
	return lift
}

// TestFaultsAreChosenByNameAndSeed needs no lab.
func TestFaultsAreChosenByNameAndSeed(t *testing.T) {
	chooseIn := func(emulated bool, environment map[string]string) ([]string, error) {
		c, err := chooseFaults(func(name string) string { return environment[name] }, emulated)
		var names []string
		for _, set := range c.sets {
			names = append(names, nameOf(set))
		}
		return names, err
	}
	choose := func(environment map[string]string) ([]string, error) { return chooseIn(false, environment) }
	all, err := choose(map[string]string{"FAULTS": "all"})
	if err != nil || !slices.Equal(all, faultNames()) {
		t.Errorf("all are %v, %v", all, err)
	}
	shuffled, _ := choose(map[string]string{"FAULTS": "all", "SEED": "7"})
	again, _ := choose(map[string]string{"FAULTS": "all", "SEED": "7"})
	if slices.Equal(all, shuffled) || !slices.Equal(shuffled, again) {
		t.Errorf("seed 7 gives %v, then %v", shuffled, again)
	}
	short, _ := choose(nil)
	if len(short) == 0 || len(short) >= len(all) || slices.ContainsFunc(short, ownMachine) {
		t.Errorf("short are %v", short)
	}
	for seed := range 100 {
		drawn, err := choose(map[string]string{"FAULTS": "reboot", "PAIRS": "5", "SEED": strconv.Itoa(seed)})
		if err != nil || slices.ContainsFunc(drawn, ownMachine) {
			t.Errorf("seed %d draws %v, %v", seed, drawn, err)
		}
	}
	want := []string{"clock_an_hour_ahead", "clock_an_hour_back", "clock_an_hour_ahead+router_restarted", "clock_an_hour_back+router_restarted"}
	if own, err := chooseIn(true, nil); err != nil || !slices.Equal(own, want) {
		t.Errorf("in an emulated machine: %v, %v", own, err)
	}
	if pairs, err := choose(map[string]string{"FAULTS": "controller_killed+router_restarted, reboot", "PAIRS": "3", "SEED": "2"}); err != nil || len(pairs) != 5 || pairs[0] != "controller_killed+router_restarted" || strings.Count(pairs[4], "+") != 1 {
		t.Errorf("pairs are %v, %v", pairs, err)
	}
	const apart = "do not happen at once"
	for names, want := range map[string]string{"nap": `fault "nap" is unknown: give some of controller_killed, `, "controller_killed+controller_hung": apart,
		"speaker_hung+clock_an_hour_ahead": apart, "clock_an_hour_back+forwarder_hung": apart} {
		if _, err := choose(map[string]string{"FAULTS": names}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", names, err)
		}
	}
	if _, err := choose(map[string]string{"SEED": "x"}); err == nil || !strings.Contains(err.Error(), "SEED=x: not a number") {
		t.Errorf("error %v", err)
	}
}

// ownMachine: a set by this name happens only in one.
func ownMachine(names string) bool {
	set, err := faultsNamed(names)
	return err != nil || slices.ContainsFunc(set, func(f fault) bool { return f.ownMachine })
}

func TestFaultsHaveEachANameOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range faults {
		if seen[f.name] || f.what == "" || len(f.parts) == 0 || f.begin == nil {
			t.Errorf("fault %q is there twice, or lacks something", f.name)
		}
		seen[f.name] = true
	}
}
