package scenarios_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/load"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// The router notices a silence by BFD after a second; what was lost meanwhile is
// sent again with growing pauses.
var untilBFD = limits{pause: 5 * time.Second}

// What faults take away; `machine` is all of a load balancer's processes and its link.
var (
	controller = []string{"controller"}
	speaker    = []string{"speaker"}
	forwarder  = []string{"forwarder"}
	machine    = []string{"controller", "speaker", "forwarder", "sessions", "link"}
	silent     = append([]string{"filter"}, machine...)
	sessions   = []string{"sessions"}
	config     = []string{"config", "controller"}
	etcd       = []string{"etcd", "config", "controller"}
	noEtcd     = append([]string{"link", "filter"}, etcd...)
	// No alarm is raised meanwhile, so that whatever raises one does not happen at once.
	clock = append([]string{"clock", "forwarder", "speaker"}, config...)
)

// faults in the order of docs/faults.md.
var faults = []fault{
	{
		name: "controller_killed", parts: controller, routes: true, routesStay: true,
		what:  "SIGKILL to one machine's controller; it is started again when it has been missed.",
		begin: killed("controller"), told: victimSays(`^controller: .* answer`),
	},
	{
		name: "controller_hung", parts: controller, routes: true, routesStay: true, short: true,
		what:  "SIGSTOP to one machine's controller, and SIGCONT when it has been missed.",
		begin: hung("controller"), told: victimSays(`^controller: .* answer`),
	},
	{
		name: "controller_restarted", parts: controller, routes: true, routesStay: true,
		what:  "One machine's controller ends by SIGTERM and is started again at once, as a restart and an upgrade do. Told is only the log.",
		begin: func(s *stage) func() { s.must(s.running.RestartController(s.victim)); return nothing },
	},
	{
		name: "speaker_killed", parts: speaker, routes: true,
		what:  "SIGKILL to one machine's speaker: its sessions close, and the router sends everything to the other machine.",
		begin: killed("speaker"), told: victimSays(`^speaker: the speaker does not answer`),
	},
	{
		name: "speaker_hung", parts: speaker, routes: true, short: true, limits: limits{pause: untilBFD.pause, telling: 25 * time.Second}, prepare: waitBFD,
		what:  "SIGSTOP to one machine's speaker: BFD ends its sessions. The forwarder serves what still arrives.",
		begin: hung("speaker"), told: victimSays(`^speaker: .* answer`),
	},
	{
		name: "forwarder_killed", parts: forwarder, routes: true,
		what:   "SIGKILL to one machine's forwarder: its speaker withdraws the routes.",
		limits: limits{pause: 3 * time.Second},
		begin:  killed("forwarder"), told: victimSays(`^forwarder: .* answer`),
	},
	{
		name: "forwarder_hung", parts: forwarder, routes: true, short: true,
		what:   "SIGSTOP to one machine's forwarder: its speaker withdraws the routes.",
		limits: limits{pause: 3 * time.Second},
		begin:  hung("forwarder"), told: victimSays(`^forwarder: .* answer`),
	},
	{
		name: "forwarder_upgraded", parts: forwarder, routes: true,
		what: "A new process takes over from one machine's forwarder, with its sockets and connection tables.",
		begin: func(s *stage) func() {
			_, err := s.running.TakeOverForwarder(s.Context(), s.victim)
			s.must(err)
			return nothing
		},
		told: func(s *stage) string { return s.logSays(s.victim, "forwarder", `taken over|took over|take-over`) },
	},
	{
		name: "machine_killed", parts: machine, routes: true,
		what:   "SIGKILL to all processes of one machine at once.",
		limits: limits{pause: 3 * time.Second},
		begin: func(s *stage) func() {
			_, err := s.running.KillLoadBalancer(s.victim)
			s.must(err)
			return func() { s.must(s.running.RestoreLoadBalancer(s.victim)) }
		},
		told: otherSays(`^peer: VICTIM`),
	},
	{
		name: "power_lost", parts: machine, routes: true,
		what:   "One machine's link goes down at the router, and all its processes are killed: no FIN of theirs arrives.",
		limits: limits{pause: 3 * time.Second},
		begin: func(s *stage) func() {
			n, err := s.running.Network.LoadBalancer(s.victim)
			s.must(err)
			s.must(s.running.Network.SetLink(s.Context(), n, "down"))
			_, err = s.running.KillLoadBalancer(s.victim)
			s.must(err)
			return func() {
				s.must(s.running.Network.SetLink(s.Context(), n, "up"))
				s.must(s.running.RestoreLoadBalancer(s.victim))
			}
		},
		told: otherSays(`^peer: VICTIM`),
	},
	{
		name: "power_lost_behind_a_switch", parts: silent, routes: true, short: true,
		what:   "The same, but the router's link stays up: only BFD finds it.",
		limits: untilBFD, prepare: waitBFD,
		begin: func(s *stage) func() {
			lift := s.silence(s.victim)
			_, err := s.running.KillLoadBalancer(s.victim)
			s.must(err)
			return func() { lift(); s.must(s.running.RestoreLoadBalancer(s.victim)) }
		},
		told: otherSays(`^peer: VICTIM`),
	},
	{
		name: "reboot", parts: machine, routes: true, short: true,
		what:   "One machine's processes end by SIGTERM, the controller first and the forwarder last, as their units order them; its run directory is emptied, and all start again.",
		limits: limits{pause: 3 * time.Second},
		begin:  func(s *stage) func() { s.must(s.running.RebootLoadBalancer(s.victim)); return nothing },
		told:   func(s *stage) string { return s.logSays(s.victim, "speaker", "GRACEFUL_SHUTDOWN|withdr") },
	},
	{
		name: "own_uplink_bad", parts: silent, routes: true, short: true,
		what:   "Nothing that one machine sends comes to the router, nor the other way, while its link is up: all its checks of backends fail at once. Its pools keep their backends, and its routes go.",
		limits: limits{pause: untilBFD.pause, telling: 20 * time.Second}, prepare: waitBFD,
		begin: func(s *stage) func() { return s.silence(s.victim) },
		told: func(s *stage) string {
			words := s.doctorSays(s.victim, "^machine: is cut off")
			if err := s.poolsAreFull(s.victim); err != nil {
				s.Error(err)
			}
			return words
		},
	},
	{
		name: "session_reset", parts: append([]string{"speaker"}, sessions...), routes: true,
		what:  "An operator of the router resets its BGP session with one machine.",
		begin: func(s *stage) func() { s.must(s.running.ResetSession(s.Context(), s.victim)); return nothing },
		told:  func(s *stage) string { return s.logSays(s.victim, "speaker", `msg="session idle"`) },
	},
	{
		name: "router_restarted", parts: sessions, routes: true,
		what: "What speaks BGP on the only router ends by SIGTERM, with it all routes, and is started again. Clients wait for the sessions.",
		// A second at least until we try to connect again, and TCP's pauses.
		limits: limits{pause: 15 * time.Second},
		begin:  func(s *stage) func() { s.must(s.running.RestartRouter()); return nothing },
		told:   func(s *stage) string { return s.logSays(s.other, "speaker", `msg="session idle"`) },
	},
	{
		name: "one_of_two_routers_silent", parts: append([]string{"sessions", "speaker"}, config...), routesStay: true,
		what:    "Both machines announce to a second router, two hops away, whose BGP process then hangs: the sessions with it end by their hold time, and the other router's routes stay.",
		limits:  limits{telling: 30 * time.Second},
		prepare: secondRouter, begin: secondRouterSilent,
		told: victimSays(`^bgp: the session with 10\.40\.50\.1 `),
	},
	{
		name: "backend_flapping", parts: append([]string{"backend", "filter"}, config...),
		what:    "One backend's checks fail for three seconds and pass for three, ten times a minute, with `damping`: the connections that it serves when it is found down break, and no others. At the third time it is held down until its checks have passed for ten seconds.",
		limits:  limits{telling: 40 * time.Second, again: 40 * time.Second},
		prepare: damping, begin: backendFlapping, told: heldByDamping,
	},
	{
		name: "disk_full", parts: append([]string{"disk"}, config...), short: true,
		what:    "The state directories of one machine's three processes have no room, and the config changes: a backend comes and goes again.",
		limits:  limits{again: 30 * time.Second},
		prepare: smallDisks, begin: diskFull,
		told: func(s *stage) string {
			return s.doctorSays(s.victim, "^config: serves but could not be kept") + "\n\n" + s.doctorSays(s.victim, "^plan: is served but not on disk")
		},
	},
	{
		name: "clock_an_hour_ahead", parts: clock, ownMachine: true, routesStay: true,
		what:    "The wall clock of all machines is an hour ahead for some seconds, in which a backend comes, and jumps back. No alarm is raised, and no route goes, although `controller_absent_max` is 10 s.",
		prepare: absentMax,
		begin:   func(s *stage) func() { return clockStepped(s, time.Hour) },
	},
	{
		name: "clock_an_hour_back", parts: clock, ownMachine: true, routesStay: true,
		what:    "The same, an hour back.",
		prepare: absentMax,
		begin:   func(s *stage) func() { return clockStepped(s, -time.Hour) },
	},
	{
		name: "config_storm", parts: config,
		what: "100 configs in less than a minute on both machines, each with other weights, and each in use before the next. No alarm is raised.",
		begin: func(s *stage) func() {
			weights, began := s.running.Weights(), time.Now()
			for i := range 100 {
				weights[s.running.Backends()[0]] = uint32(1 + (i+1)%2)
				s.must(s.running.SetWeights(s.Context(), weights))
			}
			if took := time.Since(began); took > time.Minute {
				s.Errorf("100 configs took %v", took)
			}
			s.noAlarm(s.victim)
			return nothing
		},
	},
	{
		name: "etcd_killed", parts: etcd, etcd: true, short: true,
		what: "SIGKILL to all three members of etcd. A config that is applied meanwhile is refused.",
		// Each machine dials again with growing pauses.
		limits: limits{telling: 30 * time.Second, again: 60 * time.Second},
		begin: func(s *stage) func() {
			s.etcd.kill(s.T)
			return func() { s.etcd.start(s.T, "existing"); s.etcd.untilAnswers(s.T) }
		},
		told: func(s *stage) string {
			words := s.doctorSays(s.victim, "^etcd: etcd does not answer")
			if out, err := on(s.T, s.running, s.other, "config", "apply", s.etcd.write(s.T, s.etcd.withSpare(s.T))); err == nil || !strings.Contains(err.Error(), "etcd does not answer") {
				s.Errorf("apply: %v\n%s", err, out)
			}
			return words
		},
	},
	{
		name: "etcd_partitioned", parts: noEtcd, etcd: true,
		what:   "One machine does not reach etcd any more, while a config is applied on the other one, which serves by it at once. The first follows when it reaches etcd again.",
		limits: limits{telling: 30 * time.Second, again: 60 * time.Second},
		begin: func(s *stage) func() {
			lift := s.cutFromEtcd()
			s.etcd.apply(s.T, s.other, s.etcd.withSpare(s.T))
			return func() { lift(); s.etcd.untilRun(s.T); s.etcd.apply(s.T, s.victim, s.etcd.shared) }
		},
		told: victimSays("^etcd: etcd does not answer"),
	},
	{
		name: "watch_behind_a_compaction", parts: noEtcd, etcd: true, short: true,
		what:   "The same, with three configs applied, and etcd forgets all but the last before the first machine reaches it again.",
		limits: limits{telling: 30 * time.Second, again: 60 * time.Second},
		begin:  compactedBehindAWatch,
		told:   victimSays("^etcd: etcd does not answer"),
	},
	{
		name: "etcd_restored_from_an_old_snapshot", parts: etcd, etcd: true, short: true,
		what:   "etcd's members are killed and come back with a snapshot two configs older. Both machines go on with the newer one, until a config is applied anew.",
		limits: limits{telling: 60 * time.Second, again: 30 * time.Second},
		begin: func(s *stage) func() {
			s.etcd.restoreOldSnapshot(s.T)
			return func() { s.etcd.apply(s.T, s.other, s.etcd.shared) }
		},
		told: victimSays("^config: the newest is refused.* etcd holds config"),
	},
	{
		name: "etcd_full", parts: etcd, etcd: true, short: true,
		what:   "etcd has no room left (alarm NOSPACE): nothing can be applied until it is compacted, defragmented and disarmed.",
		limits: limits{telling: 60 * time.Second, again: 30 * time.Second},
		begin:  func(s *stage) func() { s.etcd.fill(s.T); return func() { s.etcd.makeRoom(s.T) } },
		told: func(s *stage) string {
			words := s.doctorSays(s.victim, `^etcd: has alarms \(.*NOSPACE`)
			out, err := on(s.T, s.running, s.other, "config", "apply", s.etcd.write(s.T, s.etcd.withSpare(s.T)))
			if err == nil || !strings.Contains(err.Error(), "space") {
				s.Errorf("apply: %v\n%s", err, out)
			}
			return words
		},
	},
	{
		name: "expired_certificate", parts: etcd, etcd: true,
		what:   "etcd's members come back with a certificate that has expired, and then with one that has not.",
		limits: limits{telling: 60 * time.Second, again: 60 * time.Second},
		begin: func(s *stage) func() {
			s.etcd.certify(s.T, -time.Hour)
			s.etcd.kill(s.T)
			s.etcd.startMembers(s.T, "existing")
			return func() {
				s.etcd.certify(s.T, time.Hour)
				s.etcd.kill(s.T)
				s.etcd.start(s.T, "existing")
				s.etcd.untilAnswers(s.T)
			}
		},
		told: victimSays("^etcd: .*expired"),
	},
	{
		name: "two_operators_at_once", parts: etcd, etcd: true,
		what:   "Two operators apply different configs at the same moment, one on each machine: one of them is refused, and both machines run the other's.",
		limits: limits{telling: 60 * time.Second},
		begin:  func(*stage) func() { return nothing },
		told:   twoOperators,
	},
}

