package api

// What clients may cost, however many they are and whatever they do. A client
// that does not read costs the memory of its answers: these bytes are counted
// from the moment an answer exists until the kernel has taken them.

import (
	"context"
	"math"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	// More wait in the kernel's queue. Each takes some 50 KiB.
	connectionsMax = 256
	// Requests at a time over one connection.
	streamsMax = 16
	// The longest request names a backend.
	requestBytesMax = 64 << 10
	// Of all answers not yet taken; one that is larger is sent alone.
	answersBytesMax = 64 << 20
	// A connection whose client has not taken its answers by then is closed.
	answerTimeout = 30 * time.Second
	// States of everything that are made at a time.
	statesMax = 2
	// How long a request waits for that.
	queueTimeout = 10 * time.Second
	// A connection without a request is closed after this time, and one whose
	// other end is gone within the sum of the other two.
	idleMax          = time.Minute
	keepaliveAfter   = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	// A client that pings more often is disconnected.
	pingIntervalMin = 10 * time.Second
)

// limiter is what all connections of a server share.
type limiter struct {
	states chan struct{}

	mu    sync.Mutex
	bytes int // of answers not yet taken
}

func newLimiter() *limiter { return &limiter{states: make(chan struct{}, statesMax)} }

func (l *limiter) options() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxConcurrentStreams(streamsMax),
		grpc.MaxRecvMsgSize(requestBytesMax),
		grpc.ConnectionTimeout(keepaliveTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleMax, Time: keepaliveAfter, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingIntervalMin, PermitWithoutStream: true}),
		grpc.ChainUnaryInterceptor(l.answer),
	}
}

// answer a request, if the client's connection may still owe us its reading.
func (l *limiter) answer(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	response, err := handler(ctx, request)
	message, ok := response.(proto.Message)
	if err != nil || !ok {
		return response, err
	}
	from, ok := peer.FromContext(ctx)
	if !ok {
		return response, nil
	}
	if address, ok := from.Addr.(*clientAddr); ok && !address.conn.add(proto.Size(message)) {
		return nil, status.Error(codes.ResourceExhausted, "other clients do not read their answers, which fill the memory set aside for that: try again")
	}
	return response, nil
}

// queue for making a state; the returned function ends it.
func (l *limiter) queue(ctx context.Context) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	select {
	case l.states <- struct{}{}:
		return func() { <-l.states }, nil
	case <-ctx.Done():
		return nil, status.Error(codes.ResourceExhausted, "too many clients ask at the same time: try again")
	}
}

// listen hands out connections that are counted, up to a number at a time.
func (l *limiter) listen(listener net.Listener) net.Listener {
	return &limitedListener{Listener: listener, limiter: l, places: make(chan struct{}, connectionsMax), closed: make(chan struct{})}
}

type limitedListener struct {
	net.Listener
	limiter *limiter
	places  chan struct{}
	once    sync.Once
	closed  chan struct{}
}

func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &clientConn{Conn: conn, limiter: l.limiter, leave: func() { <-l.places }}, nil
}

func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// clientConn counts what its client has not taken yet.
type clientConn struct {
	net.Conn
	limiter *limiter
	leave   func()
	once    sync.Once

	// Under the limiter's lock.
	bytes   int
	closed  bool
	tooLate *time.Timer
}

// clientAddr is how a request finds its connection.
type clientAddr struct {
	net.Addr
	conn *clientConn
}

func (c *clientConn) RemoteAddr() net.Addr { return &clientAddr{c.Conn.RemoteAddr(), c} }

// SyscallConn is for those who ask the kernel who the client is.
func (c *clientConn) SyscallConn() (syscall.RawConn, error) {
	inner, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, syscall.EINVAL
	}
	return inner.SyscallConn()
}

// add an answer; false: there is no room for it.
func (c *clientConn) add(bytes int) bool {
	l := c.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.closed || (l.bytes > 0 && l.bytes+bytes > answersBytesMax) {
		return false
	}
	if c.bytes == 0 {
		c.tooLate = time.AfterFunc(answerTimeout, func() { _ = c.Close() })
	}
	c.bytes += bytes
	l.bytes += bytes
	return true
}

// take off what is written. Headers count as well, so that the rest of an
// answer may be missing from the count while the last of it is sent.
func (c *clientConn) take(bytes int) {
	l := c.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes = min(bytes, c.bytes)
	c.bytes -= bytes
	l.bytes -= bytes
	if c.bytes == 0 && c.tooLate != nil {
		c.tooLate.Stop()
	}
}

func (c *clientConn) Write(data []byte) (int, error) {
	n, err := c.Conn.Write(data)
	c.take(n)
	return n, err
}

func (c *clientConn) Close() error {
	c.once.Do(func() {
		c.limiter.mu.Lock()
		c.closed = true
		c.limiter.mu.Unlock()
		c.take(math.MaxInt)
		c.leave()
	})
	return c.Conn.Close()
}
