package fleet

// Keeps this machine registered while its controller is alive, and updates the registration
// when something changes that others should know.

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

const (
	// How often it is looked whether the machine has changed; so a machine writes
	// at most once in this time.
	describeInterval = time.Second
	// How often rates alone are written, and by how much they must differ: a tenth.
	ratesInterval = 10 * time.Second
	ratesChanged  = 10
	// The key is written anew after this long whatever it holds: it may have been
	// removed, or be that of an older snapshot.
	rewriteInterval = time.Minute
	// How long the end of the lease may take when the controller ends.
	revokeTimeout = time.Second
)

// Registrar writes this machine's key.
type Registrar struct {
	store *Store
	log   *slog.Logger
	// This machine as it is now; nil: not known yet.
	describe func(context.Context) *fleetv1.Machine
	interval time.Duration
	wake     chan struct{}

	// Of Run's goroutine.
	lease     lease
	written   *fleetv1.Machine // last; nil: nothing by this lease
	writtenAt time.Time

	mu      sync.Mutex
	problem string
}

// NewRegistrar writes nothing until Run.
func NewRegistrar(store *Store, log *slog.Logger, describe func(context.Context) *fleetv1.Machine) *Registrar {
	return &Registrar{store: store, log: log, describe: describe, interval: describeInterval, wake: make(chan struct{}, 1), lease: lease{store: store, ttl: leaseTTL}, problem: "it has just started"}
}

// Problem is why the machine is not registered; empty: it is.
func (r *Registrar) Problem() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.problem
}

// Wake has the machine described at once. It does not wait.
func (r *Registrar) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // it is about to be
	}
}

// Run until the context ends; the key goes then.
func (r *Registrar) Run(ctx context.Context) {
	ticker := time.NewTicker(r.interval)
	defer ticker.Stop()
	for {
		if machine := r.describe(ctx); machine != nil {
			r.report(r.update(ctx, machine))
		}
		select {
		case <-ticker.C:
		case <-r.wake:
		case <-ctx.Done():
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
			defer cancel()
			_ = r.lease.end(ctx) // else it ends by itself
			return
		}
	}
}

// update holds the lease and writes the key, if that is due.
func (r *Registrar) update(ctx context.Context, machine *fleetv1.Machine) error {
	isNew, err := r.lease.hold(ctx)
	if err != nil {
		return err
	}
	if isNew {
		r.written = nil
	}
	if !r.isDue(machine, time.Now()) {
		return nil
	}
	if err := r.store.register(ctx, r.lease.id, machine); err != nil {
		return err
	}
	r.written, r.writtenAt = machine, time.Now()
	return nil
}

// isDue: something but rates has changed, or rates by much for long enough.
func (r *Registrar) isDue(machine *fleetv1.Machine, now time.Time) bool {
	if r.written == nil || now.Sub(r.writtenAt) >= rewriteInterval || !proto.Equal(withoutRates(machine), withoutRates(r.written)) {
		return true
	}
	return now.Sub(r.writtenAt) >= ratesInterval &&
		(differs(machine.PacketsPerSecond, r.written.PacketsPerSecond) || differs(machine.BytesPerSecond, r.written.BytesPerSecond))
}

func withoutRates(machine *fleetv1.Machine) *fleetv1.Machine {
	rest := proto.CloneOf(machine)
	rest.PacketsPerSecond, rest.BytesPerSecond, rest.Time = 0, 0, nil
	return rest
}

func differs(a, b uint64) bool { return max(a, b)-min(a, b) > max(a, b)/ratesChanged }

// report a problem once; nothing but the listing of machines depends on it. The
// follower says what is wrong with etcd itself.
func (r *Registrar) report(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	r.mu.Lock()
	former := r.problem
	r.problem = problem
	r.mu.Unlock()
	switch {
	case problem == former:
	case problem == "":
		r.log.Info("this machine is registered in etcd")
	default:
		r.log.Warn("this machine is not registered in etcd: packets and routes go on", "error", problem)
	}
}
