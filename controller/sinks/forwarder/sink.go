// Package forwarder keeps this machine's forwarder on the desired plan.
//
//	Set(plan) ─► newest wanted plan ─► SetPlan ─► PlanAccepted | PlanRefused | PlanPostponed
//	GetStatus each 100 ms ─► ForwarderStatus | ForwarderDisconnected
//	Watch ─► ForwarderHandingOver
//
// It is a sink: Set takes the whole plan, and a reconnect sends it again. It does not
// interpret the plan, and does not decide whether the forwarder is healthy: gRPC may be
// slow or disconnected while packets flow (see package health).
//
// A planned hand-over between two processes is distinguished from a crash: the forwarder
// announces it over the watch before anything else happens.
//
// Order: the first event of every connection is ForwarderConnected with the running plan,
// and no plan is pushed before it.
package forwarder

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/sinks/sinkconn"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

const (
	pollInterval = 100 * time.Millisecond
	pollTimeout  = time.Second
	// A plan that is postponed is pushed again after pollInterval, then twice
	// that, up to this.
	postponeMax = 5 * time.Second
	// A plan that a forwarder without one refuses is pushed again after this.
	refusedPause = 2 * time.Second
	// Building the tables of a large plan takes seconds on a slow machine.
	pushTimeout = 30 * time.Second
	// A plan of 10,000 services with 65,000 backends is some 20 MiB.
	MessageBytesMax = 256 << 20
	// Between two tries to watch a forwarder that does not answer, or is of a
	// version that cannot be watched.
	watchPause    = 20 * time.Millisecond
	watchPauseMax = time.Second
)

// Sink is the connection to one forwarder.
type Sink struct {
	log     *slog.Logger
	onEvent func(brain.Event)
	conn    *grpc.ClientConn
	client  forwarderv1.ForwarderClient
	waker   sinkconn.Waker
	pushed  chan pushResult
	// What Run begins.
	tasks sync.WaitGroup

	mu   sync.Mutex
	want *planv1.Plan

	// Only the goroutine of Run touches these.
	connected bool
	everPoll  bool
	pushing   bool
	retryAt   time.Time
	postponed time.Duration // until the latest retry of a postponed plan
	refused   refusal
}

// refusal of a plan.
type refusal struct {
	generation uint64
	reason     string
	// A forwarder without a plan gets it again then.
	again time.Time
}

type pushResult struct {
	generation uint64
	warnings   []string
	err        error
}

// Dial prepares a connection to a forwarder's socket; it need not be there yet.
func Dial(socket string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	return sinkconn.Dial("forwarder", socket, MessageBytesMax, options...)
}

// New makes a sink for the forwarder at socket. onEvent is called from Run's
// goroutine, with ForwarderHandingOver from one of its own, and must not block for long.
func New(socket string, log *slog.Logger, onEvent func(brain.Event)) (*Sink, error) {
	conn, err := Dial(socket)
	if err != nil {
		return nil, err
	}
	return &Sink{
		log:     log,
		onEvent: onEvent,
		conn:    conn,
		client:  forwarderv1.NewForwarderClient(conn),
		waker:   sinkconn.NewWaker(),
		pushed:  make(chan pushResult, 1),
	}, nil
}

// Client asks the forwarder for what is not the sink's concern: counters,
// connections, metrics.
func (s *Sink) Client() forwarderv1.ForwarderClient { return s.client }

// Set makes plan the wanted one. Its generation must differ from that of
// every other plan. nil: leave the forwarder alone.
func (s *Sink) Set(plan *planv1.Plan) {
	s.mu.Lock()
	s.want = plan
	s.mu.Unlock()
	s.waker.Wake()
}

// Run polls and pushes until the context ends.
func (s *Sink) Run(ctx context.Context) {
	defer s.Close()
	defer s.tasks.Wait()
	s.tasks.Go(func() { s.waker.WakeWhenConnected(ctx, s.conn) })
	s.tasks.Go(func() { s.watch(ctx) })
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		s.poll(ctx)
		select {
		case <-ticker.C:
		case <-s.waker:
		case result := <-s.pushed:
			s.settle(result)
		case <-ctx.Done():
		}
	}
}

// Close the connection, of one that is not run.
func (s *Sink) Close() { _ = s.conn.Close() }

// watch follows what the forwarder says of hand-overs, from one connection to
// the next.
func (s *Sink) watch(ctx context.Context) {
	pause := watchPause
	for ctx.Err() == nil {
		if s.follow(ctx) {
			pause = watchPause
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, watchPauseMax)
		case <-ctx.Done():
		}
	}
}

// follow one stream to its end, and return whether anything came by it.
func (s *Sink) follow(ctx context.Context) (came bool) {
	stream, err := s.client.Watch(ctx, &forwarderv1.WatchRequest{})
	if err != nil {
		return false
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return came
		}
		came = true
		s.onEvent(brain.ForwarderHandingOver{Now: response.GetHandingOver()})
	}
}

