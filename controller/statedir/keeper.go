package statedir

// The keeper writes what must survive a restart, in a goroutine of its own: a disk may be slow,
// full or hang, and no decision waits for it.
//
// Each thing that is kept has a name. Of one that changes again before it is written, only the
// latest value is, in the former one's turn. What fails is tried again until it succeeds or a newer
// value takes its place.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// A full disk may have room again after this time.
	keepRetry = 5 * time.Second
	// From then on people are told that the disk is slow.
	keepSlow = 5 * time.Second
	// How long a command waits for the disk, and an end.
	keepTimeout = 10 * time.Second
)

type Keeper struct {
	pause time.Duration // from the begin of one try to the next
	wake  chan struct{} // something is due, or it ends
	ended chan struct{}

	mu sync.Mutex
	// In the order in which they came.
	waiting []*kept
	writing *kept     // nil: nothing is
	began   time.Time // the latest try
	closed  bool
}

// kept is a value on its way to the disk.
type kept struct {
	name  string
	write func() error
	tell  Tell
	// Of those who wait for the next try of it, or of a value that takes its place.
	await []chan<- error
	since time.Time
	// Of the last try, of this value or one before; nil: there was none.
	problem error
	// Of the next try; zero: there was none yet.
	due time.Time
}

// NewKeeper leaves at least this pause between the begins of two tries, but for the last ones.
func NewKeeper(pause time.Duration) *Keeper {
	k := &Keeper{pause: pause, wake: make(chan struct{}, 1), ended: make(chan struct{})}
	go k.run()
	return k
}

// Tell what a try of a value had as result: of the first one, and of later ones if they have
// another. isNew: it is another than the latest of this name. In the keeper's goroutine.
type Tell func(err error, isNew bool)

// TellLog has why something is not on disk in the log, once for each reason.
func TellLog(log *slog.Logger, message string, args ...any) Tell {
	return func(err error, isNew bool) {
		if err != nil && isNew {
			log.Error(message, append(args, "error", err)...)
		}
	}
}

// Keep a value in place of the former one of this name.
func (k *Keeper) Keep(name string, write func() error, tell Tell) {
	next := &kept{name: name, write: write, tell: tell, since: time.Now()}
	k.mu.Lock()
	if i := slices.IndexFunc(k.waiting, next.isOf); i >= 0 {
		former := k.waiting[i]
		next.await, next.since, next.problem = former.await, former.since, former.problem
		k.waiting[i] = next
	} else {
		k.waiting = append(k.waiting, next)
	}
	k.mu.Unlock()
	k.awake()
}

// Settle waits until all that is to be kept now has been tried, but at most for so long, and not
// at all while the disk has not answered for longer than that.
func (k *Keeper) Settle(most time.Duration) {
	tried := make(chan error, 1)
	k.mu.Lock()
	last := k.writing
	isHanging := last != nil && time.Since(k.began) >= most
	for _, w := range k.waiting {
		if w.due.IsZero() {
			last = w
		}
	}
	if last == nil || isHanging {
		k.mu.Unlock()
		return
	}
	last.await = append(last.await, tried)
	k.mu.Unlock()
	select {
	case <-tried:
	case <-time.After(most):
	}
}

func (w *kept) isOf(other *kept) bool { return other.name == w.name }

func (k *Keeper) awake() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Await that the latest value of a name is on disk; an error says why it is not, and is tried
// again.
func (k *Keeper) Await(ctx context.Context, name string) error {
	result := make(chan error, 1)
	k.mu.Lock()
	w := k.latest(name)
	if w == nil {
		k.mu.Unlock()
		return nil
	}
	if w != k.writing && !w.due.IsZero() {
		defer k.mu.Unlock()
		return w.problem
	}
	w.await = append(w.await, result)
	k.mu.Unlock()
	select {
	case err := <-result:
		return err
	case <-time.After(keepTimeout):
		return fmt.Errorf("it is in effect, but would be lost by a restart: the disk has not taken it for %v", keepTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// latest value of a name that is not on disk yet; nil: there is none. With the lock.
func (k *Keeper) latest(name string) *kept {
	for _, w := range slices.Backward(append([]*kept{k.writing}, k.waiting...)) {
		if w != nil && w.name == name {
			return w
		}
	}
	return nil
}

// Problem of a name: why its latest value is not on disk; empty: it is, or soon will be.
func (k *Keeper) Problem(name string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	w := k.latest(name)
	switch {
	case w == nil:
	case w.problem != nil:
		return w.problem.Error()
	case time.Since(w.since) >= keepSlow:
		return fmt.Sprintf("the disk has not taken it for %v", time.Since(w.since).Round(time.Second))
	}
	return ""
}

// Close tries once more what waits; an error names what the disk did not take.
func (k *Keeper) Close() error {
	k.mu.Lock()
	k.closed = true
	for _, w := range k.waiting {
		w.due = time.Time{}
	}
	k.mu.Unlock()
	k.awake()
	select {
	case <-k.ended:
	case <-time.After(keepTimeout):
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var problems []error
	for _, w := range append([]*kept{k.writing}, k.waiting...) {
		if w != nil {
			problems = append(problems, fmt.Errorf("%s is not on disk for the next start: %w", w.name, cmp.Or(w.problem, errHangs)))
		}
	}
	return errors.Join(problems...)
}

var errHangs = errors.New("the disk does not answer")

func (k *Keeper) run() {
	defer close(k.ended)
	for {
		next, pause, ends := k.next()
		switch {
		case ends:
			return
		case next == nil:
			select {
			case <-k.wake:
			case <-time.After(pause):
			}
		default:
			k.try(next)
		}
	}
}

// next to be written, or how long nothing is.
func (k *Keeper) next() (next *kept, pause time.Duration, ends bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pause = keepRetry
	rest := time.Until(k.began.Add(k.pause))
	if k.closed {
		rest = 0
	}
	for i, w := range k.waiting {
		wait := max(time.Until(w.due), rest)
		if wait <= 0 {
			k.waiting = slices.Delete(k.waiting, i, i+1)
			k.writing, k.began = w, time.Now()
			return w, 0, false
		}
		pause = min(pause, wait)
	}
	return nil, pause, k.closed
}

// try to write it, and tell of it.
func (k *Keeper) try(w *kept) {
	err := w.write()
	isFirst, isNew := w.due.IsZero(), (err == nil) != (w.problem == nil) || err != nil && err.Error() != w.problem.Error()
	k.mu.Lock()
	await := w.await
	w.await, w.problem, w.due, k.writing = nil, err, time.Now().Add(keepRetry), nil
	if newer := k.latest(w.name); newer != nil {
		newer.problem = err
	} else if err != nil {
		k.waiting = append(k.waiting, w)
	}
	k.mu.Unlock()
	if isFirst || isNew {
		w.tell(err, isNew)
	}
	for _, result := range await {
		result <- err
	}
}
