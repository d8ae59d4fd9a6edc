package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/report"
	"github.com/guideway/guideway/lab/topology"
)

// The demo of Multipath TCP: a client with two links opens connections by one of them,
// joins them by the other, and transfers, while links, load balancers, backends and
// agents come and go.

const (
	// Joins that have not come about by then never will: a SYN is sent again after 1,
	// 3 and 7 s.
	joinLimit = 8 * time.Second
	// How often subflows are read.
	subflowsEvery = 500 * time.Millisecond
	// How long a link is cut.
	linkCutFor = 5 * time.Second
)

// MultipathOptions of a run. Zero values are not defaults: see MultipathDefaults.
type MultipathOptions struct {
	Options
	// Stateful: for comparison, what joins come to without the help of agents.
	Stateful bool
}

// MultipathDefaults of a run; Connections are those of each event.
func MultipathDefaults() MultipathOptions {
	return MultipathOptions{Options: Options{Seed: 1, Backends: 3, LoadBalancers: 2, Connections: 20, Agents: true}}
}

// FromEnvironment as for the other demo, and MODE.
func (o MultipathOptions) FromEnvironment(get func(string) string) (MultipathOptions, error) {
	var err error
	if o.Options, err = o.Options.FromEnvironment(get); err != nil {
		return o, err
	}
	switch mode := get("MODE"); mode {
	case "":
	case "stateless", "stateful":
		o.Stateful = mode == "stateful"
	default:
		return o, fmt.Errorf("MODE=%s: give stateless, or stateful for what happens without all this", mode)
	}
	return o, nil
}

// multipathEvent is one thing that happens while transfers run.
type multipathEvent struct {
	name string
	// words for people, of what happened.
	words string
	// cutsLinks: not all subflows have both links throughout.
	cutsLinks bool
	// withoutTimestamps: the client's kernel sends none, so that agents send packets on
	// where load balancers select by the five-tuple.
	withoutTimestamps bool
	// before the transfers begin; nil: nothing.
	before func(context.Context, *multipathStage) error
	do     func(context.Context, *multipathStage) error
}

var multipathEvents = []multipathEvent{
	{name: "cut_link", words: "a link of the client fails", cutsLinks: true, do: cutLink},
	{name: "kill_load_balancer", words: "a load balancer dies", do: killOneOfLoadBalancers},
	{name: "drain_backend", words: "a server is drained", do: drainOneOfBackends},
	{name: "add_load_balancer", words: "a load balancer is added", before: withoutOneLoadBalancer, do: addLoadBalancer},
	{name: "restart_agent", words: "a server's agent restarts", do: restartAgent},
	{name: "drain_without_timestamps", words: "drained, without timestamps", withoutTimestamps: true, do: drainOneOfBackends},
}

// MultipathEventNames in their usual order.
func MultipathEventNames() []string {
	var names []string
	for _, e := range multipathEvents {
		names = append(names, e.name)
	}
	return names
}

// check refuses what cannot be done, and fills in the events.
func (o MultipathOptions) check() (MultipathOptions, error) {
	switch {
	case o.Backends < 2:
		return o, fmt.Errorf("backends %d: give 2 or more, so that one can go", o.Backends)
	case o.LoadBalancers < 2:
		return o, fmt.Errorf("load balancers %d: give 2 or more, so that one can go", o.LoadBalancers)
	case o.Connections < 1 || o.Connections > 500:
		return o, fmt.Errorf("connections %d: give 1 to 500", o.Connections)
	case o.Router == topology.NoRouter:
		return o, errors.New("ROUTER=none: the client's second link needs a router")
	}
	if len(o.Events) == 0 {
		o.Events = MultipathEventNames()
	}
	for _, name := range o.Events {
		if !slices.Contains(MultipathEventNames(), name) {
			return o, fmt.Errorf("event %q is unknown: give some of %s", name, strings.Join(MultipathEventNames(), ", "))
		}
	}
	return o, nil
}

