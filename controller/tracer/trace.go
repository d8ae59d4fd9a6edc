package tracer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// interval between packets: a worker reports on 100 a second at most.
	interval = 10 * time.Millisecond
	// grace for reports that come out of order, when nothing more is expected.
	grace = 200 * time.Millisecond
	// CountMax packets take ten seconds, a third of what a mark is worth.
	CountMax = 1000
)

// Link is how packets leave and reports arrive.
type Link interface {
	// Send sends IP packets as they are.
	Send(packet []byte) error
	// Receive waits for one datagram; an error that wraps ctx's ends it.
	Receive(ctx context.Context) ([]byte, error)
}

// Request says what to trace.
type Request struct {
	Key Key
	// Where reports go: an address of the Link's.
	Receiver netip.AddrPort
	// The first packet's.
	Flow Flow
	// Each packet has the next source port, so that the router's ECMP spreads
	// them; else all are of one flow.
	SpreadPorts bool
	// Packets to send, 1 to CountMax.
	Count         int
	ValidChecksum bool
	Fragment      bool
	// How long to wait for reports after the last packet.
	Timeout time.Duration
}

// Result is what is known at the end.
type Result struct {
	// In order of sending.
	Packets []Traced `json:"packets"`
	// Datagrams that were no reports on these packets.
	Strange int `json:"strange_datagrams"`
}

