// Package prober probes backends, each on its own schedule.
//
//	Set(probes) ─► one schedule per probe ─► slot ─► attempt ─► Results()
//
// It is a sink: Set takes all desired probes and determines the difference from the running
// ones; a probe that stays keeps its schedule, and equal probes are merged. It judges a
// single probe only; the brain applies rise and fall, and decides what follows from a
// verdict.
package prober

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/guideway/guideway/controller/check"
	"github.com/guideway/guideway/controller/compile"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Result is the outcome of one probe.
type Result struct {
	Probe compile.Probe
	OK    bool
	// Why it failed, or what was answered; for people.
	Reason string
	// Of a probe that passed.
	Answer   check.Answer
	Duration time.Duration
	// This machine could not send it: no verdict. Reason says why.
	Unsent bool
	// How long after it was due it started.
	Delay time.Duration
}

const (
	// Probes under way at once: each holds a socket. Targets beyond it wait
	// for a slot, at most one interval, and are then counted as Late. A probe
	// lasts a timeout at most, so even when every backend hangs, this many
	// start per timeout (4,096 at the default of 500 ms: 8,192 a second).
	probesMax = 4096
	// Schedules spread by this share of the interval, so that probes of many
	// targets do not come in step.
	jitter = 0.1
	// The first probes of a new set are spread over this time.
	startSpread = 100 * time.Millisecond
	// Probes beside the schedules, at once, and how often one that could not be sent is
	// tried again.
	onceMax   = 256
	onceTries = 5
	oncePause = 50 * time.Millisecond
)

// Prober runs the schedules.
type Prober struct {
	ask     func(context.Context, compile.Probe) (check.Answer, error)
	tunnels *tunnelProber
	results chan Result
	slots   chan struct{}
	late    atomic.Uint64

	mu      sync.Mutex
	running map[compile.Probe]context.CancelFunc
	group   sync.WaitGroup
}

// New makes a prober without targets.
func New() *Prober {
	ask := func(ctx context.Context, p compile.Probe) (check.Answer, error) {
		return p.Check.Probe(ctx, check.Dialer{Address: p.Address})
	}
	return newProber(ask, probesMax)
}

func newProber(ask func(context.Context, compile.Probe) (check.Answer, error), slots int) *Prober {
	return &Prober{
		ask:     ask,
		tunnels: newTunnelProber(),
		results: make(chan Result, 256),
		slots:   make(chan struct{}, slots),
		running: map[compile.Probe]context.CancelFunc{},
	}
}

// Results is where every probe's outcome comes; the caller must read it.
func (p *Prober) Results() <-chan Result { return p.results }

// Late counts the probes that were left out because no slot was free.
func (p *Prober) Late() uint64 { return p.late.Load() }

// Set starts what is new and stops what is no longer wanted. A result of a
// stopped target may still come.
func (p *Prober) Set(want []compile.Probe) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := make(map[compile.Probe]bool, len(want))
	for _, t := range want {
		wanted[t] = true
	}
	for t, stop := range p.running {
		if !wanted[t] {
			stop()
			delete(p.running, t)
		}
	}
	for t := range wanted {
		if p.running[t] == nil {
			p.start(t)
		}
	}
}

// SetProbing takes the tunnels of the plan that a healthy forwarder runs; nil:
// none. What goes through others waits, or is Unsent. Not to be called by several
// at once.
func (p *Prober) SetProbing(probing *planv1.Probing) { p.tunnels.set(probing) }

// Stop ends every schedule and waits for the probes under way.
func (p *Prober) Stop() {
	p.Set(nil)
	p.group.Wait()
}

func (p *Prober) start(t compile.Probe) {
	ctx, stop := context.WithCancel(context.Background())
	p.running[t] = stop
	p.group.Go(func() { p.schedule(ctx, t) })
}

func (p *Prober) schedule(ctx context.Context, t compile.Probe) {
	due := time.Now().Add(rand.N(min(t.Interval, startSpread)))
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		started := time.Now()
		p.once(ctx, t, due)
		due = started.Add(spread(t.Interval))
		if now := time.Now(); due.Before(now) {
			due = now
		}
		timer.Reset(time.Until(due))
	}
}

// once waits for a slot, probes and reports.
func (p *Prober) once(ctx context.Context, t compile.Probe, due time.Time) {
	if t.Tunnel.End.IsValid() {
		p.tunnels.await(ctx, t) // without a slot, which direct probes may need
	}
	timeout := time.NewTimer(t.Interval)
	defer timeout.Stop()
	select {
	case p.slots <- struct{}{}:
	case <-timeout.C:
		p.late.Add(1)
		return
	case <-ctx.Done():
		return
	}
	delay := time.Since(due)
	result := p.attempt(ctx, t)
	result.Delay = delay
	<-p.slots
	if ctx.Err() != nil {
		return // stopped while under way: its failure may be our own doing
	}
	select {
	case p.results <- result:
	case <-ctx.Done():
	}
}

// Once tries each of these probes, onceMax at a time, until ctx ends; results are in their order.
func (p *Prober) Once(ctx context.Context, probes []compile.Probe) []Result {
	results := make([]Result, len(probes))
	var group errgroup.Group
	group.SetLimit(onceMax)
	for i, probe := range probes {
		group.Go(func() error {
			results[i] = p.tryOnce(ctx, probe)
			return nil
		})
	}
	_ = group.Wait() // none fails
	return results
}

// tryOnce. Where a scheduled probe of the same VIP and backend, which has the same source
// port, is under way, this one waits.
func (p *Prober) tryOnce(ctx context.Context, probe compile.Probe) Result {
	result := Result{Probe: probe, Unsent: true, Reason: "there was no time for it"}
	for try := 0; try < onceTries && result.Unsent; try++ {
		tried := p.attempt(ctx, probe)
		if ctx.Err() != nil {
			break // its failure may be our own doing
		}
		if result = tried; result.Unsent {
			time.Sleep(oncePause)
		}
	}
	return result
}

func (p *Prober) attempt(ctx context.Context, t compile.Probe) Result {
	if t.Tunnel.End.IsValid() {
		return p.tunnels.attempt(ctx, t)
	}
	ctx, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	started := time.Now()
	answer, err := p.ask(ctx, t)
	result := Result{Probe: t, OK: err == nil, Reason: answer.Text, Answer: answer, Duration: time.Since(started)}
	if err != nil {
		result.Reason = check.Reason(err, t.Timeout)
	}
	return result
}

// spread draws an interval within the jitter on both sides.
func spread(interval time.Duration) time.Duration {
	return time.Duration(float64(interval) * (1 + jitter*(2*rand.Float64()-1)))
}