// RunMultipath runs the demo of Multipath TCP. The lab is gone when it returns.
func RunMultipath(ctx context.Context, o MultipathOptions) (err error) {
	o, err = o.check()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	screen, err := begin(&o.Options, "demo-mptcp")
	if err != nil {
		return err
	}
	outcome := &report.Multipath{Mode: "stateless", Events: []report.MultipathEvent{}, Kernel: map[string]uint64{}}
	if o.Stateful {
		outcome.Mode = "stateful"
	}
	screen.Step("build %d load balancers, %d backends, and a client with two links; %s; seed %d", o.LoadBalancers, o.Backends, outcome.Mode, o.Seed)
	if err := o.performAll(ctx, screen, outcome); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	outcome.Duration = time.Since(screen.Begun)
	return conclude(o.Options, outcome, outcome.Kept)
}

func (o MultipathOptions) topology() topology.Options {
	t := topology.Options{Name: o.Name, BinDir: o.BinDir, LoadBalancers: o.LoadBalancers, Backends: o.Backends, Router: o.Router}
	t.Encap = "geneve"
	if !o.Stateful {
		t.Stateless, t.Multipath = true, true
	}
	return t
}

func (o MultipathOptions) performAll(ctx context.Context, screen *report.Screen, outcome *report.Multipath) (err error) {
	running, err := hosts.Up(ctx, o.topology(), true)
	if err != nil {
		return err
	}
	defer func() { err = takeDown(ctx, running, err, outcome.Good(), &outcome.Whole) }()
	second, err := AddSecondLink(ctx, running.Network)
	if err != nil {
		return err
	}
	router, err := running.Network.OpenRouter()
	if err != nil {
		return err
	}
	defer router.Close()
	for i, name := range o.Events {
		at := slices.IndexFunc(multipathEvents, func(e multipathEvent) bool { return e.name == name })
		screen.Begin(multipathEvents[at].words)
		s := &multipathStage{
			stage: stage{
				options: o.Options, lab: running, router: router, screen: screen, report: &report.Report{},
				random: rand.New(rand.NewPCG(o.Seed, uint64(i))), meter: newMeter(running),
			},
			stateful: o.Stateful, links: [2]topology.Node{running.Network.Client, second},
			result: report.MultipathEvent{Name: name, Remarks: report.Remarks{Words: multipathEvents[at].words}},
		}
		if err := s.perform(ctx, multipathEvents[at]); err != nil {
			return fmt.Errorf("event %s: %w", name, err)
		}
		outcome.Events = append(outcome.Events, s.result)
		outcome.Busy = cmp.Or(outcome.Busy, s.stage.report.Busy)
	}
	return readKernels(running, o.Stateful, outcome)
}

// AddSecondLink to the client, whose kernel joins each connection by it.
func AddSecondLink(ctx context.Context, network topology.Network) (topology.Node, error) {
	second, err := network.AddClientLink(ctx)
	if err != nil {
		return second, err
	}
	lines := []string{"mptcp limits set subflows 2"}
	for family := range second.Addresses {
		lines = append(lines, fmt.Sprintf("mptcp endpoint add %s dev eth1 subflow", second.Address(family)))
	}
	return second, topology.IPBatch(ctx, network.Client.Namespace, lines)
}

// multipathStage is one event under way.
type multipathStage struct {
	stage
	stateful  bool
	links     [2]topology.Node
	transfers *transfers
	result    report.MultipathEvent
}

// perform one event from the whole topology to its judgement.
func (s *multipathStage) perform(ctx context.Context, e multipathEvent) error {
	s.screen.Step("restore the whole topology")
	if err := s.lab.Restore(ctx); err != nil {
		return err
	}
	if err := s.setTimestamps(!e.withoutTimestamps); err != nil {
		return err
	}
	if e.before != nil {
		if err := e.before(ctx, s); err != nil {
			return err
		}
	}
	wanted, joins, err := s.joins()
	if err != nil {
		return err
	}
	s.screen.Step("start %d transfers", s.options.Connections)
	s.transfers, err = startTransfers(ctx, s.links[0].Namespace, s.options.Connections, s.random)
	if err != nil {
		return err
	}
	defer s.transfers.end()
	s.heart = startHeart(ctx)
	defer s.heart.stop()
	if err := s.waitJoined(ctx, wanted, joins); err != nil {
		return err
	}
	stopReading := s.keepReading(ctx)
	err = errors.Join(e.do(ctx, s), s.rest(ctx, calmAfter))
	s.screen.Step("end the transfers")
	s.transfers.finish()
	if busy := s.heart.stop(); busy != "" {
		s.report.Busy = fmt.Sprintf("in %s %s", e.name, busy)
	}
	if err := errors.Join(err, stopReading(), s.transfers.readSubflows(ctx)); err != nil {
		return err
	}
	if err := s.judge(ctx, e, wanted, joins); err != nil {
		return err
	}
	s.transfers.end()
	// The last packets of what is closed are to find their backends as they are.
	return s.rest(ctx, calmBefore)
}

