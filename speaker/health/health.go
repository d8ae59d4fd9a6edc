// Package health asks a forwarder whether it forwards, over a socket that serves only this
// purpose (proto/guideway/forwarder/v1/health.proto).
//
//	Watch: HealthRequest each 100 ms ─► Answer{Health | Err} ─► report
//
// It guarantees that every request gives exactly one Answer within Timeout, and that the end of
// the forwarder's process is reported at once, not with the next request. It shares nothing
// with gRPC. Package judge decides whether an answer is a good one.
package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	"github.com/guideway/guideway/speaker/judge"
)

const (
	// SocketName in a forwarder's run directory.
	SocketName = "health.sock"
	// Interval between two requests.
	Interval = 100 * time.Millisecond
	// Timeout of a request. The thread that answers does so within a millisecond. One
	// that hangs, or waits for a processor, is found out before (late.go).
	Timeout = time.Second

	// After a connection was closed, so that a socket that closes each one is
	// not asked without end.
	closedPause = 5 * time.Millisecond
	// Between two tries to connect to a socket at which others wait.
	queueFullPause = 5 * time.Millisecond
	// 64 workers and as many interfaces take some 3 KiB.
	answerBytesMax = 64 << 10
)

// Answer is the outcome of one request.
type Answer struct {
	// When the request was sent: what the answer says was true after that.
	Asked time.Time
	// nil: Err says why there is none.
	Health *forwarderv1.Health
	// Its threads without a heartbeat that will not go round any more, and those that
	// wait for a processor.
	Hanging, Waiting []string
	Err              error
	// There is no answer because the thread that gives it waits for a processor.
	Waits bool
}

// Judged is the answer as package judge takes it; there must be one.
func (a Answer) Judged() judge.Answer {
	h := a.Health
	answer := judge.Answer{
		Asked: a.Asked, PID: h.Pid, Generation: h.Generation, Unresolved: h.NextHopsUnresolved,
		HandingOver: h.Phase == forwarderv1.HealthPhase_HEALTH_PHASE_HANDING_OVER,
		ProbesAge:   time.Duration(h.GetProbes().GetHeartbeatAgeMs()) * time.Millisecond,
		Stopping:    h.Phase == forwarderv1.HealthPhase_HEALTH_PHASE_STOPPING,
	}
	for _, t := range h.Threads {
		answer.Threads = append(answer.Threads, judge.Thread{
			Name: t.Name, HeartbeatAge: time.Duration(t.HeartbeatAgeMs) * time.Millisecond,
			Hangs: slices.Contains(a.Hanging, t.Name), Waits: slices.Contains(a.Waiting, t.Name),
		})
	}
	for _, t := range h.Helpers {
		answer.Helpers = append(answer.Helpers, judge.Thread{Name: t.Name, HeartbeatAge: time.Duration(t.HeartbeatAgeMs) * time.Millisecond})
	}
	for _, d := range h.Devices {
		answer.Devices = append(answer.Devices, judge.Device{Interface: d.Interface, Up: d.Up})
	}
	return answer
}

// Watch asks until the context ends. report is called from the goroutine of
// Watch and must not block for long.
func Watch(ctx context.Context, runDir string, report func(Answer)) {
	c := &client{socket: filepath.Join(runDir, SocketName), buffer: make([]byte, answerBytesMax)}
	defer c.close()
	for ctx.Err() == nil {
		next := time.Now().Add(Interval)
		answer := c.ask()
		if ctx.Err() != nil {
			return
		}
		report(answer)
		if c.late {
			next = time.Now().Add(latePause)
		}
		c.pause(ctx, next)
	}
}

// client is one connection to the socket, made anew when it breaks.
type client struct {
	socket   string
	buffer   []byte
	sequence uint64
	conn     *net.UnixConn // nil: not connected
	pid      uint32        // of the latest answer; 0: none yet
	// Threads of that process, and whether one of them has no heartbeat.
	threads map[string]watched
	late    bool
}

// ask once. A connection that was closed meanwhile (the forwarder restarted,
// or a successor took over) is no answer yet: a new one is tried first.
func (c *client) ask() Answer {
	asked := time.Now()
	fresh := c.conn == nil
	health, err := c.exchange(asked.Add(Timeout))
	if err != nil && !fresh && !errors.Is(err, os.ErrDeadlineExceeded) {
		health, err = c.exchange(asked.Add(Timeout))
	}
	if err != nil {
		c.late = false
		return Answer{Asked: asked, Err: fmt.Errorf("%s: %w", c.socket, reasonOf(err)), Waits: errors.Is(err, errWaits)}
	}
	hanging, waiting := c.lookAt(asked, time.Now(), health)
	return Answer{Asked: asked, Health: health, Hanging: hanging, Waiting: waiting}
}

// exchange one request for its answer, connecting first if need be.
func (c *client) exchange(deadline time.Time) (*forwarderv1.Health, error) {
	if err := c.connect(deadline); err != nil {
		return nil, err
	}
	health, err := c.roundTrip(deadline)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.close()
	}
	return health, err
}

func (c *client) connect(deadline time.Time) error {
	if c.conn != nil {
		return nil
	}
	dialer := net.Dialer{Deadline: deadline}
	for {
		conn, err := dialer.Dial("unixpacket", c.socket)
		if err == nil {
			c.conn = conn.(*net.UnixConn) // what "unixpacket" gives
			return nil
		}
		// Too many connections wait to be accepted: somebody listens.
		if !errors.Is(err, syscall.EAGAIN) {
			return err
		}
		if time.Until(deadline) < queueFullPause {
			return os.ErrDeadlineExceeded
		}
		time.Sleep(queueFullPause)
	}
}

func (c *client) roundTrip(deadline time.Time) (*forwarderv1.Health, error) {
	c.sequence++
	request, err := proto.Marshal(&forwarderv1.HealthRequest{Sequence: c.sequence})
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	if err := c.conn.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return nil, err
	}
	var answer *forwarderv1.Health
	err = c.receiveSoon(func() error {
		for {
			health, err := c.receive()
			if err != nil {
				return err
			}
			if health.Sequence == c.sequence {
				answer = health
				return nil
			}
		}
	}, asked, deadline)
	return answer, err
}

func (c *client) receive() (*forwarderv1.Health, error) {
	n, err := c.conn.Read(c.buffer)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	health := &forwarderv1.Health{}
	if err := proto.Unmarshal(c.buffer[:n], health); err != nil {
		return nil, fmt.Errorf("its answer cannot be read: %w", err)
	}
	return health, nil
}

// pause until the next request, or until the forwarder ends the connection.
func (c *client) pause(ctx context.Context, next time.Time) {
	if c.conn == nil {
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
		}
		return
	}
	for ctx.Err() == nil && c.conn.SetReadDeadline(next) == nil {
		// An answer that comes now is one that was waited for too long.
		if _, err := c.receive(); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				c.close()
				time.Sleep(closedPause)
			}
			return
		}
	}
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// reasonOf is what people read of an error: the system's word for it.
func reasonOf(err error) error {
	for _, known := range []error{errHangs, errWaits} {
		if errors.Is(err, known) {
			return errors.New(strings.TrimSuffix(known.Error(), ": "+os.ErrDeadlineExceeded.Error()))
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("no answer within %v", Timeout)
	}
	if errors.Is(err, io.EOF) {
		return errors.New("it closed the connection")
	}
	var call *os.SyscallError
	if errors.As(err, &call) {
		return call.Err
	}
	return err
}