// Traced is one packet and what was heard of it.
type Traced struct {
	Protocol    string         `json:"protocol"`
	Source      netip.AddrPort `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Fragment    bool           `json:"fragment"`
	Nonce       string         `json:"nonce"`
	// In order of the packet's way; of arrival where that is not known.
	Hops []Hop `json:"hops"`
}

// Hop is a report, and how long after its packet was sent it arrived.
type Hop struct {
	Report
	AfterMicroseconds int64 `json:"after_us"`
}

// Answered counts the packets that a load balancer reported on.
func (r Result) Answered() int {
	answered := 0
	for _, packet := range r.Packets {
		if len(packet.Hops) > 0 {
			answered++
		}
	}
	return answered
}

// LostOnTheWay counts the packets that were handed on to a load balancer that did not
// report.
func (r Result) LostOnTheWay() int {
	lost := 0
	for _, packet := range r.Packets {
		if len(packet.Hops) > 0 && !packet.finished() {
			lost++
		}
	}
	return lost
}

// finished when one has decided: who redirects, or hands to its slow path,
// leaves that to the next.
func (t Traced) finished() bool {
	for _, hop := range t.Hops {
		if hop.final() {
			return true
		}
	}
	return false
}

// Run sends the packets and gathers reports until all are finished or nothing
// came in time. It ends early with an error only if sending or receiving fails
// or ctx ends.
func Run(ctx context.Context, link Link, request Request) (Result, error) {
	run := newRun(link, request)
	receiving, stop := context.WithCancel(ctx)
	var receiver sync.WaitGroup
	receiver.Go(func() { run.receive(receiving) })
	defer receiver.Wait()
	defer stop()

	for i := range request.Count {
		if i > 0 {
			if err := run.gather(ctx, interval, false); err != nil {
				return run.result, err
			}
		}
		if err := run.send(i); err != nil {
			return run.result, err
		}
	}
	return run.result, run.gather(ctx, request.Timeout, true)
}

// run is one trace under way; only the goroutine of Run touches it.
type run struct {
	link    Link
	request Request
	result  Result
	byNonce map[uint64]int
	sent    []time.Time

	datagrams chan datagram
	failed    chan error
}

type datagram struct {
	bytes []byte
	at    time.Time
}

func newRun(link Link, request Request) *run {
	return &run{
		link: link, request: request, byNonce: map[uint64]int{},
		datagrams: make(chan datagram, 64), failed: make(chan error, 1),
	}
}

func (r *run) receive(ctx context.Context) {
	for {
		bytes, err := r.link.Receive(ctx)
		if err != nil {
			r.failed <- err
			return
		}
		select {
		case r.datagrams <- datagram{bytes, time.Now()}:
		case <-ctx.Done():
			return
		}
	}
}

func (r *run) send(index int) error {
	flow := r.request.Flow
	if r.request.SpreadPorts {
		flow.Source = netip.AddrPortFrom(flow.Source.Addr(), nextPort(flow.Source.Port(), index))
	}
	// Nonces are no secret, but those to come must not be guessed: the runtime's
	// generator is seeded by the kernel and strong.
	nonce := rand.Uint64()
	now := time.Now()
	packet := Packet{
		Flow: flow, ID: rand.Uint32() | 1, // the kernel would replace a zero
		Mark:          r.request.Key.Sign(Mark{Receiver: r.request.Receiver, Nonce: nonce, Time: now}, flow),
		ValidChecksum: r.request.ValidChecksum, Fragment: r.request.Fragment,
	}
	r.byNonce[nonce] = index
	r.sent = append(r.sent, now)
	r.result.Packets = append(r.result.Packets, Traced{
		Protocol: flow.Protocol.String(), Source: flow.Source, Destination: flow.Destination,
		Fragment: r.request.Fragment, Nonce: fmt.Sprintf("%016x", nonce), Hops: []Hop{},
	})
	for _, bytes := range packet.Bytes() {
		if err := r.link.Send(bytes); err != nil {
			return fmt.Errorf("send %s: %w", flow, err)
		}
	}
	return nil
}

// nextPort goes round, leaving out zero.
func nextPort(first uint16, index int) uint16 {
	const ports = 1<<16 - 1
	return uint16((int(first)-1+index)%ports + 1)
}

// gather takes reports for that long; the last time only until each packet is
// finished, and a little longer.
func (r *run) gather(ctx context.Context, limit time.Duration, last bool) error {
	over := time.NewTimer(limit)
	defer over.Stop()
	var graceOver <-chan time.Time
	for {
		if last && graceOver == nil && r.finished() {
			graceOver = time.After(grace)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-over.C:
			return nil
		case <-graceOver:
			return nil
		case err := <-r.failed:
			return fmt.Errorf("receive reports: %w", err)
		case datagram := <-r.datagrams:
			r.take(datagram)
		}
	}
}

func (r *run) take(d datagram) {
	nonce, report, err := ParseReport(d.bytes)
	index, known := r.byNonce[nonce]
	if err != nil || !known {
		r.result.Strange++
		return
	}
	hops := &r.result.Packets[index].Hops
	*hops = append(*hops, Hop{report, d.at.Sub(r.sent[index]).Microseconds()})
	slices.SortStableFunc(*hops, alongTheWay)
}

// alongTheWay orders hops as the packet passed them: a load balancer hands it
// on with less budget, a worker hands it to the slow path. Reports race with
// the packet, so their arrival alone says nothing.
func alongTheWay(a, b Hop) int {
	slowFirst := func(h Hop) int {
		if h.Verdict == "slow" {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(b.Budget, a.Budget), cmp.Compare(slowFirst(a), slowFirst(b)))
}

func (r *run) finished() bool {
	for _, packet := range r.result.Packets {
		if !packet.finished() {
			return false
		}
	}
	return true
}

// Check refuses what cannot be sent, naming the culprit.
func (q Request) Check() error {
	source, vip := q.Flow.Source.Addr(), q.Flow.Destination.Addr()
	switch {
	case q.Count < 1 || q.Count > CountMax:
		return fmt.Errorf("count %d: give 1 to %d", q.Count, CountMax)
	case source.Is4() != vip.Is4():
		return fmt.Errorf("source %s and VIP %s are of different families: give two of one", source, vip)
	case source.Zone() != "" || vip.Zone() != "":
		return errors.New("source and VIP must not have a zone: link-local addresses are not routed")
	case q.Timeout <= 0:
		return fmt.Errorf("timeout %v: give more than nothing", q.Timeout)
	}
	return nil
}