func nothing() {}

func killed(process string) func(*stage) func() {
	return func(s *stage) func() {
		s.must(s.running.Kill(s.victim, process))
		return func() { s.must(s.start(process)) }
	}
}

func (s *stage) start(process string) error {
	switch process {
	case "controller":
		return s.running.StartController(s.victim)
	case "speaker":
		return s.running.StartSpeaker(s.victim)
	}
	return s.running.StartForwarder(s.victim)
}

func hung(process string) func(*stage) func() {
	return func(s *stage) func() {
		resume, err := s.running.Hang(s.victim, process)
		s.must(err)
		return func() { s.must(resume()) }
	}
}

func waitBFD(s *stage) { s.must(s.running.WaitBFD(s.Context(), 10*time.Second)) }

func victimSays(pattern string) func(*stage) string {
	return func(s *stage) string { return s.doctorSays(s.victim, pattern) }
}

// otherSays something of the VICTIM.
func otherSays(pattern string) func(*stage) string {
	return func(s *stage) string {
		return s.doctorSays(s.other, strings.Replace(pattern, "VICTIM", regexp.QuoteMeta(s.victim), 1))
	}
}

// poolsAreFull: each backend takes connections by the machine's plan.
func (s *stage) poolsAreFull(machine string) error {
	plan, err := s.running.Plan(s.Context(), machine)
	if err != nil {
		return err
	}
	for _, service := range plan.GetServices() {
		for _, member := range plan.Members()[service.GetGroup()] {
			if member.GetState() != planv1.BackendState_BACKEND_STATE_ACTIVE {
				err = errors.Join(err, fmt.Errorf("%s of %s is %v", member.GetBackend(), service.GetName(), member.GetState()))
			}
		}
	}
	return err
}

