package events

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/guideway/guideway/lab/report"
	"github.com/guideway/guideway/lab/traffic/load"
)

// event is one thing that happens to clusters.
type event struct {
	name string
	// words for people, of what happened.
	words string
	// may break for a reason that no load balancer can help; empty: nothing may.
	may string
	// needsTwo load balancers, because one of them dies.
	needsTwo bool
	// rehashes flows at the router.
	rehashes bool
	// onRequest: only where it is named.
	onRequest bool
	// stateless services, in a lab of their own.
	stateless bool
	freshRate float64
	// pauseMax of a message; 0: pauseMaxQuiet.
	pauseMax time.Duration
	// before the load starts; nil: nothing.
	before func(context.Context, *stage) error
	do     func(context.Context, *stage) error
	// after the load has ended; nil: nothing.
	after func(context.Context, *stage) error
}

const (
	// Where no packet has to be lost, TCP may still send one again after 200 and 400 ms.
	pauseMaxQuiet = time.Second
	// What was sent to a load balancer that dies is sent again after 200, 400 and 800 ms,
	// and the router knows within some ten; without a router, another one owns its VIPs
	// within 0.7 s.
	pauseMaxKill = 2 * time.Second
)

// mayAfterChange is what breaks with a load balancer where no agents help.
const mayAfterChange = "those that only the dead machine remembered, since the pool had changed"

// events in their usual order.
var events = []event{
	{name: "steady", words: "nothing; connections are counted", freshRate: freshRateSteady, do: steady, after: checkRecent},
	{name: "add_backend", words: "a server is added", freshRate: freshRate, do: addBackend},
	{name: "drain_backend", words: "a server is drained", freshRate: freshRate, do: drainBackend},
	{name: "kill_backend", words: "a server dies", may: "its own connections, and requests until probes find out", freshRate: freshRate, do: killBackend},
	{name: "kill_load_balancer", words: "a load balancer dies", needsTwo: true, freshRate: freshRate, pauseMax: pauseMaxKill, do: killLoadBalancer},
	{name: "restore_load_balancer", words: "a load balancer comes back", needsTwo: true, freshRate: freshRate, before: killBeforeRestore, do: restoreLoadBalancer},
	{name: "kill_load_balancer_after_change", words: "a load balancer dies after a change", may: mayAfterChange, needsTwo: true, freshRate: freshRate, pauseMax: pauseMaxKill, do: killLoadBalancerAfterChange},
	{name: "kill_load_balancer_after_changes", words: "a load balancer dies after changes", may: mayAfterChange, needsTwo: true, onRequest: true, freshRate: freshRate, pauseMax: pauseMaxKill, do: killLoadBalancerAfterChanges},
	{name: "move_buckets", words: "stateless: connections move and back", stateless: true, freshRate: freshRate, do: moveBuckets},
	{name: "scale_out", words: "stateless: a server is added", stateless: true, freshRate: freshRate, do: scaleOut},
	{name: "scale_in", words: "stateless: a server leaves", stateless: true, freshRate: freshRate, do: scaleIn},
	{name: "kill_agent", words: "stateless: a leaving server's agent dies", stateless: true, freshRate: freshRate, do: killAgent},
	{name: "generations_apart", words: "stateless: machines disagree a while", stateless: true, needsTwo: true, rehashes: true, freshRate: freshRate, do: generationsApart},
}

// steady: nothing happens. Connections are spread evenly, and each is seen by
// one worker of one machine only.
func steady(ctx context.Context, s *stage) error {
	if err := s.load.Mark(); err != nil {
		return err
	}
	s.screen.Step("count %d new connections by backend", steadyConnections)
	counts, err := s.countFresh(ctx, steadyConnections)
	if err != nil {
		return err
	}
	s.report.Shares = report.NewShares(counts, s.configured())
	s.report.NewConnections = sum(counts)
	for _, share := range s.report.Shares {
		if !share.Good() {
			s.result.Problem("share of %s is %.4f, %+.1f %% of ideal, allowed are %.1f %%",
				share.Backend, share.Share, 100*share.Deviation(), 100*share.Tolerance())
		}
	}
	s.result.Detail = fmt.Sprintf("%d new connections counted", s.report.NewConnections)
	return s.checkTrackedBy(ctx)
}

