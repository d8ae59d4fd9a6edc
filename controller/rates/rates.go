// Package rates measures the traffic per second, now and over the last hour. The
// forwarder's counters are read once for all clients: each second while somebody watches,
// otherwise every ten seconds, for the last hour.
package rates

import (
	"context"
	"sync"
	"time"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// Source is the forwarder, and what agents say of backends.
type Source struct {
	Counters func(context.Context) (*forwarderv1.GetCountersResponse, error)
	Status   func(context.Context) (*forwarderv1.GetStatusResponse, error)
	// Name of the machine.
	Machine func() string
	// By backend.
	Answers func(context.Context) map[string]*controllerv1.Answers
}

const (
	second = time.Second
	// Too short a time for rates.
	secondMin = second / 2
	// Of the hour.
	pointTime = 10 * time.Second
	// Readings that take longer have failed.
	readTimeout = 5 * time.Second
)

// Rates are those of one forwarder.
type Rates struct {
	source Source

	mu       sync.Mutex
	watchers int
	// The first of several watchers came.
	woken chan struct{}
	// What was read last is another, and this channel is closed then.
	latest   *controllerv1.Rates
	counters *forwarderv1.GetCountersResponse
	changed  chan struct{}
	hour     hour
}

// New knows nothing yet.
func New(source Source) *Rates {
	return &Rates{source: source, woken: make(chan struct{}, 1), changed: make(chan struct{})}
}

// Run reads the counters until the context ends.
func (r *Rates) Run(ctx context.Context) {
	var ofSecond, ofPoint *reading
	for {
		now, err := r.read(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.tell(&controllerv1.Rates{Problem: err.Error()})
			r.setCounters(nil)
			ofSecond = nil
		case ofSecond != nil && now.at.Sub(ofSecond.at) < secondMin:
		default:
			if ofSecond != nil && r.isWatched() {
				rates := between(ofSecond, now)
				r.addAnswers(ctx, rates.Backends)
				r.tell(rates)
			}
			ofSecond = now
			r.setCounters(now.counters)
			if ofPoint == nil || now.at.Sub(ofPoint.at) >= pointTime {
				r.keep(ofPoint, now)
				ofPoint = now
			}
		}
		r.wait(ctx, ofPoint)
	}
}

// wait until the next reading is due: at once for the first who watches.
func (r *Rates) wait(ctx context.Context, ofPoint *reading) {
	for {
		select {
		case <-time.After(second):
		case <-r.woken:
			return
		case <-ctx.Done():
			return
		}
		if r.isWatched() || ofPoint == nil || time.Since(ofPoint.at) >= pointTime {
			return
		}
	}
}

func (r *Rates) read(ctx context.Context) (*reading, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	counters, err := r.source.Counters(ctx)
	if err != nil {
		return nil, err
	}
	now := newReading(time.Now(), counters)
	if r.isWatched() {
		status, err := r.source.Status(ctx)
		if err != nil {
			return nil, err
		}
		now.threads = status.GetThreads()
	}
	return now, nil
}

// addAnswers to backends whose agents measure them.
func (r *Rates) addAnswers(ctx context.Context, backends []*controllerv1.Rate) {
	answers := r.source.Answers(ctx)
	for _, backend := range backends {
		backend.Answers = answers[backend.Backend]
	}
}

func (r *Rates) isWatched() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.watchers > 0
}

// tell all who watch.
func (r *Rates) tell(rates *controllerv1.Rates) {
	machine := r.source.Machine()
	r.mu.Lock()
	defer r.mu.Unlock()
	rates.Machine = machine
	r.latest = rates
	close(r.changed)
	r.changed = make(chan struct{})
}

// Watch gives what happens per second, each second anew, until the context or take ends it.
// What take gets is not to be changed; who takes longer than a second misses some.
func (r *Rates) Watch(ctx context.Context, take func(*controllerv1.Rates) error) error {
	changed := r.enter()
	defer r.leave()
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		r.mu.Lock()
		latest := r.latest
		changed = r.changed
		r.mu.Unlock()
		if err := take(latest); err != nil {
			return err
		}
	}
}

// Attend has the counters read each second, as Watch does, until leave is called, once.
func (r *Rates) Attend() (leave func()) {
	r.enter()
	return r.leave
}

// Latest is what is known now: rates of the last second while somebody watches, else of the
// last ten; nil before the second reading. The counters are those that were read last; nil:
// none, or the forwarder does not answer. Neither is to be changed.
func (r *Rates) Latest() (*controllerv1.Rates, *forwarderv1.GetCountersResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latest, r.counters
}

func (r *Rates) setCounters(counters *forwarderv1.GetCountersResponse) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counters = counters
}

func (r *Rates) enter() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers++
	if r.watchers == 1 {
		select {
		case r.woken <- struct{}{}:
		default: // it is on its way already
		}
	}
	return r.changed
}

func (r *Rates) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers--
}
