package fleet

// Follows `current`. It is read every few seconds, and whenever a watch reports a change.
// The watch makes this fast; the reads make it reliable, because a watch may lag behind a
// compaction, be cut off, or belong to an etcd that was restored.

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

const (
	// How often `current` is read beside the watch.
	readInterval = 5 * time.Second
	// Without a reading that succeeds, etcd counts as away after this long: one
	// that fails may be an endpoint's.
	awayAfter = 2*readInterval + requestTimeout
	// Between a watch that ends and the next reading.
	watchPause = 200 * time.Millisecond
	// Between a reading that fails and the next.
	failurePause = time.Second
)

// Status of the connection, for people and metrics.
type Status struct {
	// Why etcd counts as away; empty: it answers.
	Away string
	// Why what it answered cannot be used; empty: it can, or it is away.
	Unusable string
	// When it answered last; zero: never.
	AnsweredAt time.Time
	// Alarms of the member that answered, NOSPACE among them.
	Alarms []string
	// What this machine is to run, as read last; nil: etcd holds no config.
	Current *fleetv1.Current
	// What one machine alone is to run; nil: all the same.
	Canary *fleetv1.Canary
	// How often etcd turned out to be another one, or one restored.
	Restored uint64
}

// Events are called one at a time, from the follower's goroutine.
type Events struct {
	// This machine's name; empty: not known yet.
	Machine func() string
	// Take a config that this machine is to run.
	Take func(*Config)
	// Check a candidate, without waiting for the outcome; called once for each.
	Check func(candidate *fleetv1.Candidate, revision int64)
	// Tell people that etcd's state changed.
	Tell func(from, to, cause string)
}

// States of etcd, as people are told them.
const (
	stateAnswers  = "answers"
	stateLost     = "lost"
	stateAlarmed  = "alarmed"
	stateUnusable = "unusable" // what it holds as the config
	stateRestored = "restored"

	allWell = "it has no alarm, and its config can be read"
)

// Follower hands on each config that this machine is to run, and each candidate.
type Follower struct {
	store   *Store
	log     *slog.Logger
	events  Events
	started time.Time
	// Between two readings.
	interval time.Duration

	mu     sync.Mutex
	status Status // Away: why the last reading failed, however short ago

	// Of the follower's goroutine.
	state, cause string             // as told last
	seen         Seen               // read last
	taken        *fleetv1.Current   // handed on last
	checked      int64              // revision of the candidate handed on last
	watch        clientv3.WatchChan // nil: none
	stop         context.CancelFunc // of the watch
}

// NewFollower that knows already what runs; nil: nothing does.
func NewFollower(store *Store, log *slog.Logger, running *fleetv1.Current, events Events) *Follower {
	return &Follower{store: store, log: log, events: events, taken: running, started: time.Now(), interval: readInterval, state: stateAnswers, cause: allWell, stop: func() {}}
}

// Status now.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	status := f.status
	if !f.isAway() {
		status.Away = ""
	}
	return status
}

// isAway: without an answer for long enough, from the start where there was none.
func (f *Follower) isAway() bool {
	last := f.status.AnsweredAt
	if last.IsZero() {
		last = f.started
	}
	return f.status.Away != "" && time.Since(last) >= awayAfter
}

// Run until the context ends.
func (f *Follower) Run(ctx context.Context) {
	defer func() { f.endWatch() }()
	for ctx.Err() == nil {
		seen, err := f.store.See(ctx)
		if err != nil {
			f.failed(err)
			pause(ctx, failurePause)
			continue
		}
		f.take(ctx, seen)
		f.wait(ctx)
	}
}

// take what was read, and hand on a config that is new.
func (f *Follower) take(ctx context.Context, seen Seen) {
	f.startOver(seen)
	f.seen = seen
	next := seen.For(f.events.Machine(), f.taken)
	f.answered(next, seen.Canary, f.store.alarms(ctx))
	f.watchFrom(ctx, seen)
	if seen.Candidate != nil && seen.CandidateRevision != f.checked {
		f.checked = seen.CandidateRevision
		f.events.Check(seen.Candidate, seen.CandidateRevision)
	}
	if next == nil || isSame(next, f.taken) {
		f.unusable(nil)
		return
	}
	if isJump(f.taken, next) { // it may have no text
		f.unusable(CheckNext(f.taken, next))
		return
	}
	config, err := f.store.Fetch(ctx, next)
	f.unusable(err)
	if err == nil {
		f.taken = next
		f.events.Take(config)
	}
}