func (s *Sink) poll(ctx context.Context) {
	pollCtx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	response, err := s.client.GetStatus(pollCtx, &forwarderv1.GetStatusRequest{})
	if err == nil && !s.connected {
		err = s.connect(ctx)
	}
	if err != nil {
		s.lose(ctx, err)
		return
	}
	s.onEvent(statusOf(response))
	s.push(ctx, response.Generation)
}

func statusOf(response *forwarderv1.GetStatusResponse) brain.ForwarderStatus {
	status := brain.ForwarderStatus{Generation: response.Generation, RestartRequired: response.RestartRequired}
	for _, u := range response.Unresolved {
		status.Unresolved = append(status.Unresolved, brain.Unresolved{Backend: u.Name, Address: u.Address, Why: u.Why})
	}
	for _, l := range response.Limits {
		status.Limits = append(status.Limits, brain.Limit{Name: l.Name, Refused: l.Refused, Count: l.Count, IsState: l.IsState})
	}
	return status
}

func (s *Sink) connect(ctx context.Context) error {
	// Reading a large plan may take longer than a poll.
	ctx, cancel := context.WithTimeout(ctx, pushTimeout)
	defer cancel()
	response, err := s.client.GetPlan(ctx, &forwarderv1.GetPlanRequest{})
	if err != nil && status.Code(err) != codes.NotFound {
		return fmt.Errorf("read its plan: %w", err)
	}
	s.connected, s.everPoll, s.refused = true, true, refusal{}
	s.onEvent(brain.ForwarderConnected{Plan: response.GetPlan()})
	return nil
}

// lose notes that the connection is gone. One that is only slow is not: the
// forwarder's gRPC may have much to do.
func (s *Sink) lose(ctx context.Context, err error) {
	if ctx.Err() != nil || (s.everPoll && !s.connected) || status.Code(err) == codes.DeadlineExceeded {
		return // we are stopping, or said it already
	}
	s.connected, s.everPoll = false, true
	s.onEvent(brain.ForwarderDisconnected{Reason: reasonOf(err)})
}

// push sends the wanted plan unless it runs, is under way or was refused. A forwarder
// that has none yet refuses what its interfaces are not there for: they may come.
func (s *Sink) push(ctx context.Context, running uint64) {
	s.mu.Lock()
	want := s.want
	s.mu.Unlock()
	if want == nil || s.pushing || want.Generation == running || s.isRefused(want.Generation, running) || time.Now().Before(s.retryAt) {
		return
	}
	s.pushing = true
	s.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, pushTimeout)
		defer cancel()
		response, err := s.client.SetPlan(ctx, &forwarderv1.SetPlanRequest{Plan: want})
		s.pushed <- pushResult{generation: want.Generation, warnings: response.GetWarnings(), err: err}
	})
}

func (s *Sink) settle(result pushResult) {
	s.pushing = false
	if status.Code(result.err) == codes.Aborted {
		s.postponed = min(max(2*s.postponed, pollInterval), postponeMax)
		s.retryAt = time.Now().Add(s.postponed)
		s.onEvent(brain.PlanPostponed{Generation: result.generation, Reason: reasonOf(result.err)})
		return
	}
	s.postponed = 0
	if result.err == nil {
		s.onEvent(brain.PlanAccepted{Generation: result.generation, Warnings: result.warnings})
		return
	}
	if final(result.err) {
		before := s.refused
		s.refused = refusal{generation: result.generation, reason: reasonOf(result.err), again: time.Now().Add(refusedPause)}
		if before.generation != s.refused.generation || before.reason != s.refused.reason {
			s.onEvent(brain.PlanRefused{Generation: result.generation, Reason: s.refused.reason})
		}
		return
	}
	s.retryAt = time.Now().Add(pollInterval)
	s.log.Warn("plan not delivered, trying again", "generation", result.generation, "error", reasonOf(result.err))
}

// isRefused: it is not worth while to send the plan again now.
func (s *Sink) isRefused(generation, running uint64) bool {
	return generation == s.refused.generation && (running != 0 || time.Now().Before(s.refused.again))
}

// final: the same plan would be refused again.
func final(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return false
	}
	return true
}

func reasonOf(err error) string {
	switch status.Code(err) {
	case codes.Unavailable:
		return "does not answer: " + innermost(status.Convert(err).Message())
	case codes.DeadlineExceeded:
		return fmt.Sprintf("does not answer within %v", pollTimeout)
	}
	return status.Convert(err).Message()
}

// innermost is the end of a chain of errors: gRPC names every layer.
func innermost(message string) string {
	if at := strings.LastIndex(message, ": "); at >= 0 {
		message = message[at+2:]
	}
	return strings.Trim(message, `"`)
}
