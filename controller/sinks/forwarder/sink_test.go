package forwarder

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/apitest"
	"github.com/guideway/guideway/controller/brain"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// peer is a forwarder as far as the contract goes.
type peer struct {
	forwarderv1.UnimplementedForwarderServer
	mu      sync.Mutex
	plan    *planv1.Plan
	pushes  []uint64
	refuse  error
	hanging bool
	server  *grpc.Server
	// What the watch says after its first message; closed: the process ends.
	handingOver chan bool
}

func (p *peer) Watch(_ *forwarderv1.WatchRequest, stream grpc.ServerStreamingServer[forwarderv1.WatchResponse]) error {
	if err := stream.Send(&forwarderv1.WatchResponse{}); err != nil || p.handingOver == nil {
		return err
	}
	for now := range p.handingOver {
		if err := stream.Send(&forwarderv1.WatchResponse{HandingOver: now}); err != nil {
			return err
		}
	}
	return nil
}

func (p *peer) SetPlan(_ context.Context, r *forwarderv1.SetPlanRequest) (*forwarderv1.SetPlanResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pushes = append(p.pushes, r.Plan.Generation)
	if p.refuse != nil {
		return nil, p.refuse
	}
	p.plan = r.Plan
	return &forwarderv1.SetPlanResponse{Generation: r.Plan.Generation, Warnings: []string{"small MTU"}}, nil
}

func (p *peer) GetPlan(context.Context, *forwarderv1.GetPlanRequest) (*forwarderv1.GetPlanResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.plan == nil {
		return nil, status.Error(codes.NotFound, "no plan yet")
	}
	return &forwarderv1.GetPlanResponse{Plan: p.plan}, nil
}

func (p *peer) GetStatus(ctx context.Context, _ *forwarderv1.GetStatusRequest) (*forwarderv1.GetStatusResponse, error) {
	p.mu.Lock()
	hanging, generation := p.hanging, p.plan.GetGeneration()
	p.mu.Unlock()
	if hanging {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return &forwarderv1.GetStatusResponse{Generation: generation}, nil
}

func (p *peer) seen() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.pushes)
}

func (p *peer) serve(t *testing.T, socket string) {
	t.Helper()
	p.server = apitest.Serve(t, socket, func(s *grpc.Server) { forwarderv1.RegisterForwarderServer(s, p) })
}

// harness runs a sink and keeps its events.
type harness struct {
	t      *testing.T
	sink   *Sink
	mu     sync.Mutex
	events []brain.Event
}

