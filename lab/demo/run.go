package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/guideway/guideway/lab"
)

// ErrNotAsExpected is what Run returns when it went through and something
// broke that should not have.
var ErrNotAsExpected = errors.New("demo: not everything went as expected")

// Run the demo: lab, events, result. The lab is gone when it returns.
func Run(ctx context.Context, o Options) (err error) {
	o, err = o.check()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	if err := lab.RemoveLeftovers(filepath.Dir(lab.DefaultRunDir("demo"))); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	screen := newScreen(o.Output)
	screen.step("build %d load balancers, %d backends and one to spare; seed %d", o.LoadBalancers, o.Backends, o.Seed)
	if o.Name == "" {
		o.Name = fmt.Sprintf("demo-%d", os.Getpid())
	}
	running, err := lab.Up(ctx, lab.Options{
		Name: o.Name, BinDir: o.BinDir, LoadBalancers: o.LoadBalancers, Backends: o.Backends, Spares: 1,
	}, true)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, takeDown(ctx, running, screen, err == nil)) }()
	report := &Report{Events: []EventResult{}, Shares: []Share{}, machines: running.LoadBalancers()}
	if err := performAll(ctx, o, running, screen, report); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	report.duration = time.Since(screen.begun)
	report.print(o.Output)
	if o.Report != "" {
		if err := report.write(o.Report); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	if !report.Good() {
		return ErrNotAsExpected
	}
	return nil
}

// takeDown the lab; logs stay where something went wrong by itself.
func takeDown(ctx context.Context, running *lab.Lab, screen *screen, good bool) error {
	down := running.Down
	if !good && ctx.Err() == nil {
		down = running.DownKeepingLogs
		screen.step("configs and logs are kept in %s", running.Options().RunDir)
	}
	if err := down(); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	return nil
}

func performAll(ctx context.Context, o Options, running *lab.Lab, screen *screen, report *Report) error {
	router, err := running.OpenRouter()
	if err != nil {
		return err
	}
	defer router.Close()
	for i, name := range o.Events {
		e, _ := findEvent(name)
		screen.begin(name)
		s := &stage{
			options: o, lab: running, router: router, screen: screen, report: report,
			random: rand.New(rand.NewPCG(o.Seed, uint64(i))),
			block:  i%250 + 1, meter: newMeter(running),
			result: EventResult{Name: name},
		}
		if err := s.perform(ctx, e); err != nil {
			screen.unfollow()
			return fmt.Errorf("event %s: %w", name, err)
		}
		report.Events = append(report.Events, s.result)
	}
	return nil
}