// noAlarm: doctor finds nothing that fails.
func (s *stage) noAlarm(machine string) {
	findings, err := s.doctor(machine)
	s.must(err)
	for _, f := range findings {
		if f.Grade == "fail" {
			s.Errorf("doctor on %s: %+v", machine, f)
		}
	}
}

// absentMax: routes go when the controller is absent. Until the next config of the lab's.
func absentMax(s *stage) {
	for _, machine := range s.running.LoadBalancers() {
		s.edit(machine, func(text string) string { return text + "speaker: {controller_absent_max: 10s}\n" })
	}
	s.waitWhole()
}

// clockStepped for all processes of the lab and its programs: they have one wall clock. Monotonic
// clocks stay as they are. It goes in many steps, so that some come between what a process keeps
// and what it compares with that.
func clockStepped(s *stage, step time.Duration) func() {
	const steps = 20
	inSteps := func(step time.Duration) (err error) {
		for range steps {
			err = errors.Join(err, stepWallClock(step/steps))
			time.Sleep(53 * time.Millisecond)
		}
		return err
	}
	back := sync.OnceValue(func() error { return inSteps(-step) })
	s.Cleanup(func() { _ = back() }) // where the fault did not come to its cure
	s.must(inSteps(step))
	time.Sleep(2 * time.Second)
	remove := s.withSpare()
	eventually(s.T, 20*time.Second, "the spare is in the plan", func() error { return s.poolsAreFull(s.victim) })
	// Requests to the spare that end within a tenth of a second confirm no connection: doctor
	// takes the first of them for unanswered, until one takes longer.
	s.untilNoFailure()
	return func() { s.must(back()); remove() }
}

