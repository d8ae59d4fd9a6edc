package blackbox

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/check"
)

// Settings of a prober.
type Settings struct {
	// From how many source ports each target is tried in a round.
	SourcePorts int
	// From the beginning of a round to that of the next.
	Interval time.Duration
	// Of one attempt.
	Timeout time.Duration
	// Where source ports are drawn from.
	Ports PortRange
}

// Limits.
const (
	// Attempts under way at once, of all targets: each holds a socket and a
	// goroutine, together some 20 MiB. Others wait for one to end.
	attemptsMax    = 2048
	sourcePortsMax = 1024
	intervalMin    = time.Second
)

// Check settings for a number of targets: the error names the option and the cure.
func (s Settings) Check(targets int) error {
	switch {
	case s.SourcePorts < 1 || s.SourcePorts > sourcePortsMax:
		return fmt.Errorf("--source-ports is %d: give 1 to %d", s.SourcePorts, sourcePortsMax)
	case s.SourcePorts > s.Ports.size():
		return fmt.Errorf("--source-ports is %d, and this machine has %d for clients (net.ipv4.ip_local_port_range): give fewer", s.SourcePorts, s.Ports.size())
	case s.Interval < intervalMin:
		return fmt.Errorf("--interval is %v: give at least %v", s.Interval, intervalMin)
	case s.Timeout <= 0 || s.Timeout > s.Interval/2:
		return fmt.Errorf("--timeout is %v: give more than 0 and at most half of --interval (%v), so that a round ends before the next begins", s.Timeout, s.Interval/2)
	}
	// When no attempt is answered, each holds its place for the timeout.
	if most := int(attemptsMax * s.Interval / s.Timeout); targets*s.SourcePorts > most {
		return fmt.Errorf("%d targets from %d source ports each are more attempts than the %d that fit into %v when none is answered: raise --interval, lower --timeout or --source-ports, or give fewer targets", targets, s.SourcePorts, most, s.Interval)
	}
	return nil
}

// Prober tries its targets.
type Prober struct {
	log      *slog.Logger
	settings Settings
	targets  []Target
	metrics  *Metrics
	slots    chan struct{}
	try      func(ctx context.Context, target Target, port uint16) (check.Answer, error)
}

// New makes a prober; the settings are good for the targets.
func New(log *slog.Logger, settings Settings, targets []Target, metrics *Metrics) *Prober {
	return &Prober{log: log, settings: settings, targets: targets, metrics: metrics, slots: make(chan struct{}, attemptsMax), try: try}
}

// Once does one round of each target, all at once. An error: the context ended.
func (p *Prober) Once(ctx context.Context) ([]Round, error) {
	rounds := make([]Round, len(p.targets))
	var group sync.WaitGroup
	for i, target := range p.targets {
		group.Go(func() { rounds[i], _ = p.round(ctx, target) })
	}
	group.Wait()
	return rounds, ctx.Err()
}

// Run rounds until the context ends; what changes is logged.
func (p *Prober) Run(ctx context.Context) {
	var group sync.WaitGroup
	for _, target := range p.targets {
		group.Go(func() { p.follow(ctx, target) })
	}
	group.Wait()
}

func (p *Prober) follow(ctx context.Context, target Target) {
	said := change{}
	// Spread, so that targets' rounds do not come in step.
	next := time.NewTimer(rand.N(min(p.settings.Interval, time.Second)))
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		begun := time.Now()
		round, err := p.round(ctx, target)
		if err != nil {
			return
		}
		said = p.say(said, round)
		next.Reset(max(0, p.settings.Interval-time.Since(begun)))
	}
}

// change is what was logged of a target last.
type change struct {
	round Round
	// Since when it has not been answered in full; zero: it is.
	failing time.Time
	warning string
}

// say what changed since then.
func (p *Prober) say(last change, round Round) change {
	now := change{round: round, failing: last.failing, warning: round.Warning}
	log := p.log.With("target", round.Target.Title())
	if round.Target.Service != "" {
		log = log.With("service", round.Target.Service)
	}
	if round.Warning != "" && round.Warning != last.warning {
		log.Warn("answered, with a warning", "warning", round.Warning)
	}
	if !round.differs(last.round) {
		now.round = last.round
		return now
	}
	if round.reach() == reachFull {
		now.failing = time.Time{}
	} else if last.failing.IsZero() {
		now.failing = round.Ended
	}
	sayReach(log, last, round)
	return now
}

func sayReach(log *slog.Logger, last change, round Round) {
	failed := fmt.Sprintf("%d of %d", round.Failed(), round.Tried)
	switch reach := round.reach(); {
	case reach == reachFull && last.failing.IsZero():
		log.Info("every source port is answered", "source_ports", round.Tried, "median", round.Quantile(0.5))
	case reach == reachFull:
		log.Info("every source port is answered again", "source_ports", round.Tried, "failed_for", round.Ended.Sub(last.failing).Round(time.Second))
	case reach == reachNone:
		log.Error("no source port is answered", "source_ports", round.Tried, "reason", round.Reason(), "hint", round.Hint())
	default:
		log.Warn("a share of the source ports fails", "failed", failed, "reason", round.Reason(), "hint", round.Hint())
	}
}
