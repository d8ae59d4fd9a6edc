package web

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// Requests within this time are answered by the same page.
	pageAge = time.Second
	// Making a page that takes longer has failed.
	pageTimeout = 5 * time.Second
	// Pages that slow clients still read stay in memory. With more than this in
	// it, the latest page is served until one of them is done, which is within
	// the write timeout of the server.
	pagesBytesMax = 64 << 20
)

var errTooSlow = errors.New("the page is not made within " + pageTimeout.String() + ": try again, or reduce it (metrics.detail)")

// Begin a task that outlasts the request that it is for, with a context that ends when no
// page is wanted any more. Who serves awaits it.
type Begin func(task func(context.Context))

// Shared is a page, or what pages are made of: made once for all who request it within a
// time, one at a time.
type Shared[T any] struct {
	begin Begin
	make  func(context.Context) (content T, bytes int, err error)
	age   time.Duration

	mu     sync.Mutex
	latest *made[T]
	bytes  int // of all contents that are in memory
}

// made is one content, or one that is being made.
type made[T any] struct {
	begun   time.Time
	done    chan struct{}
	content T
	bytes   int
	err     error
	readers int // and Shared itself, while it is the latest
}

// NewShared is made when it is requested; bytes is how much memory it takes.
func NewShared[T any](begin Begin, age time.Duration, make func(context.Context) (content T, bytes int, err error)) *Shared[T] {
	return &Shared[T]{begin: begin, make: make, age: age}
}

// Get the content; release it after use.
func (p *Shared[T]) Get(ctx context.Context) (content T, release func(), err error) {
	m := p.acquire()
	select {
	case <-m.done:
		return m.content, func() { p.release(m) }, m.err
	case <-ctx.Done():
		p.release(m)
		return content, func() {}, ctx.Err()
	}
}

func (p *Shared[T]) acquire() *made[T] {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest == nil || p.stale(p.latest) {
		if p.latest != nil {
			p.drop(p.latest)
		}
		latest := &made[T]{begun: time.Now(), done: make(chan struct{}), readers: 1}
		p.latest = latest
		p.begin(func(ctx context.Context) { p.fill(ctx, latest) })
	}
	p.latest.readers++
	return p.latest
}

// stale: a new page is due, and there is room for it.
func (p *Shared[T]) stale(m *made[T]) bool {
	select {
	case <-m.done:
		return time.Since(m.begun) >= p.age && (m.err != nil || p.bytes <= pagesBytesMax)
	default:
		return false
	}
}

func (p *Shared[T]) fill(ctx context.Context, m *made[T]) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	content, bytes, err := p.make(ctx)
	if err != nil && ctx.Err() != nil {
		err = errTooSlow
	}
	p.mu.Lock()
	m.content, m.bytes, m.err = content, bytes, err
	p.bytes += bytes
	p.mu.Unlock()
	close(m.done)
}

func (p *Shared[T]) release(m *made[T]) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(m)
}

// drop one reader; with the last one the content's memory goes.
func (p *Shared[T]) drop(m *made[T]) {
	if m.readers--; m.readers == 0 {
		p.bytes -= m.bytes
	}
}
