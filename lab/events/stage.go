package events

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/report"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/load"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// The load. Two cores play clients, router, load balancers and servers: these
// rates keep them below saturation, where probes would fail for no fault of
// the backends.
const (
	freshRate       = 250.0
	freshRateSteady = 1_000.0
	// steadyConnections is how many new connections shares are taken of.
	steadyConnections = 20_000
	keepAlives        = 40
	keepAliveRate     = 200.0
	messageRate       = 2.0

	// timeLimit lets a SYN be sent four times: what takes longer has failed.
	timeLimit = 10 * time.Second
	// clientAddresses of each family.
	clientAddresses = 4

	// calm before an event, and after it: time for every connection to have
	// its say, and for what was lost to be sent again.
	calmBefore = 2 * time.Second
	calmAfter  = 5 * time.Second
)

// stage is one event under way.
type stage struct {
	options  Options
	lab      *hosts.Lab
	router   *topology.Router
	screen   *report.Screen
	random   *rand.Rand
	block    int
	load     *load.Remote
	meter    *meter
	allowed  allowance
	result   report.EventResult
	report   *report.Report
	lastLive []load.Live
	// killed is the load balancer that this event has killed under load.
	killed string
	// left is whether traffic left a load balancer that was short of processor time.
	left bool
	// seenTwice are flows on more than one worker, and spreadAnew the problems with them: none,
	// if traffic left a load balancer, for then flows are spread anew.
	seenTwice  int
	spreadAnew []string
	// recent flows of the load that has ended.
	recent []load.Flow
	// heart of this machine, while the load runs.
	heart *heart
	// busy says why this machine is too busy for a fair run; empty: it is not.
	busy string
	// pauseMax of a message in this event.
	pauseMax time.Duration
}

// perform one event from the whole topology to its judgement.
func (s *stage) perform(ctx context.Context, e event) error {
	s.screen.Step("restore the whole topology")
	if err := s.lab.Restore(ctx); err != nil {
		return err
	}
	if e.before != nil {
		if err := e.before(ctx, s); err != nil {
			return err
		}
	}
	if err := s.meter.read(ctx); err != nil {
		return err
	}
	defer func() {
		if s.load != nil {
			_ = s.load.Abandon() // only after an error: what it says matters more
			s.heart.stop()
		}
	}()
	s.heart, s.pauseMax = startHeart(ctx), cmp.Or(e.pauseMax, pauseMaxQuiet)
	if err := s.startLoad(ctx, e.freshRate); err != nil {
		return err
	}
	routes, err := watchRoutes(ctx, s.lab)
	if err != nil {
		return err
	}
	err = errors.Join(e.do(ctx, s), s.endWatch(routes))
	if err != nil {
		return err
	}
	if err := s.endLoad(); err != nil {
		return err
	}
	if err := s.meter.read(ctx); err != nil {
		return err
	}
	s.result.Packets = s.meter.packets
	if e.after != nil {
		if err := e.after(ctx, s); err != nil {
			return err
		}
	}
	s.judgeSeenTwice()
	return s.checkAtRest(ctx)
}

func (s *stage) judgeSeenTwice() {
	if s.left {
		if s.seenTwice > 0 {
			s.result.Detail = strings.TrimPrefix(fmt.Sprintf("%s; %s: %d flows are on two workers", s.result.Detail, s.busy, s.seenTwice), "; ")
		}
		return
	}
	s.report.FlowsSeenTwice += s.seenTwice
	for _, problem := range s.spreadAnew {
		s.result.Problem("%s", problem)
	}
}

// endWatch of the routes: what changed without reason comes first among the
// problems, because it explains the others.
func (s *stage) endWatch(routes *routeLog) error {
	lost, slow, err := routes.stop(s.killed)
	if slow != "" {
		s.busy, s.left = slow+" was short of processor time, so that traffic left it", true
	}
	for machine, times := range lost {
		s.result.Problem("all traffic left %s %d times without its having been killed: its speaker.log says why", machine, times)
	}
	return err
}