func start(t *testing.T, socket string) *harness {
	t.Helper()
	h := &harness{t: t}
	sink, err := New(socket, slog.New(slog.DiscardHandler), func(e brain.Event) {
		h.mu.Lock()
		h.events = append(h.events, e)
		h.mu.Unlock()
	})
	if err != nil {
		t.Fatal(err)
	}
	h.sink = sink
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { sink.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	return h
}

// wait returns the first event that fits; other processes' time is real.
func (h *harness) wait(limit time.Duration, fits func(brain.Event) bool) brain.Event {
	h.t.Helper()
	deadline := time.Now().Add(limit)
	for time.Now().Before(deadline) {
		h.mu.Lock()
		i := slices.IndexFunc(h.events, fits)
		if i >= 0 {
			event := h.events[i]
			h.mu.Unlock()
			return event
		}
		h.mu.Unlock()
		time.Sleep(2 * time.Millisecond)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.t.Fatalf("not within %v; events: %+v", limit, h.events)
	return nil
}

func (h *harness) forget() {
	h.mu.Lock()
	h.events = nil
	h.mu.Unlock()
}

func is[E brain.Event](e brain.Event) bool { _, ok := e.(E); return ok }

func accepted(generation uint64) func(brain.Event) bool {
	return func(e brain.Event) bool { a, ok := e.(brain.PlanAccepted); return ok && a.Generation == generation }
}

func socketOf(t *testing.T) string { return filepath.Join(t.TempDir(), "forwarder.sock") }

func plan(generation uint64) *planv1.Plan { return &planv1.Plan{Generation: generation} }

func TestTheRunningPlanIsReadBeforeAnythingIsPushed(t *testing.T) {
	p := &peer{plan: plan(41)}
	socket := socketOf(t)
	p.serve(t, socket)
	h := start(t, socket)
	h.sink.Set(plan(42))
	got := h.wait(3*time.Second, is[brain.ForwarderConnected]).(brain.ForwarderConnected)
	if got.Plan.GetGeneration() != 41 {
		t.Errorf("connected to a forwarder with plan %d, want 41", got.Plan.GetGeneration())
	}
	if a := h.wait(3*time.Second, accepted(42)).(brain.PlanAccepted); !slices.Equal(a.Warnings, []string{"small MTU"}) {
		t.Errorf("warnings %v", a.Warnings)
	}
}

func TestAMissingSocketIsSaidOnceAndThePlanArrivesWhenItAppears(t *testing.T) {
	socket := socketOf(t)
	h := start(t, socket)
	h.sink.Set(plan(1))
	lost := h.wait(3*time.Second, is[brain.ForwarderDisconnected]).(brain.ForwarderDisconnected)
	if lost.Reason != "does not answer: no such file or directory" {
		t.Errorf("reason %q", lost.Reason)
	}
	time.Sleep(3 * pollInterval)
	h.mu.Lock()
	if len(h.events) != 1 {
		t.Errorf("events %+v, want one Disconnected", h.events)
	}
	h.mu.Unlock()
	p := &peer{}
	p.serve(t, socket)
	h.wait(3*time.Second, accepted(1))
}

func TestARestartedForwarderGetsThePlanAgain(t *testing.T) {
	socket := socketOf(t)
	first := &peer{}
	first.serve(t, socket)
	h := start(t, socket)
	h.sink.Set(plan(7))
	h.wait(3*time.Second, accepted(7))
	h.forget()
	died := time.Now()
	first.server.Stop()
	h.wait(3*time.Second, is[brain.ForwarderDisconnected])
	if took := time.Since(died); took > 300*time.Millisecond {
		t.Errorf("the death was seen after %v", took)
	}
	second := &peer{}
	second.serve(t, socket)
	h.wait(3*time.Second, accepted(7))
}

func TestASlowForwarderIsNotDisconnected(t *testing.T) {
	p := &peer{}
	socket := socketOf(t)
	p.serve(t, socket)
	h := start(t, socket)
	h.wait(3*time.Second, is[brain.ForwarderStatus])
	hang := func(hanging bool) {
		p.mu.Lock()
		p.hanging = hanging
		p.mu.Unlock()
		h.forget()
	}
	hang(true)
	time.Sleep(pollTimeout + 2*pollInterval)
	hang(false)
	h.wait(3*time.Second, is[brain.ForwarderStatus])
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.ContainsFunc(h.events, is[brain.ForwarderDisconnected]) || slices.ContainsFunc(h.events, is[brain.ForwarderConnected]) {
		t.Errorf("events %+v", h.events)
	}
}

func TestARefusedPlanIsNotSentAgainUntilItChanges(t *testing.T) {
	p := &peer{plan: plan(9), refuse: status.Error(codes.FailedPrecondition, "restart required: interfaces")}
	socket := socketOf(t)
	p.serve(t, socket)
	h := start(t, socket)
	h.sink.Set(plan(1))
	refused := h.wait(3*time.Second, is[brain.PlanRefused]).(brain.PlanRefused)
	if refused.Generation != 1 || refused.Reason != "restart required: interfaces" {
		t.Errorf("refused %+v", refused)
	}
	time.Sleep(refusedPause + 3*pollInterval)
	if got := p.seen(); !slices.Equal(got, []uint64{1}) {
		t.Errorf("pushes %v, want the one", got)
	}
	p.mu.Lock()
	p.refuse = nil
	p.mu.Unlock()
	h.sink.Set(plan(2))
	h.wait(3*time.Second, accepted(2))
}

// Its interface may come after it, as at boot.
func TestAForwarderWithoutAPlanGetsTheRefusedOneAgain(t *testing.T) {
	p := &peer{refuse: status.Error(codes.FailedPrecondition, "there is no interface eth1")}
	socket := socketOf(t)
	p.serve(t, socket)
	h := start(t, socket)
	h.sink.Set(plan(1))
	h.wait(3*time.Second, is[brain.PlanRefused])
	h.wait(2*refusedPause, func(brain.Event) bool { return len(p.seen()) >= 2 })
	h.mu.Lock()
	refusals := slices.DeleteFunc(slices.Clone(h.events), func(e brain.Event) bool { return !is[brain.PlanRefused](e) })
	h.mu.Unlock()
	if len(refusals) != 1 {
		t.Errorf("said %d times, want once: %v", len(refusals), refusals)
	}
	p.mu.Lock()
	p.refuse = nil
	p.mu.Unlock()
	h.wait(2*refusedPause, accepted(1))
	// A config that was mended does not wait.
	p.mu.Lock()
	p.plan, p.refuse = nil, status.Error(codes.FailedPrecondition, "there is no interface eth2")
	p.mu.Unlock()
	h.sink.Set(plan(2))
	h.wait(3*time.Second, func(e brain.Event) bool { refused, ok := e.(brain.PlanRefused); return ok && refused.Generation == 2 })
	p.mu.Lock()
	p.refuse = nil
	p.mu.Unlock()
	h.sink.Set(plan(3))
	h.wait(refusedPause/2, accepted(3))
}

func TestAPlanThatIsPostponedIsSentAgainLaterAndLater(t *testing.T) {
	p := &peer{refuse: status.Error(codes.Aborted, "services: no id is left")}
	socket := socketOf(t)
	p.serve(t, socket)
	h := start(t, socket)
	h.sink.Set(plan(7))
	postponed := h.wait(3*time.Second, is[brain.PlanPostponed]).(brain.PlanPostponed)
	if postponed != (brain.PlanPostponed{Generation: 7, Reason: "services: no id is left"}) {
		t.Errorf("postponed %+v", postponed)
	}
	h.wait(3*time.Second, func(brain.Event) bool { return len(p.seen()) >= 3 })
	p.mu.Lock()
	p.refuse = nil
	p.mu.Unlock()
	h.wait(3*time.Second, accepted(7))
}

func TestAPlanThatCouldNotBeDeliveredIsSentAgain(t *testing.T) {
	p := &peer{refuse: status.Error(codes.Unavailable, "busy")}
	socket := socketOf(t)
	p.serve(t, socket)
	h := start(t, socket)
	h.sink.Set(plan(1))
	h.wait(3*time.Second, func(brain.Event) bool { return len(p.seen()) >= 2 })
	p.mu.Lock()
	p.refuse = nil
	p.mu.Unlock()
	h.wait(3*time.Second, accepted(1))
}

func TestAHandOverIsToldBeforeTheConnectionEnds(t *testing.T) {
	socket := socketOf(t)
	old := &peer{handingOver: make(chan bool)}
	old.serve(t, socket)
	h := start(t, socket)
	h.wait(5*time.Second, is[brain.ForwarderConnected])
	old.handingOver <- true
	h.wait(5*time.Second, func(e brain.Event) bool { return e == brain.ForwarderHandingOver{Now: true} })
	close(old.handingOver)
	old.server.Stop()
	h.wait(5*time.Second, is[brain.ForwarderDisconnected])
	h.forget()
	// The successor says that nothing is under way any more.
	(&peer{}).serve(t, socket)
	h.wait(5*time.Second, func(e brain.Event) bool { return e == brain.ForwarderHandingOver{} })
	h.wait(5*time.Second, is[brain.ForwarderConnected])
}