// withSpare puts the spare backend into the pools, and back takes it out.
func (s *stage) withSpare() (back func()) {
	before := s.running.Weights()
	weights := s.running.Weights()
	weights[s.running.Backends()[2]] = 1
	s.must(s.running.SetWeights(s.Context(), weights))
	return func() {
		// Drained before it is removed, so that requests to it end well. What the fault
		// holds up longer is forgiven.
		s.forgives = s.served(s.running.Backends()[2], s.forgives)
		weights[s.running.Backends()[2]] = 0
		s.must(s.running.SetWeights(s.Context(), weights))
		time.Sleep(time.Second)
		s.must(s.running.SetWeights(s.Context(), before))
	}
}

// served forgives failures of what a backend serves.
func (s *stage) served(backend string, also func(load.Failure) bool) func(load.Failure) bool {
	return func(f load.Failure) bool { return f.Backend == backend || also != nil && also(f) }
}

// asFound forgives failures of connections whose SYN a backend had, and which was
// found down before it had answered a request: the rest went elsewhere. Asked when all
// is right again, so that the hash says where the SYN went.
func (s *stage) asFound(backend string) func(load.Failure) bool {
	return func(f load.Failure) bool {
		return f.Backend == "" && explainFlow(s.T, s.running, s.other, f.Flow.Source, f.Flow.Destination).BackendByHash == backend
	}
}

