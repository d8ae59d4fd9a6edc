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

// page is made once for all who request it within a second, one at a time.
type page struct {
	begin Begin
	make  func(context.Context) ([]byte, error)
	age   time.Duration

	mu     sync.Mutex
	latest *made
	bytes  int // of all pages that are in memory
}

// made is one page, or one that is being made.
type made struct {
	begun   time.Time
	done    chan struct{}
	content []byte
	err     error
	readers int // and the page itself, while it is the latest
}

func newPage(begin Begin, age time.Duration, make func(context.Context) ([]byte, error)) *page {
	return &page{begin: begin, make: make, age: age}
}

// get the page; release it after use.
func (p *page) get(ctx context.Context) (content []byte, release func(), err error) {
	m := p.acquire()
	select {
	case <-m.done:
		return m.content, func() { p.release(m) }, m.err
	case <-ctx.Done():
		p.release(m)
		return nil, func() {}, ctx.Err()
	}
}

func (p *page) acquire() *made {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.latest == nil || p.stale(p.latest) {
		if p.latest != nil {
			p.drop(p.latest)
		}
		latest := &made{begun: time.Now(), done: make(chan struct{}), readers: 1}
		p.latest = latest
		p.begin(func(ctx context.Context) { p.fill(ctx, latest) })
	}
	p.latest.readers++
	return p.latest
}

// stale: a new page is due, and there is room for it.
func (p *page) stale(m *made) bool {
	select {
	case <-m.done:
		return time.Since(m.begun) >= p.age && (m.err != nil || p.bytes <= pagesBytesMax)
	default:
		return false
	}
}

func (p *page) fill(ctx context.Context, m *made) {
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	content, err := p.make(ctx)
	if err != nil && ctx.Err() != nil {
		err = errTooSlow
	}
	p.mu.Lock()
	m.content, m.err = content, err
	p.bytes += len(content)
	p.mu.Unlock()
	close(m.done)
}

func (p *page) release(m *made) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(m)
}

// drop one reader; with the last one the page's memory goes.
func (p *page) drop(m *made) {
	if m.readers--; m.readers == 0 {
		p.bytes -= len(m.content)
	}
}
