// Package speaker is the speaker's process (`guideway speaker`). It announces the routes that
// the controller desires while it finds the forwarder healthy, and withdraws them otherwise,
// even if the controller dies or hangs.
//
//	controller ─► Set ─► desired, kept on disk ─┐
//	forwarder ─► health each 100 ms ─► judge ───┼─► decide ─► BGP sessions
//	SIGTERM, age of the controller's last call ─┘         └─► VRRP: VIPs owned
//
// One goroutine decides. It waits for nothing: no disk, no BGP, no client.
//
// **Invariant:** while the forwarder is healthy, a controller that dies, hangs or is restarted
// changes no route (unless controller_absent_max says so).
package speaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/notify"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
	"github.com/guideway/guideway/speaker/bgp"
	"github.com/guideway/guideway/speaker/health"
	"github.com/guideway/guideway/speaker/judge"
	"github.com/guideway/guideway/speaker/vrrp"
	"github.com/guideway/guideway/speaker/vrrp/election"
)

const (
	// How long routes carry GRACEFUL_SHUTDOWN before this process withdraws them
	// for its end: time for routers to move to another path (RFC 8326 section 4.1).
	leavingTime = 2 * time.Second
	// A controller polls ten times a second; one that was not heard for this long
	// counts as absent.
	absentAfter = 2 * time.Second
	// Nothing due: look again in a while anyway.
	idleTick = time.Second
)

// Options of `guideway speaker`.
type Options struct {
	// The forwarder's socket, and in speaker/ the speaker's.
	RunDir string
	// What is desired.
	StateDir string
	// Of /metrics; empty: none.
	MetricsListen string
	// May set what is desired, beside root and this process's own user; empty:
	// no other.
	ControllerUser string
	Version        string
	Log            *slog.Logger
}

// process is one running speaker.
type process struct {
	options Options
	log     *slog.Logger
	notify  notify.Notifier
	applier *applier
	owns    *ownership
	keeper  *keeper

	sets chan *speakerv1.SetRequest
	// The latest answer not yet looked at, and that there is one.
	health     atomic.Pointer[health.Answer]
	healthNews chan struct{}
	// When a controller called, as the monotonic clock says: the other one may be stepped. nil: never.
	called atomic.Pointer[time.Time]
	// By its latest call another machine forwards well.
	peerWell atomic.Bool
	// For those who look.
	shown atomic.Pointer[shown]

	// Of the goroutine that decides only.
	forwarder judge.Forwarder
	desired   *speakerv1.Desired
	revision  uint64
	decoded   bgp.Desired
	problem   string // of the decoding
	passwords passwords
	// Since when this process runs, and is to end; zero: it is not.
	started, leaving  time.Time
	withheld, slow    string
	absent            bool
	announcingChanged changeLog
}

// shown is what people and the controller see, never edited.
type shown struct {
	desired  *speakerv1.Desired
	want     bgp.Desired
	revision uint64
	withheld string
	slow     string
	problem  string
	absent   time.Time
}

// Run until the context ends, and then as long as it takes to withdraw the
// routes on purpose.
func Run(ctx context.Context, options Options) error {
	p := &process{
		options: options, log: options.Log, notify: notify.New(), started: time.Now(),
		sets: make(chan *speakerv1.SetRequest), healthNews: make(chan struct{}, 1), forwarder: judge.New(),
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	sockets, err := listen(options.RunDir)
	if err != nil {
		return err
	}
	defer sockets.close()
	if sockets.notShared != "" {
		p.log.Info(sockets.notShared)
	}
	if p.keeper, err = newKeeper(options.StateDir, p.log); err != nil {
		return err
	}
	sessions := &sessionLog{log: p.log, said: map[netip.Addr]string{}}
	p.applier = newApplier(p.log, bgp.New(p.log, sessions.heard))
	// What this process runs outlives ctx: a stop takes its time.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	p.owns = &ownership{begin: func() (*vrrp.Speaker, error) {
		owner, err := vrrp.New(p.log, p.heardOwnership)
		if err == nil {
			tasks.Go(func() { owner.Run(work) })
		}
		return owner, err
	}}
	p.restore()
	p.decide(time.Now()) // before it is asked what it does
	servers, err := newServers(p, options.ControllerUser)
	if err != nil {
		return err
	}
	stopMetrics, err := p.serveMetrics(work, &tasks)
	if err != nil {
		return err
	}
	defer stopMetrics()
	tasks.Go(func() { p.applier.run(work) })
	tasks.Go(func() { health.Watch(work, options.RunDir, p.heardOfHealth) })
	tasks.Go(func() { servers.serve(sockets.listener) }) // ends with sockets.close
	defer servers.stop()
	p.notify.Ready()
	p.log.Info("speaker started", "version", options.Version, "run_dir", options.RunDir, "state_dir", options.StateDir)
	p.loop(ctx)
	return p.end()
}