// setTimestamps of the connections that the client opens from now on.
func (s *multipathStage) setTimestamps(on bool) error {
	setting := "ipv4/tcp_timestamps=0"
	if on {
		setting = "ipv4/tcp_timestamps=1"
	}
	return topology.SetSysctls(s.lab.Network.Client.Namespace, []string{setting})
}

// joins that the client has begun, and that came about at backends, since the lab was
// built.
func (s *multipathStage) joins() (wanted, joins uint64, err error) {
	client, err := s.lab.Network.KernelCounters(s.links[0].Name)
	if err != nil {
		return 0, 0, err
	}
	for _, n := range s.lab.Network.Backends {
		backend, err := s.lab.Network.KernelCounters(n.Name)
		if err != nil {
			return 0, 0, err
		}
		joins += backend["MPTcpExt.MPJoinAckRx"]
	}
	return client["MPTcpExt.MPJoinSynTx"], joins, nil
}

// waitJoined until every connection is, or will not be.
func (s *multipathStage) waitJoined(ctx context.Context, wanted, joins uint64) error {
	for limit := time.Now().Add(joinLimit); time.Now().Before(limit); {
		wantedNow, joinsNow, err := s.joins()
		if err != nil {
			return err
		}
		if begun := wantedNow - wanted; begun >= uint64(s.options.Connections) && joinsNow-joins >= begun {
			break
		}
		if err := s.rest(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
	return s.rest(ctx, calmBefore)
}

// keepReading the subflows until stop.
func (s *multipathStage) keepReading(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		for {
			if err := s.transfers.readSubflows(ctx); err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
			if s.rest(ctx, subflowsEvery) != nil {
				ended <- nil
				return
			}
		}
	}()
	return func() error { cancel(); return <-ended }
}

// judge what the transfers came to.
func (s *multipathStage) judge(ctx context.Context, e multipathEvent, wanted, joins uint64) error {
	wantedNow, joinsNow, err := s.joins()
	if err != nil {
		return err
	}
	r, silent := &s.result, 0
	r.JoinsWanted, r.Joins, r.SecondSubflowBytes = wantedNow-wanted, joinsNow-joins, s.transfers.joinedBytes()
	for _, t := range s.transfers.all {
		r.Transfers++
		r.Rounds += t.rounds.Load()
		r.DigestErrors += t.digestErrors
		if t.broken != nil {
			r.Broken++
			s.expect("%v", t.broken)
		}
		if s.transfers.firstBytes[t.local()] == 0 || s.transfers.joinedBytesOf(t) == 0 {
			silent++
		}
	}
	if r.DigestErrors > 0 {
		r.Problem("%d rounds came back changed", r.DigestErrors)
	}
	if r.JoinsWanted == 0 {
		r.Problem("the client began no join, so there is nothing to show")
	}
	if r.Joins != r.JoinsWanted {
		s.expect("of %d joins that the client began %d came about", r.JoinsWanted, r.Joins)
	}
	if silent > 0 && !e.cutsLinks {
		s.expect("of %d connections %d had no byte on one of their subflows", r.Transfers, silent)
	}
	unaccounted, err := s.unaccounted(ctx)
	if err == nil && unaccounted != 0 {
		r.Problem("%d packets are unaccounted for", unaccounted)
	}
	return err
}

// expect: it is a problem, unless the mode makes it one by itself.
func (s *multipathStage) expect(format string, args ...any) {
	if !s.stateful {
		s.result.Problem(format, args...)
	}
}

// Kernel counters that the report has; true: any of them is a problem. Packets without a
// timestamp go by their five-tuple, so that the last ones of a connection may come to
// another backend, which looks for a cookie in them: SyncookiesFailed. A segment that a
// busy machine reorders counts as PAWSEstab, also where no timestamp has bits of ours.
var multipathCounters = map[string]bool{
	"MPTcpExt.MPCapableACKRX": false, "MPTcpExt.MPCapableFallbackACK": true, "MPTcpExt.MPCapableDataFallback": true,
	"MPTcpExt.MPJoinSynRx": false, "MPTcpExt.MPJoinAckRx": false, "MPTcpExt.MPJoinAckHMacFailure": true, "MPTcpExt.MPJoinNoTokenFound": true,
	"MPTcpExt.MPTCPRetrans": false, "MPTcpExt.DSSNoMatchTCP": true,
	"TcpExt.PAWSEstab": false, "TcpExt.TSEcrRejected": true, "TcpExt.SyncookiesFailed": false, "Tcp.InCsumErrors": true, "Tcp.OutRsts": false,
}

// readKernels of all backends.
func readKernels(running *hosts.Lab, stateful bool, outcome *report.Multipath) error {
	for _, n := range running.Network.Backends {
		counters, err := running.Network.KernelCounters(n.Name)
		if err != nil {
			return err
		}
		for name := range multipathCounters {
			_, short, _ := strings.Cut(name, ".")
			outcome.Kernel[short] += counters[name]
		}
	}
	for name, isProblem := range multipathCounters {
		_, short, _ := strings.Cut(name, ".")
		if n := outcome.Kernel[short]; isProblem && n > 0 && !stateful {
			outcome.Problems = append(outcome.Problems, fmt.Sprintf("the backends' kernels counted %d %s", n, short))
		}
	}
	slices.Sort(outcome.Problems)
	return nil
}

// cutLink of the client: connections go on by the other.
func cutLink(ctx context.Context, s *multipathStage) error {
	at := s.random.IntN(len(s.links))
	s.screen.Step("cut the client's link %d for %v", at+1, linkCutFor)
	if err := s.lab.Network.SetLink(ctx, s.links[at], "down"); err != nil {
		return err
	}
	err := s.rest(ctx, linkCutFor)
	s.result.Detail = fmt.Sprintf("link %d of two was down for %v", at+1, linkCutFor)
	return errors.Join(err, s.lab.Network.SetLink(ctx, s.links[at], "up"))
}

// killOneOfLoadBalancers: connections go on by the others.
func killOneOfLoadBalancers(ctx context.Context, s *multipathStage) error {
	dying := s.victim(s.lab.LoadBalancers())
	s.screen.Step("kill %s: SIGKILL to its processes", dying)
	took, err := s.kill(ctx, dying)
	s.result.Detail = fmt.Sprintf("%s died; the router dropped its routes after %.0f ms", dying, float64(took.Microseconds())/1000)
	return err
}

// drainOneOfBackends: its buckets move, and its connections stay.
func drainOneOfBackends(ctx context.Context, s *multipathStage) error {
	drained := s.victim(s.configured())
	s.screen.Step("drain %s: weight 0", drained)
	weights := s.lab.Weights()
	weights[drained] = 0
	if err := s.lab.SetWeights(ctx, weights); err != nil {
		return err
	}
	s.result.Detail = drained + " was drained"
	if s.stateful {
		return nil
	}
	return s.waitOwners(ctx, s.others(drained))
}

func withoutOneLoadBalancer(ctx context.Context, s *multipathStage) (err error) {
	s.result.Detail, err = s.killOne(ctx)
	return err
}

// addLoadBalancer: the router spreads connections anew over one more.
func addLoadBalancer(ctx context.Context, s *multipathStage) error {
	added := s.result.Detail
	s.screen.Step("add %s", added)
	s.result.Detail = added + " was added"
	return s.lab.Restore(ctx)
}

// restartAgent of a backend that has connections.
func restartAgent(ctx context.Context, s *multipathStage) error {
	backend := s.transfers.all[s.random.IntN(len(s.transfers.all))].backend
	index := slices.Index(s.lab.Backends(), backend)
	s.screen.Step("restart the agent of %s", backend)
	if err := s.lab.StopAgent(index); err != nil {
		return err
	}
	s.result.Detail = "that of " + backend
	return s.lab.StartAgent(index)
}