// startLoad afresh, and wait until all of it is under way.
func (s *stage) startLoad(ctx context.Context, rate float64) error {
	addresses, err := s.lab.Network.AddClientAddresses(ctx, s.block, clientAddresses)
	if err != nil {
		return err
	}
	spec := load.Spec{
		Seed: s.random.Uint64(), Sources: addresses,
		Web: withPort(topology.WebVIPs, topology.HTTPPort), Echo: withPort(topology.EchoVIPs, topology.EchoPort),
		FreshRate: rate, KeepAliveConnections: keepAlives, KeepAliveRate: keepAliveRate,
		Connections: s.options.Connections, MessageRate: messageRate, TimeLimit: timeLimit,
	}
	s.screen.Step("start the load: %d long-lived connections, %.0f new ones a second", spec.Connections, spec.FreshRate)
	command := s.lab.LoadCommand(ctx)
	command.Stderr = os.Stderr
	if s.load, err = load.StartRemote(command, spec); err != nil {
		s.load = nil
		return err
	}
	s.screen.Follow(s.load)
	return s.waitOpen(ctx)
}

func withPort(addresses []netip.Addr, port uint16) []netip.AddrPort {
	var list []netip.AddrPort
	for _, address := range addresses {
		list = append(list, netip.AddrPortFrom(address, port))
	}
	return list
}