// loop is the goroutine that decides, until everything is withdrawn for good.
func (p *process) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	asked := ctx.Done()
	for {
		timer.Reset(p.untilAgain(time.Now()))
		select {
		case <-p.healthNews:
		case request := <-p.sets:
			p.hearHealth() // else a long Set would be taken for the forwarder's silence
			p.set(request)
		case <-timer.C:
		case <-asked:
			asked = nil
			p.notify.Stopping()
			p.leaving = time.Now()
			p.log.Info("stopping: routes carry GRACEFUL_SHUTDOWN first", "for", leavingTime)
		}
		p.hearHealth()
		now := time.Now()
		p.decide(now)
		if !p.leaving.IsZero() && (p.withheld != "" || now.Sub(p.leaving) >= leavingTime) {
			return
		}
	}
}

func (p *process) untilAgain(now time.Time) time.Duration {
	next := now.Add(idleTick)
	for _, at := range []time.Time{p.forwarder.Again(), p.leavingEnd(), p.announcingChanged.again()} {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	return max(0, next.Sub(now))
}

func (p *process) leavingEnd() time.Time {
	if p.leaving.IsZero() {
		return time.Time{}
	}
	return p.leaving.Add(leavingTime)
}

// heardOfHealth comes from the goroutine that asks, and never waits.
func (p *process) heardOfHealth(answer health.Answer) {
	p.health.Store(&answer)
	select {
	case p.healthNews <- struct{}{}:
	default: // it is on its way already
	}
}

// hearHealth takes the latest answer, if it was not taken yet.
func (p *process) hearHealth() {
	answer := p.health.Swap(nil)
	if answer == nil {
		return
	}
	switch {
	case answer.Waits:
		p.forwarder.Wait(answer.Err.Error(), answer.Asked, time.Now())
	case answer.Err != nil:
		p.forwarder.Lose("does not answer: "+answer.Err.Error(), time.Now())
	default:
		p.forwarder.Hear(answer.Judged(), time.Now())
	}
}

// restore what was desired last.
func (p *process) restore() {
	desired, err := p.keeper.load()
	if err != nil {
		p.log.Error("what was announced last is not known, a controller has to say it", "error", err)
	}
	if desired != nil {
		p.log.Info("announcing what was desired last, until a controller says otherwise", "routes", len(desired.GetRoutes()))
	}
	p.use(desired)
}

// set what a controller desires.
func (p *process) set(request *speakerv1.SetRequest) {
	desired := request.GetDesired()
	if desired == nil {
		desired = &speakerv1.Desired{}
	}
	if request.GetKeepRoutes() {
		desired.Routes, desired.Generation = p.desired.GetRoutes(), p.desired.GetGeneration()
	}
	p.revision = request.GetRevision()
	if !proto.Equal(desired, p.desired) {
		p.keeper.save(desired)
	}
	p.use(desired)
}

func (p *process) use(desired *speakerv1.Desired) {
	// A forwarder without a plan forwards nothing.
	if generation := max(1, desired.GetGeneration()); p.desired == nil || generation != max(1, p.desired.GetGeneration()) {
		p.forwarder.Require(generation, time.Now())
	}
	p.desired = desired
	var problems error
	p.decoded, problems = p.passwords.decode(desired)
	problem := ""
	if problems != nil {
		problem = problems.Error()
	}
	if problem != p.problem && problem != "" {
		p.log.Error("BGP", "error", problem)
	}
	p.problem = problem
}

// decide what is announced now, and bring it about.
func (p *process) decide(now time.Time) {
	absent := p.absentSince(now)
	p.forwarder.KnowPeers(p.peerWell.Load() && absent.IsZero())
	p.forwarder.Check(now)
	withheld := p.whyWithheld(now, absent)
	want := p.decoded
	if withheld != "" {
		want.Routes = nil
	} else if !p.leaving.IsZero() {
		want.Routes = leaving(want.Routes)
	}
	if p.forwarder.Slow() != "" {
		want = worse(want)
	}
	p.applier.set(want)
	p.owns.follow(p.desired, election.Standing{Withheld: withheld, Slow: p.forwarder.Slow() != "" || !p.leaving.IsZero()})
	p.logChanges(now, withheld, absent)
	p.shown.Store(&shown{desired: p.desired, want: want, slow: p.slow, revision: p.revision, withheld: withheld, problem: cmp.Or(p.problem, p.owns.refused), absent: absent})
}

// whyWithheld is why nothing is announced; empty: what is desired is.
func (p *process) whyWithheld(now, absent time.Time) string {
	limit := p.desired.GetControllerAbsentMax().AsDuration()
	switch {
	case p.desired == nil:
		return "no controller has said yet what to announce"
	case p.forwarder.Reason() != "":
		return "forwarder: " + p.forwarder.Reason()
	case limit > 0 && !absent.IsZero() && now.Sub(absent) > limit:
		return fmt.Sprintf("no controller for %v (speaker.controller_absent_max)", limit)
	}
	return ""
}

// absentSince is zero while a controller is there.
func (p *process) absentSince(now time.Time) time.Time {
	last := p.started
	if called := p.called.Load(); called != nil {
		last = *called
	}
	if now.Sub(last) <= absentAfter {
		return time.Time{}
	}
	return last
}

// numbers with their units: a reason with another age is the same.
var numbers = regexp.MustCompile(`\d[\w.µ]*`)

func (p *process) logChanges(now time.Time, withheld string, absent time.Time) {
	p.withheld, p.slow = withheld, p.forwarder.Slow()
	state := "announcing"
	switch {
	case withheld != "":
		state = "withheld: " + numbers.ReplaceAllString(withheld, "")
	case p.slow != "":
		state = "slow"
	}
	if flaps, due := p.announcingChanged.step(state, now); due {
		log := p.log
		if flaps > 0 {
			log = log.With("changes_not_logged", flaps)
		}
		switch {
		case withheld != "":
			log.Warn("nothing is announced", "reason", withheld)
		case p.slow != "":
			log.Warn("the machine is slow: its routes are announced as worse ones", "routes", len(p.decoded.Routes), "reason", p.slow)
		default:
			log.Info("announcing what is desired", "routes", len(p.decoded.Routes))
		}
	}
	if now := !absent.IsZero(); now != p.absent {
		p.absent = now
		if now {
			p.log.Warn("no controller: routes stay as they are, and follow the forwarder's health", "since", absent)
		} else {
			p.log.Info("the controller is there")
		}
	}
}

// end withdraws everything and ends the sessions.
func (p *process) end() error {
	if err := errors.Join(p.applier.stop(), p.keeper.Close()); err != nil {
		return fmt.Errorf("stop the speaker: %w", err)
	}
	p.log.Info("speaker stopped: everything is withdrawn")
	return nil
}

// state for who asks.
func (p *process) state() *speakerv1.State {
	shown := p.shown.Load()
	state := &speakerv1.State{
		Version: p.options.Version, Pid: uint32(os.Getpid()), Revision: shown.revision, Withheld: shown.withheld, Slow: shown.slow,
		RoutesDesired: uint32(len(shown.desired.GetRoutes())), RoutesAnnounced: uint32(p.applier.announced()),
		Problem: cmp.Or(shown.problem, p.applier.problem()), NotKept: p.keeper.problem(),
	}
	if !shown.absent.IsZero() {
		state.ControllerAbsentSince = timestamppb.New(shown.absent)
	}
	p.owns.describe(state, shown.desired.GetVrrp() != nil)
	for _, n := range p.applier.bgp.States() {
		desired := desiredNeighbor(shown.desired, n.Address)
		state.Neighbors = append(state.Neighbors, &speakerv1.NeighborState{
			Address: n.Address.String(), Asn: n.ASN, State: n.State, Reason: n.Reason, Since: timestamppb.New(n.Since),
			Attributes: attributesOf(shown.want, n.Address), Bfd: bfdOf(desired, n.BFDUp), Ended: n.Ended,
		})
	}
	return state
}

// sessionLog has a line for what is new of a session: that it is established or ended,
// and why it does not come up. Its steps in between, every few seconds, are for debugging.
type sessionLog struct {
	log *slog.Logger

	mu   sync.Mutex
	said map[netip.Addr]string
}

func (l *sessionLog) heard(s bgp.NeighborState) {
	level, news := slog.LevelInfo, s.State
	if !s.Established() && s.Reason != "" {
		level, news = slog.LevelWarn, "down: "+s.Reason
	}
	l.mu.Lock()
	if l.said[s.Address] == news {
		level = slog.LevelDebug
	}
	l.said[s.Address] = news
	l.mu.Unlock()
	l.log.Log(context.Background(), level, "session "+s.State, "neighbor", s.Address, "reason", s.Reason)
}