// isSame config; how many parts it has is known of what etcd holds only.
func isSame(a, b *fleetv1.Current) bool {
	return a.GetGeneration() == b.GetGeneration() && a.GetDigest() == b.GetDigest()
}

// failed reading: with a new connection everything is read anew, addresses,
// certificates, password.
func (f *Follower) failed(err error) {
	f.endWatch()
	f.store.Close()
	f.mu.Lock()
	f.status.Away, f.status.Unusable = err.Error(), ""
	isAway := f.isAway()
	f.mu.Unlock()
	if isAway && f.state != stateLost {
		f.become(stateLost, "the running configuration stays in use: "+err.Error())
	}
}

// become that state of etcd, and tell people if it is another, or by another cause.
func (f *Follower) become(state, cause string) {
	if state != f.state || cause != f.cause {
		f.events.Tell(f.state, state, cause)
		f.state, f.cause = state, cause
	}
}

func (f *Follower) answered(next *fleetv1.Current, canary *fleetv1.Canary, alarms []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Away, f.status.AnsweredAt, f.status.Alarms, f.status.Current = "", time.Now(), alarms, next
	f.status.Canary = canary
}

// unusable notes why the config cannot be had; nil: it can. It is the last of a reading.
func (f *Follower) unusable(err error) {
	f.mu.Lock()
	f.status.Unusable = ""
	if err != nil {
		f.status.Unusable = err.Error()
	}
	status := f.status
	f.mu.Unlock()
	switch {
	case status.Unusable != "":
		f.become(stateUnusable, "the config in it cannot be read, the one that runs goes on: "+status.Unusable)
	case len(status.Alarms) > 0:
		f.become(stateAlarmed, strings.Join(status.Alarms, ", "))
	default:
		f.become(stateAnswers, allWell)
	}
}

// startOver where revisions do not continue those seen before.
func (f *Follower) startOver(seen Seen) {
	if f.seen.clusterID == 0 || seen.clusterID == f.seen.clusterID && seen.revision >= f.seen.revision {
		return
	}
	f.become(stateRestored, fmt.Sprintf("it is another cluster than before, or was restored, and its config is looked at anew: cluster %x at revision %d, after %x at %d",
		seen.clusterID, seen.revision, f.seen.clusterID, f.seen.revision))
	f.endWatch()
	f.mu.Lock()
	f.status.Restored++
	f.mu.Unlock()
}

// watchFrom the revision after what was seen, if there is no watch.
func (f *Follower) watchFrom(ctx context.Context, seen Seen) {
	if f.watch != nil {
		return
	}
	client, err := f.store.client()
	if err != nil {
		return // the next reading says so
	}
	ctx, f.stop = context.WithCancel(clientv3.WithRequireLeader(ctx))
	f.watch = client.Watch(ctx, f.store.keys.current(), clientv3.WithRev(seen.revision+1))
}

func (f *Follower) endWatch() {
	f.stop()
	f.stop, f.watch = func() {}, nil
}

// wait until the watch reports something, or until the next reading is due.
func (f *Follower) wait(ctx context.Context) {
	timer := time.NewTimer(f.interval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case news, open := <-f.watch: // of none, never
		if !open || news.Err() != nil {
			f.log.Debug("the watch ended and is begun anew", "error", news.Err())
			f.endWatch()
			pause(ctx, watchPause)
		}
	}
}

func pause(ctx context.Context, duration time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
}

// alarms of the member that answers; none where it does not say.
func (s *Store) alarms(ctx context.Context) []string {
	client, err := s.client()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	status, err := pb.NewMaintenanceClient(client.ActiveConnection()).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return nil
	}
	return status.Errors
}