// waitOpen until every long-lived connection has come about, or broken.
func (s *stage) waitOpen(ctx context.Context) error {
	limit := time.Now().Add(30*time.Second + time.Duration(s.options.Connections)*5*time.Millisecond)
	for {
		report, err := s.load.Progress()
		if err != nil {
			return err
		}
		if report.Open+report.Broken >= s.options.Connections {
			return s.rest(ctx, calmBefore)
		}
		if time.Now().After(limit) {
			return fmt.Errorf("only %d of %d long-lived connections came about", report.Open, s.options.Connections)
		}
		if err := s.rest(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// rest for a while, unless it is all over.
func (s *stage) rest(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(duration):
		return nil
	}
}

// endLoad and enter what it saw.
func (s *stage) endLoad() error {
	s.screen.Step("stop the load")
	s.screen.Unfollow()
	report, err := s.load.Stop()
	s.load = nil
	if err != nil {
		return err
	}
	s.recent = report.Recent
	j := s.allowed.judge(report.Failures)
	s.result.Requests, s.result.Failed = report.Requests, report.Failed
	// Each kept connection that may break may fail the request on it.
	s.result.FailedAllowed = s.allowed.count(s.lastLive, load.KindKeepAlive) + j.byRule
	s.result.Connections, s.result.Broken = report.Connections, report.Broken
	s.result.BrokenAllowed = s.allowed.count(s.lastLive, load.KindEcho)
	s.result.Messages = report.Messages
	s.busy = cmp.Or(s.busy, s.heart.stop())
	if s.busy != "" {
		s.report.Busy = fmt.Sprintf("in %s %s", s.result.Name, s.busy)
	}
	s.result.JudgePause(report.LongestPause, s.pauseMax, s.busy != "")
	for _, line := range describe(j.beyond) {
		s.result.Problem("not allowed: %s", line)
	}
	if report.Requests == 0 || report.Messages == 0 {
		s.result.Problem("the load did nothing: %d requests, %d messages", report.Requests, report.Messages)
	}
	return nil
}

// checkAtRest what must hold whenever no packet is under way.
func (s *stage) checkAtRest(ctx context.Context) error {
	unaccounted, err := s.unaccounted(ctx)
	if err != nil {
		return err
	}
	if unaccounted != 0 {
		s.result.Problem("%d packets are unaccounted for", unaccounted)
		s.report.UnaccountedPackets += unaccounted
	}
	sums, err := s.lab.Network.ChecksumErrors()
	if err != nil {
		return err
	}
	if sums > s.report.ChecksumErrors {
		s.result.Problem("%d packets had a wrong TCP or UDP checksum", sums-s.report.ChecksumErrors)
	}
	s.report.ChecksumErrors = sums
	return nil
}

// unaccounted packets over all machines. A packet may be on its way still, so
// the law gets a moment to hold.
func (s *stage) unaccounted(ctx context.Context) (int64, error) {
	var sum int64
	for range 20 {
		sum = 0
		for _, machine := range s.lab.Running() {
			counters, err := s.lab.Counters(ctx, machine)
			if err != nil {
				return 0, err
			}
			// Packets lost and packets invented must not cancel out.
			sum += max(counters.GetUnaccounted(), -counters.GetUnaccounted())
		}
		if sum == 0 {
			return 0, nil
		}
		if err := s.rest(ctx, 100*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// live connections, remembered for the number that may break.
func (s *stage) live() ([]load.Live, error) {
	live, err := s.load.Live()
	s.lastLive = live
	return live, err
}

func flowsOf(live []load.Live) []load.Flow {
	flows := make([]load.Flow, 0, len(live))
	for _, l := range live {
		flows = append(flows, l.Flow)
	}
	return flows
}

// victim among names, by the seed.
func (s *stage) victim(names []string) string { return names[s.random.IntN(len(names))] }

// configured backends, without spares.
func (s *stage) configured() []string { return s.lab.Backends()[:s.options.Backends] }

// kill a load balancer and wait until no packet to a VIP goes there any more.
func (s *stage) kill(ctx context.Context, name string) (time.Duration, error) {
	addresses, err := s.lab.Network.Addresses(name)
	if err != nil {
		return 0, err
	}
	if err := s.meter.read(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	watching, gone := make(chan struct{}), make(chan struct{})
	var goneAt time.Time
	var watchErr error
	go func() {
		defer close(gone)
		first := true
		goneAt, watchErr = s.router.Watch(ctx, func(routes topology.Routes) bool {
			if first {
				close(watching)
				first = false
			}
			return !routes.Via(addresses)
		})
	}()
	select {
	case <-watching:
	case <-gone:
		return 0, errors.Join(errors.New("watch the router"), watchErr)
	}
	killedAt, err := s.lab.KillLoadBalancer(name)
	if err != nil {
		return 0, err
	}
	<-gone
	if watchErr != nil {
		return 0, fmt.Errorf("traffic did not leave %s: %w", name, watchErr)
	}
	return goneAt.Sub(killedAt), nil
}

// killUnderLoad also enters how long traffic took to leave.
func (s *stage) killUnderLoad(ctx context.Context, name string) error {
	s.killed = name
	s.screen.Step("kill %s: SIGKILL to its processes", name)
	took, err := s.kill(ctx, name)
	if err != nil {
		return err
	}
	ms := float64(took.Microseconds()) / 1000
	if s.report.WithdrawMS == nil || ms > *s.report.WithdrawMS {
		s.report.WithdrawMS = &ms
	}
	s.screen.Step("traffic left it after %.1f ms", ms)
	return s.rest(ctx, calmAfter)
}

// waitDown until every forwarder knows that a backend is down.
func (s *stage) waitDown(ctx context.Context, backend string) error {
	limit := time.Now().Add(30 * time.Second)
	for _, machine := range s.lab.Running() {
		for {
			plan, err := s.lab.Plan(ctx, machine)
			if err != nil {
				return err
			}
			down := planv1.BackendState_BACKEND_STATE_DOWN
			if hosts.StateOf(plan, "web", backend) == down && hosts.StateOf(plan, "echo", backend) == down {
				break
			}
			if time.Now().After(limit) {
				return fmt.Errorf("probes of %s did not find %s down", machine, backend)
			}
			if err := s.rest(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// meter counts the packets that each load balancer received, also when it is
// killed or starts from zero in between.
type meter struct {
	lab     *hosts.Lab
	last    map[string]uint64
	packets map[string]uint64
}

func newMeter(l *hosts.Lab) *meter {
	return &meter{lab: l, last: map[string]uint64{}}
}

// read all that run. The first time only remembers.
func (m *meter) read(ctx context.Context) error {
	for _, machine := range m.lab.Running() {
		counters, err := m.lab.Counters(ctx, machine)
		if err != nil {
			return err
		}
		now := counters.GetReceived()
		if m.packets != nil {
			m.packets[machine] += sinceLast(m.last[machine], now)
		}
		m.last[machine] = now
	}
	if m.packets == nil {
		m.packets = map[string]uint64{}
	}
	return nil
}

// sinceLast reading; a smaller number is a forwarder that began anew.
func sinceLast(last, now uint64) uint64 {
	if now < last {
		return now
	}
	return now - last
}