// smallDisks for the victim, until the fault's end.
func smallDisks(s *stage) {
	end, err := s.running.SmallDisks(s.victim)
	s.must(err)
	s.Cleanup(func() {
		end()
		if err := s.running.RebootLoadBalancer(s.victim); err != nil {
			s.Error(err)
		}
		if err := s.running.WaitReady(cleanUp(s.T), time.Minute); err != nil {
			s.Error(err)
		}
	})
	s.waitWhole()
}

func diskFull(s *stage) func() {
	makeRoom, err := s.running.FillDisks(s.Context(), s.victim)
	s.must(err)
	back := s.withSpare()
	return func() {
		s.must(makeRoom())
		back()
		eventually(s.T, 20*time.Second, "config and plan are on disk", func() error {
			findings, err := s.doctor(s.victim)
			if err != nil {
				return err
			}
			for _, f := range findings {
				if strings.Contains(f.Text, "on disk") || strings.Contains(f.Text, "could not be kept") {
					return fmt.Errorf("it finds %+v", f)
				}
			}
			return nil
		})
	}
}

// damping for all pools, until the fault's end.
func damping(s *stage) {
	for _, machine := range s.running.LoadBalancers() {
		s.edit(machine, func(text string) string {
			return strings.ReplaceAll(text, "\n  health_checks: [", "\n  damping: {flaps: 3, within: 1m, hold: 10s}\n  health_checks: [")
		})
	}
}

