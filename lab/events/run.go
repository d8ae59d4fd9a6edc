package events

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/report"
	"github.com/guideway/guideway/lab/topology"
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
	screen, err := begin(&o, "demo")
	if err != nil {
		return err
	}
	screen.Step("build %d load balancers, %d backends and one to spare; seed %d", o.LoadBalancers, o.Backends, o.Seed)
	outcome := &report.Report{Agents: o.Agents, Events: []report.EventResult{}, Shares: []report.Share{}, Whole: report.Whole{LeftOut: o.leftOut}}
	for _, stateless := range []bool{false, true} {
		if err := runOne(ctx, o, stateless, screen, outcome); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	outcome.Duration = time.Since(screen.Begun)
	err = conclude(o, outcome, outcome.Kept)
	if o.Picture != "" {
		err = errors.Join(err, outcome.WritePicture(o.Picture))
	}
	return err
}

// begin a demo: what others left behind is removed, and its lab has a name.
func begin(o *Options, name string) (*report.Screen, error) {
	if err := hosts.RemoveLeftovers(filepath.Dir(hosts.DefaultRunDir("demo"))); err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	if o.Name == "" {
		o.Name = fmt.Sprintf("%s-%d", name, os.Getpid())
	}
	return report.NewScreen(o.Output), nil
}

// conclude a demo: its result on the screen and in a file. An error names the directories
// that were kept.
func conclude(o Options, outcome interface {
	Print(io.Writer)
	Write(path string) error
	Good() bool
}, kept []string) error {
	outcome.Print(o.Output)
	if o.Report != "" {
		if err := outcome.Write(o.Report); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
	}
	if !outcome.Good() {
		return fmt.Errorf("%w; configs and logs are in %s", ErrNotAsExpected, strings.Join(kept, " and "))
	}
	return nil
}

// runOne lab, of stateful services or of stateless ones, with its events.
func runOne(ctx context.Context, o Options, stateless bool, screen *report.Screen, outcome *report.Report) (err error) {
	if !slices.ContainsFunc(o.Events, func(name string) bool { return isStateless(name) == stateless }) {
		return nil
	}
	if stateless {
		screen.Step("build a lab with stateless services")
	}
	running, err := hosts.Up(ctx, o.topology(stateless), true)
	if err != nil {
		return err
	}
	defer func() { err = takeDown(ctx, running, err, outcome.Good(), &outcome.Whole) }()
	outcome.Machines, outcome.ChecksumErrors = running.LoadBalancers(), 0 // this lab's kernels have seen none yet
	return performAll(ctx, o, stateless, running, screen, outcome)
}

func isStateless(name string) bool {
	e, _ := findEvent(name)
	return e.stateless
}

// topology of the lab that the events happen to.
func (o Options) topology(stateless bool) topology.Options {
	name := o.Name
	if stateless {
		name += "-stateless" // the other lab's logs may be kept
	}
	t := topology.Options{
		Name: name, BinDir: o.BinDir, LoadBalancers: o.LoadBalancers, Backends: o.Backends, Spares: 1, Router: o.Router,
	}
	if o.Agents {
		t.Encap, t.SecondChance, t.Stateless = "geneve", !stateless, stateless
	}
	return t
}

// takeDown the lab after err, if that is not nil. Where something went wrong by itself,
// configs and logs are kept.
func takeDown(ctx context.Context, running interface {
	Options() topology.Options
	Down() error
	DownKeepingLogs() error
}, err error, good bool, whole *report.Whole) error {
	if ctx.Err() != nil || err == nil && good {
		return errors.Join(err, running.Down())
	}
	directory := running.Options().RunDir
	whole.Kept = append(whole.Kept, directory)
	if err != nil {
		err = fmt.Errorf("%w; configs and logs are in %s", err, directory)
	}
	return errors.Join(err, running.DownKeepingLogs())
}

func performAll(ctx context.Context, o Options, stateless bool, running *hosts.Lab, screen *report.Screen, outcome *report.Report) error {
	router, err := running.Network.OpenRouter()
	if err != nil {
		return err
	}
	defer router.Close()
	for i, name := range o.Events {
		e, _ := findEvent(name)
		if e.stateless != stateless {
			continue
		}
		screen.Begin(e.words)
		s := &stage{
			options: o, lab: running, router: router, screen: screen, report: outcome,
			random: rand.New(rand.NewPCG(o.Seed, uint64(i))),
			block:  i%250 + 1, meter: newMeter(running),
			result: report.EventResult{Name: name, Remarks: report.Remarks{Words: e.words, May: e.may}},
		}
		if err := s.perform(ctx, e); err != nil {
			screen.Unfollow()
			return fmt.Errorf("event %s: %w", name, err)
		}
		outcome.Events = append(outcome.Events, s.result)
	}
	return nil
}
