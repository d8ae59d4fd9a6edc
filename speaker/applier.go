package speaker

// The applier makes BGP follow the newest desired state. It has its own goroutine, so that a
// slow BGP library cannot delay the detection of a dead forwarder.

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/guideway/guideway/speaker/bgp"
)

// What could not be announced is tried again this often.
const applyRetry = time.Second

type applier struct {
	log   *slog.Logger
	bgp   *bgp.Speaker
	wake  chan struct{}
	ended chan struct{}

	mu   sync.Mutex
	want bgp.Desired
	done bool // BGP has what is wanted
	halt bool
	// Routes that were announced by the latest Set, and what it did not achieve.
	routes int
	failed string
}

func newApplier(log *slog.Logger, bgp *bgp.Speaker) *applier {
	return &applier{log: log, bgp: bgp, wake: make(chan struct{}, 1), ended: make(chan struct{}), done: true}
}

// set what is wanted; the same again is nothing new.
func (a *applier) set(want bgp.Desired) {
	a.mu.Lock()
	same := a.want.Equal(want)
	if !same {
		a.want, a.done = want, false
	}
	a.mu.Unlock()
	if !same {
		a.poke()
	}
}

func (a *applier) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *applier) announced() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.routes
}

func (a *applier) problem() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failed
}

func (a *applier) run(ctx context.Context) {
	defer close(a.ended)
	retry := time.NewTicker(applyRetry)
	defer retry.Stop()
	for {
		select {
		case <-a.wake:
		case <-retry.C:
		case <-ctx.Done():
			return
		}
		if a.once(ctx) {
			return
		}
	}
}

// once brings about the wanted state and reports whether to end.
func (a *applier) once(ctx context.Context) (end bool) {
	a.mu.Lock()
	want, done, halt := a.want, a.done, a.halt
	a.done = true
	a.mu.Unlock()
	if done || halt {
		return halt
	}
	err := a.bgp.Set(ctx, want)
	routes, failed := len(want.Routes), ""
	if err != nil {
		routes, failed = len(a.bgp.Announced()), err.Error()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if failed != "" && failed != a.failed {
		a.log.Error("BGP, trying again", "error", failed)
	}
	a.routes, a.failed = routes, failed
	if err != nil {
		a.done = false
	}
	return false
}

// stop withdraws everything and ends the sessions.
func (a *applier) stop() error {
	a.mu.Lock()
	a.halt = true
	a.mu.Unlock()
	a.poke()
	<-a.ended
	return a.bgp.Stop()
}