// backendFlapping as its checks see it: the servers are well.
func backendFlapping(s *stage) func() {
	backend := s.running.Network.Backends[0]
	s.forgives = s.served(backend.Name, s.asFound(backend.Name))
	var failing strings.Builder
	failing.WriteString("chain forward { type filter hook forward priority 0;\n")
	for family, keyword := range []string{"ip", "ip6"} {
		fmt.Fprintf(&failing, "%[1]s saddr %[2]s %[1]s daddr %[3]s tcp dport { %[4]d, %[5]d } drop;\n", keyword, topology.MachinePrefixes[family], backend.Address(family), topology.HTTPPort, topology.EchoPort)
	}
	failing.WriteString("}")
	for range 5 {
		lift := s.filter(failing.String())
		time.Sleep(3 * time.Second)
		lift()
		time.Sleep(3 * time.Second)
	}
	return nothing
}

// heldByDamping is what is shown of the backend that flaps.
func heldByDamping(s *stage) string {
	words := ""
	eventually(s.T, 20*time.Second, "it is held", func() error {
		out, err := on(s.T, s.running, s.victim, "show", "backends", s.running.Backends()[0])
		if err != nil {
			return err
		}
		if line := regexp.MustCompile(`held by damping[^;\n]*`).FindString(out); line != "" {
			words = "`show backends`: \"" + strings.TrimSpace(line) + "\""
			return nil
		}
		return fmt.Errorf("it shows %s", out)
	})
	return words
}

// edit a machine's config and reload; what was there comes back at the fault's end.
func (s *stage) edit(machine string, change func(text string) string) {
	file := filepath.Join(s.running.Options().RunDir, machine, "config.yaml")
	before, err := os.ReadFile(file)
	s.must(err)
	editConfig(s.T, s.running, machine, change)
	s.Cleanup(func() {
		if err := os.WriteFile(file, before, 0o644); err != nil {
			s.Error(err)
		}
		if err := s.running.ReloadController(machine); err != nil {
			s.Error(err)
		}
	})
}

// secondRouter: BIRD on a host of its own, which takes our routes and has no use for
// them, until the fault's end.
func secondRouter(s *stage) {
	const number = 50
	host, err := s.running.Network.AddHost(s.Context(), number)
	s.must(err)
	second := &server{host: host, dir: filepath.Join(s.running.Options().RunDir, host.Node.Name)}
	s.must(os.MkdirAll(second.dir, 0o755))
	s.Cleanup(func() {
		second.stopAll()
		if err := host.Remove(cleanUp(s.T)); err != nil {
			s.Error(err)
		}
	})
	address := host.Addresses()[0]
	config := fmt.Sprintf("router id %s;\nprotocol device {}\n", address)
	for i, n := range s.running.Network.LoadBalancers {
		config += fmt.Sprintf("protocol bgp m%d { local %s as %d; neighbor %s as %d; multihop 3; passive yes; hold time 9; error wait time 1, 1; ipv4 { import all; export none; }; ipv6 { import all; export none; }; }\n",
			i, address, topology.ASNRouter, n.Address(0), topology.ASNMachines)
	}
	s.must(os.WriteFile(second.path("bird.conf"), []byte(config), 0o644))
	s.must(second.start("bird", "bird", "-f", "-c", second.path("bird.conf"), "-s", second.path("bird.ctl"), "-P", second.path("bird.pid")))
	for _, machine := range s.running.LoadBalancers() {
		s.edit(machine, func(text string) string {
			return replaceOnce(s.T, text, "neighbors: [{", fmt.Sprintf("neighbors: [{address: %s, asn: %d, multihop: 3, hold_time: 9s}, {", address, topology.ASNRouter))
		})
	}
	s.second = second
	s.secondEstablished()
}