// countFresh connections since the mark until there are enough.
func (s *stage) countFresh(ctx context.Context, enough int) (map[string]int, error) {
	limit := time.Now().Add(2*time.Minute + time.Duration(float64(enough)/freshRateSteady)*time.Second)
	for {
		report, err := s.load.Progress()
		if err != nil {
			return nil, err
		}
		if sum(report.Fresh) >= enough {
			return report.Fresh, nil
		}
		if time.Now().After(limit) {
			return nil, fmt.Errorf("only %d of %d new connections came about", sum(report.Fresh), enough)
		}
		if err := s.rest(ctx, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

func sum(counts map[string]int) int {
	total := 0
	for _, n := range counts {
		total += n
	}
	return total
}

// checkTrackedBy of all lasting flows: exactly one worker of one machine has
// each, and it sends it to the backend that serves it.
func (s *stage) checkTrackedBy(ctx context.Context) error {
	s.screen.Step("look up where each flow is tracked")
	live, err := s.live()
	if err != nil {
		return err
	}
	trackedBy, err := s.locate(ctx, flowsOf(live), func(all []tracker) []tracker { return all })
	if err != nil {
		return err
	}
	if twice := trackedTwice(live, trackedBy); twice != "" {
		s.spreadAnew = append(s.spreadAnew, twice)
	}
	for _, problem := range trackedByProblems(live, trackedBy) {
		s.result.Problem("%s", problem)
	}
	used := map[tracker]bool{}
	for _, list := range trackedBy {
		for _, p := range list {
			used[tracker{machine: p.machine, worker: p.worker}] = true
		}
	}
	if want := len(s.lab.LoadBalancers()) * s.lab.Options().Queues; len(live) >= 20*want && len(used) != want {
		s.result.Problem("only %d of %d workers track flows: steering does not spread", len(used), want)
	}
	return nil
}

// checkRecent flows, which have ended since: no worker but one has seen them.
func checkRecent(ctx context.Context, s *stage) error {
	trackedBy, err := s.locate(ctx, s.recent, confirmed)
	if err != nil {
		return err
	}
	for flow, list := range trackedBy {
		if len(list) > 1 {
			s.spreadAnew = append(s.spreadAnew, fmt.Sprintf("flows that have ended were on more than one worker, as %s on %v", flow, list))
			break
		}
	}
	return nil
}

// confirmed trackers of a flow that has ended: those that had more than its first packet,
// or a single one. The client's kernel answers packets to a connection that it has no
// socket for any more by RSTs, and hashes them anew: every second one comes by another
// queue of veth than its connection, and a RST confirms no entry.
func confirmed(list []tracker) []tracker {
	if len(list) < 2 {
		return list
	}
	return slices.DeleteFunc(list, func(t tracker) bool { return t.class == "unconfirmed" })
}

// locate flows, and count them for the result; only what `counts` returns of their
// trackers is a worker that has seen them.
func (s *stage) locate(ctx context.Context, flows []load.Flow, counts func([]tracker) []tracker) (map[load.Flow][]tracker, error) {
	trackedBy, err := locate(ctx, s.lab, s.lab.LoadBalancers(), flows)
	s.report.FlowsLookedUp += len(flows)
	for flow, list := range trackedBy {
		trackedBy[flow] = counts(list)
		if len(trackedBy[flow]) > 1 {
			s.seenTwice++
		}
	}
	return trackedBy, err
}

// trackedTwice says that flows are on more than one worker, with one example; empty: none is.
func trackedTwice(live []load.Live, trackedBy map[load.Flow][]tracker) string {
	var twice []load.Live
	for _, l := range live {
		if len(trackedBy[l.Flow]) > 1 {
			twice = append(twice, l)
		}
	}
	if len(twice) == 0 {
		return ""
	}
	return fmt.Sprintf("%d flows are on more than one worker, as %s on %v", len(twice), twice[0].Flow, trackedBy[twice[0].Flow])
}

// trackedByProblems of flows that are on one worker or none: in few words, with one example
// of each kind.
func trackedByProblems(live []load.Live, trackedBy map[load.Flow][]tracker) []string {
	var nowhere, elsewhere []load.Live
	for _, l := range live {
		found := trackedBy[l.Flow]
		switch {
		case len(found) == 0:
			nowhere = append(nowhere, l)
		case len(found) == 1 && found[0].backend != l.Backend:
			elsewhere = append(elsewhere, l)
		}
	}
	var problems []string
	// The table may leave out one flow in a hundred under pressure; there is
	// none here, but a bucket can be full.
	if len(nowhere)*100 > len(live) {
		problems = append(problems, fmt.Sprintf("%d of %d flows are not tracked, as %s", len(nowhere), len(live), nowhere[0].Flow))
	}
	if len(elsewhere) > 0 {
		problems = append(problems, fmt.Sprintf("%d flows are tracked for another backend than serves them, as %s of %s on %v",
			len(elsewhere), elsewhere[0].Flow, elsewhere[0].Backend, trackedBy[elsewhere[0].Flow]))
	}
	return problems
}

// addBackend: no connection breaks, and the new one gets its share of new connections.
func addBackend(ctx context.Context, s *stage) error {
	spare := s.lab.Backends()[s.options.Backends]
	s.screen.Step("add %s to the pools", spare)
	weights := s.lab.Weights()
	weights[spare] = 1
	if err := s.change(ctx, weights); err != nil {
		return err
	}
	if err := s.rest(ctx, calmAfter); err != nil {
		return err
	}
	report, err := s.load.Progress()
	if err != nil {
		return err
	}
	if report.Fresh[spare] == 0 {
		s.result.Problem("%s got none of %d new connections", spare, sum(report.Fresh))
	}
	s.result.Detail = fmt.Sprintf("%s got %d of the next %d", spare, report.Fresh[spare], sum(report.Fresh))
	return nil
}

// drainBackend: no connection breaks, and the drained one gets no new connection.
func drainBackend(ctx context.Context, s *stage) error {
	drained := s.victim(s.configured())
	s.screen.Step("drain %s: weight 0", drained)
	weights := s.lab.Weights()
	weights[drained] = 0
	if err := s.change(ctx, weights); err != nil {
		return err
	}
	return s.getsNone(ctx, drained, "drains")
}

// getsNone of the new connections since the mark; because says why.
func (s *stage) getsNone(ctx context.Context, backend, because string) error {
	if err := s.rest(ctx, calmAfter); err != nil {
		return err
	}
	report, err := s.load.Progress()
	if err != nil {
		return err
	}
	if report.Fresh[backend] != 0 {
		s.result.Problem("%s %s, but got %d of %d new connections", backend, because, report.Fresh[backend], sum(report.Fresh))
	}
	s.result.Detail = fmt.Sprintf("%s got %d of the next %d", backend, report.Fresh[backend], sum(report.Fresh))
	return nil
}

// change the backends, and count new connections from then on.
func (s *stage) change(ctx context.Context, weights map[string]uint32) error {
	if err := s.lab.SetWeights(ctx, weights); err != nil {
		return err
	}
	return s.load.Mark()
}

// killBackend: its own connections break; requests fail only until probes
// have found out.
func killBackend(ctx context.Context, s *stage) error {
	dead := s.victim(s.configured())
	live, err := s.live()
	if err != nil {
		return err
	}
	s.allowed.connections = servedBy(live, dead)
	plan, err := s.lab.Plan(ctx, s.lab.LoadBalancers()[0])
	if err != nil {
		return err
	}
	s.screen.Step("kill %s: its servers and its link", dead)
	killed := time.Now()
	if err := s.lab.KillBackend(ctx, slices.Index(s.lab.Backends(), dead)); err != nil {
		return err
	}
	if err := s.waitDown(ctx, dead); err != nil {
		return err
	}
	found := time.Now()
	s.screen.Step("probes found it after %v", found.Sub(killed).Round(time.Millisecond))
	s.result.Detail = fmt.Sprintf("%s found down after %.1f s", dead, found.Sub(killed).Seconds())
	s.allowed.request = func(failure load.Failure) bool {
		if failure.Backend != "" || failure.Begun.After(found) {
			return failure.Backend == dead && !failure.Begun.After(found)
		}
		// Never answered, so only the table knows whose it was.
		selected, err := selectBackends(ctx, s.lab, plan, []load.Flow{failure.Flow})
		return err == nil && selected[failure.Flow] == dead
	}
	return s.rest(ctx, calmAfter)
}

func servedBy(live []load.Live, backend string) map[load.Flow]bool {
	list := map[load.Flow]bool{}
	for _, l := range live {
		if l.Backend == backend {
			list[l.Flow] = true
		}
	}
	return list
}

// killLoadBalancer: clients do not notice, because the others have the same table.
func killLoadBalancer(ctx context.Context, s *stage) error {
	dying := s.victim(s.lab.LoadBalancers())
	s.result.Detail = dying + " died"
	return s.killUnderLoad(ctx, dying)
}

// killBeforeRestore, without load.
func killBeforeRestore(ctx context.Context, s *stage) (err error) {
	s.result.Detail, err = s.killOne(ctx)
	return err
}

// killOne of the load balancers before there is load, and say which.
func (s *stage) killOne(ctx context.Context) (dead string, err error) {
	dead = s.victim(s.lab.LoadBalancers())
	s.screen.Step("kill %s, without load", dead)
	_, err = s.kill(ctx, dead)
	return dead, err
}

// restoreLoadBalancer: clients do not notice, and it takes its part of the traffic.
func restoreLoadBalancer(ctx context.Context, s *stage) error {
	restored := s.result.Detail
	s.screen.Step("restore %s", restored)
	begun := time.Now()
	if err := s.lab.Restore(ctx); err != nil {
		return err
	}
	s.screen.Step("it is used again after %v", time.Since(begun).Round(time.Millisecond))
	if err := s.rest(ctx, calmAfter); err != nil {
		return err
	}
	if err := s.meter.read(ctx); err != nil {
		return err
	}
	if s.meter.packets[restored] == 0 {
		s.result.Problem("%s got no packets after it came back", restored)
	}
	s.result.Detail = fmt.Sprintf("%s came back with %d packets", restored, s.meter.packets[restored])
	return nil
}

// killLoadBalancerAfterChange: of the dying machine's connections those that are
// older than the change, and whose table slot has moved since, were known to it
// alone. With agents they have a second chance; without, they break.
func killLoadBalancerAfterChange(ctx context.Context, s *stage) error {
	spare, drained := s.lab.Backends()[s.options.Backends], s.victim(s.configured())
	s.screen.Step("change backends: add %s, drain %s", spare, drained)
	if err := s.reweight(ctx, map[string]uint32{spare: 1, drained: 0}); err != nil {
		return err
	}
	return s.killAfterChanges(ctx, fmt.Sprintf("%s added, %s drained", spare, drained))
}

// killLoadBalancerAfterChanges: the same after three changes within a minute.
func killLoadBalancerAfterChanges(ctx context.Context, s *stage) error {
	spare, configured := s.lab.Backends()[s.options.Backends], s.configured()
	drained := s.victim(configured)
	heavy := configured[(slices.Index(configured, drained)+1)%len(configured)]
	for _, change := range []struct {
		what    string
		weights map[string]uint32
	}{
		{"drain " + drained, map[string]uint32{drained: 0}},
		{"add " + spare, map[string]uint32{spare: 1}},
		{"double the weight of " + heavy, map[string]uint32{heavy: 2}},
	} {
		s.screen.Step("%s", change.what)
		if err := s.reweight(ctx, change.weights); err != nil {
			return err
		}
	}
	return s.killAfterChanges(ctx, fmt.Sprintf("%s drained, %s added, %s doubled", drained, spare, heavy))
}

// reweight some backends, and rest until connections have been made by it.
func (s *stage) reweight(ctx context.Context, changed map[string]uint32) error {
	weights := s.lab.Weights()
	maps.Copy(weights, changed)
	if err := s.change(ctx, weights); err != nil {
		return err
	}
	return s.rest(ctx, calmBefore)
}

// killAfterChanges a load balancer, whose connections may break without agents.
func (s *stage) killAfterChanges(ctx context.Context, changes string) error {
	dying := s.victim(s.lab.LoadBalancers())
	moved, err := s.moved(ctx, dying)
	if err != nil {
		return err
	}
	if !s.options.Agents {
		s.allowed.connections = moved
	} else if len(moved) == 0 {
		s.result.Problem("no connection needed its second chance")
	}
	s.result.Detail = fmt.Sprintf("%s, %s died; the table has other backends for %d connections", changes, dying, len(moved))
	return s.killUnderLoad(ctx, dying)
}

// moved computes, before the kill, which connections the present table would send
// elsewhere.
func (s *stage) moved(ctx context.Context, dying string) (map[load.Flow]bool, error) {
	live, err := s.live()
	if err != nil {
		return nil, err
	}
	flows := flowsOf(live)
	trackedBy, err := locate(ctx, s.lab, s.lab.LoadBalancers(), flows)
	if err != nil {
		return nil, err
	}
	plan, err := s.lab.Plan(ctx, dying)
	if err != nil {
		return nil, err
	}
	selected, err := selectBackends(ctx, s.lab, plan, flows)
	if err != nil {
		return nil, err
	}
	moved := mayBreak(live, trackedBy, selected, dying, len(s.lab.LoadBalancers()) == 2 || s.lab.Network.Switch)
	s.screen.Step("for %d of %d lasting connections the present table has another backend", len(moved), len(live))
	return moved, nil
}
