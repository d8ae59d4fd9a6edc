// Package routes keeps the speaker on the desired routes.
//
//	Set(desired) ─► newest desired ─► Set
//	Poll each 100 ms ─► SpeakerConnected | SpeakerLost | NeighborState
//
// It is a sink: Set takes the whole desired state. If the speaker has a different one (it
// was restarted, or still has that of the previous controller), it is sent again. To the
// speaker, polls show that the controller is alive.
package routes

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/outside"
	"github.com/guideway/guideway/controller/sinks/sinkconn"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

const (
	pollInterval = 100 * time.Millisecond
	callTimeout  = time.Second
	// Of a large desired state.
	setTimeout = 10 * time.Second
	// MessageBytesMax of a desired state: a route takes some 100 bytes.
	MessageBytesMax = 64 << 20
)

// SocketDir of the speaker: the run directory itself is root's.
func SocketDir(runDir string) string { return filepath.Join(runDir, "speaker") }

// Socket of the speaker.
func Socket(runDir string) string { return filepath.Join(SocketDir(runDir), "speaker.sock") }

// Dial prepares a connection to the speaker; it need not be there yet.
func Dial(runDir string) (*grpc.ClientConn, error) {
	return sinkconn.Dial("speaker", Socket(runDir), MessageBytesMax)
}

// Sink is the connection to the speaker.
type Sink struct {
	log     *slog.Logger
	onEvent func(brain.Event)
	conn    *grpc.ClientConn
	client  speakerv1.SpeakerClient
	waker   sinkconn.Waker

	mu   sync.Mutex
	want *speakerv1.SetRequest // nil: nothing is known yet
	// Another machine is known to forward well.
	peerWell bool
	// The latest answer; nil: it does not answer, for this reason.
	state *speakerv1.State
	lost  string

	// Only the goroutine of Run touches these.
	connected bool
	neighbors map[netip.Addr]string
	refused   uint64 // a revision that the speaker did not take
}

// New makes a sink for the speaker of a run directory. onEvent is called from
// Run's goroutine and must not block for long.
func New(runDir string, log *slog.Logger, onEvent func(brain.Event)) (*Sink, error) {
	conn, err := Dial(runDir)
	if err != nil {
		return nil, err
	}
	return &Sink{
		log: log, onEvent: onEvent, conn: conn, client: speakerv1.NewSpeakerClient(conn), waker: sinkconn.NewWaker(),
		lost: "not yet connected", neighbors: map[netip.Addr]string{},
	}, nil
}

// Set what is desired. keepRoutes: its routes are not known yet, so those that
// the speaker has stay.
func (s *Sink) Set(desired *speakerv1.Desired, keepRoutes bool) {
	s.mu.Lock()
	// Not one of a former controller's.
	revision := uint64(time.Now().UnixNano())
	if s.want.GetRevision() >= revision {
		revision = s.want.GetRevision() + 1
	}
	s.want = &speakerv1.SetRequest{Desired: desired, KeepRoutes: keepRoutes, Revision: revision}
	s.mu.Unlock()
	s.waker.Wake()
}

// KnowPeers: whether another machine is known to forward well.
func (s *Sink) KnowPeers(well bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peerWell = well
}

// State is the speaker's latest; nil: it does not answer, for this reason.
func (s *Sink) State() (state *speakerv1.State, lost string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state, s.lost
}

// Run polls and sets until the context ends.
func (s *Sink) Run(ctx context.Context) {
	defer s.Close()
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { s.waker.WakeWhenConnected(ctx, s.conn) })
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		s.poll(ctx)
		select {
		case <-ticker.C:
		case <-s.waker:
		case <-ctx.Done():
		}
	}
}

// Close the connection, of one that is not run.
func (s *Sink) Close() { _ = s.conn.Close() }

func (s *Sink) poll(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s.mu.Lock()
	request := &speakerv1.PollRequest{PeerWell: s.peerWell}
	s.mu.Unlock()
	state, err := s.client.Poll(call, request)
	if err == nil && !s.connected {
		err = s.connect(ctx)
	}
	if err != nil {
		s.lose(ctx, err)
		return
	}
	outside.Message(state, outside.TextBytesMax)
	s.mu.Lock()
	s.state, s.lost = state, ""
	want := s.want
	s.mu.Unlock()
	s.report(state)
	if want != nil && state.GetRevision() != want.GetRevision() && s.refused != want.GetRevision() {
		s.set(ctx, want)
	}
}

// connect learns what the speaker has, before anything is set.
func (s *Sink) connect(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, setTimeout)
	defer cancel()
	desired, err := s.client.GetDesired(call, &speakerv1.GetDesiredRequest{})
	if err != nil {
		return err
	}
	var prefixes []netip.Prefix
	for _, r := range desired.GetRoutes() {
		if prefix, err := netip.ParsePrefix(r.GetPrefix()); err == nil {
			prefixes = append(prefixes, prefix)
		}
	}
	s.connected, s.refused = true, 0
	clear(s.neighbors)
	s.onEvent(brain.SpeakerConnected{Prefixes: prefixes})
	return nil
}

func (s *Sink) set(ctx context.Context, want *speakerv1.SetRequest) {
	call, cancel := context.WithTimeout(ctx, setTimeout)
	defer cancel()
	_, err := s.client.Set(call, want)
	switch {
	case err == nil || ctx.Err() != nil:
	case status.Code(err) == codes.PermissionDenied || status.Code(err) == codes.ResourceExhausted:
		s.refused = want.GetRevision() // the same would be refused again
		s.log.Error("the speaker does not take what is to be announced", "error", reasonOf(err))
	default:
		s.log.Warn("what is to be announced did not reach the speaker, trying again", "error", reasonOf(err))
	}
}

// report sessions whose states are new.
func (s *Sink) report(state *speakerv1.State) {
	for _, n := range state.GetNeighbors() {
		address, err := netip.ParseAddr(n.GetAddress())
		if err != nil || s.neighbors[address] == n.GetState() {
			continue
		}
		s.neighbors[address] = n.GetState()
		s.onEvent(brain.NeighborState{Address: address, State: n.GetState()})
	}
}

func (s *Sink) lose(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // we are stopping
	}
	reason := reasonOf(err)
	s.mu.Lock()
	said := s.state == nil && s.lost == reason
	s.state, s.lost = nil, reason
	s.mu.Unlock()
	if said {
		return
	}
	s.connected = false
	s.onEvent(brain.SpeakerLost{Reason: reason})
}

func reasonOf(err error) string {
	switch status.Code(err) {
	case codes.Unavailable:
		return "does not answer: start it (guideway-speaker)"
	case codes.DeadlineExceeded:
		return fmt.Sprintf("does not answer within %v", callTimeout)
	}
	return outside.Text(status.Convert(err).Message())
}