// secondEstablished waits for the sessions with the second router.
func (s *stage) secondEstablished() {
	s.Helper()
	sample := fmt.Sprintf("guideway_speaker_session_up{neighbor=%q}", s.second.host.Addresses()[0])
	for _, machine := range s.running.LoadBalancers() {
		eventually(s.T, 30*time.Second, machine+" has a session with the second router", func() error {
			samples, err := s.running.SpeakerMetrics(s.Context(), machine)
			if err == nil && samples[sample] != 1 {
				err = errNotYet
			}
			return err
		})
	}
}

func secondRouterSilent(s *stage) func() {
	s.must(s.second.signal("bird", stopSignal))
	return func() {
		s.must(s.second.signal("bird", continueSignal))
		s.secondEstablished()
	}
}

// cutFromEtcd: the victim reaches no host of etcd's.
func (s *stage) cutFromEtcd() (lift func()) {
	n, err := s.running.Network.LoadBalancer(s.victim)
	s.must(err)
	return s.filter(fmt.Sprintf("chain forward { type filter hook forward priority 0; ip saddr %s ip daddr 10.40.0.0/16 drop; }", n.Address(0)))
}

func compactedBehindAWatch(s *stage) func() {
	e := s.etcd
	lift := s.cutFromEtcd()
	before := e.generation
	e.apply(s.T, s.other, e.withSpare(s.T))
	e.apply(s.T, s.other, e.shared)
	e.apply(s.T, s.other, e.withSpare(s.T))
	e.compact(s.T)
	if shown, err := e.show(s.T, s.victim); err != nil || int(shown.Etcd.GetConfig()) != before {
		s.Errorf("cut off, %s shows %+v, %v", s.victim, shown, err)
	}
	return func() {
		lift()
		e.untilRun(s.T)
		e.apply(s.T, s.victim, e.shared)
	}
}

// twoOperators until one of them was too late: seldom they are not at the same moment.
func twoOperators(s *stage) string {
	e := s.etcd
	files := map[string]string{}
	for i, machine := range s.running.LoadBalancers() {
		files[machine] = e.file(machine + ".yaml")
		s.must(os.WriteFile(files[machine], fmt.Appendf(nil, "%s# operator %d\n", e.shared, i), 0o644))
	}
	for range 10 {
		type result struct{ out, problem string }
		results := make(chan result)
		for machine, file := range files {
			go func() {
				out, err := on(s.T, s.running, machine, "config", "apply", file)
				r := result{out: out}
				if err != nil {
					r.problem = err.Error()
				}
				results <- r
			}()
		}
		refused := ""
		for range files {
			if r := <-results; r.problem != "" {
				refused = r.problem
			} else {
				e.generation = e.applied(s.T, r.out)
			}
		}
		e.untilRun(s.T)
		if refused != "" {
			_, refused, _ = strings.Cut(refused, " guideway: ")
			return "`config apply`: \"" + s.asInstalled(refused) + "\""
		}
	}
	s.Fatal("of two who apply at once, none was refused in ten tries")
	return ""
}
