package api

// Limits what clients can cost, however many there are and whatever they do. The answers of
// a client that does not read them occupy memory: their bytes are counted from when an
// answer is made until the kernel has taken them.

import (
	"context"
	"crypto/tls"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// Over TCP; more wait in the kernel's queue. Each takes some 50 KiB. Package rundir
	// limits those of a socket.
	connectionsMax = 256
	// Requests at a time over one connection.
	streamsMax = 16
	// A request that brings a config has more: uploadBytesMax.
	requestBytesMax = 64 << 10
	// Of a string in a request: a path, or why a config is applied.
	textBytesMax = 512
	// Of all answers not yet taken; one that is larger is sent alone.
	answersBytesMax = 64 << 20
	// A connection whose client has not taken its answers by then is closed.
	answerTimeout = 30 * time.Second
	// States of everything that are made at a time, and answers of the forwarder.
	statesMax = 2
	// How long a request waits for that.
	queueTimeout = 10 * time.Second
	// How long a client may take for the config that it sends.
	uploadTimeout = 30 * time.Second
	// A connection without a request is closed after this time, and one whose
	// other end is gone within the sum of the other two.
	idleMax          = time.Minute
	keepaliveAfter   = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	// How long a client may take to send a request's header, and a handshake.
	headerTimeout  = 5 * time.Second
	headerBytesMax = 16 << 10
	// Of requests that are not read yet, over one connection.
	receiveBytesMax = 256 << 10
	// A stream ends by then.
	streamMax = 10 * time.Minute
	// Streams of events and rates at a time. One of events copies the log when it begins, some
	// 2 MiB.
	watchersMax = 32
	// Of one user, who cannot keep others out.
	watchersOfUserMax = 8
	// What a state becomes as JSON, and the message beside it. Answers with more zeros become more,
	// and are small.
	jsonInflation = 4
)

// limiter is what all connections of a server share.
type limiter struct {
	states chan struct{}
	// Places of those who wait for the forwarder, which may hang.
	forwarder chan struct{}
	// One place, over all requests that bring a config.
	uploads chan struct{}

	mu    sync.Mutex
	bytes int // of answers not yet taken
	// Streams of events and rates, all and by user.
	watching int
	watchers map[string]int
}

func newLimiter() *limiter {
	return &limiter{states: make(chan struct{}, statesMax), forwarder: make(chan struct{}, statesMax), uploads: make(chan struct{}, 1), watchers: map[string]int{}}
}

// server with limits, whose requests find their connection by connOf.
func (l *limiter) server(handler http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)            // over TLS
	protocols.SetUnencryptedHTTP2(true) // gRPC over a unix socket
	return &http.Server{
		Handler: handler, Protocols: protocols,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: uploadTimeout, IdleTimeout: idleMax, MaxHeaderBytes: headerBytesMax,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: streamsMax, MaxReceiveBufferPerConnection: receiveBytesMax, MaxReceiveBufferPerStream: requestBytesMax,
			SendPingTimeout: keepaliveAfter, PingTimeout: keepaliveTimeout, WriteByteTimeout: answerTimeout,
		},
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if encrypted, ok := conn.(*tls.Conn); ok {
				conn = encrypted.NetConn()
			}
			return context.WithValue(ctx, connKey{}, conn)
		},
	}
}

// owe the client of a request the bytes of an answer.
func (l *limiter) owe(ctx context.Context, bytes int) error {
	if conn := connOf(ctx); conn != nil && !conn.add(bytes) {
		return status.Error(codes.ResourceExhausted, "other clients do not read their answers, which fill the memory set aside for that: try again")
	}
	return nil
}

// receive in a goroutine of its own, which ends with the stream: gRPC has no
// other limit for one message.
func receive(ctx context.Context, f func() error) error {
	received := make(chan error, 1)
	go func() { received <- f() }()
	select {
	case err := <-received:
		return err
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-time.After(uploadTimeout):
		return status.Errorf(codes.DeadlineExceeded, "nothing more came within %v", uploadTimeout)
	}
}

// queue for making a state; the returned function ends it.
func (l *limiter) queue(ctx context.Context) (func(), error) { return takePlace(ctx, l.states) }

// queueForwarder for an answer of it.
func (l *limiter) queueForwarder(ctx context.Context) (func(), error) {
	return takePlace(ctx, l.forwarder)
}

// queueUpload for sending a config.
func (l *limiter) queueUpload(ctx context.Context) (func(), error) { return takePlace(ctx, l.uploads) }

func takePlace(ctx context.Context, places chan struct{}) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	select {
	case places <- struct{}{}:
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, status.Error(codes.ResourceExhausted, "too many clients ask at the same time: try again")
	}
}

// watch takes a place for a stream of events or rates; the returned function gives it back.
func (l *limiter) watch(user string) (func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.watchers[user] >= watchersOfUserMax:
		return nil, status.Errorf(codes.ResourceExhausted, "%s watches %d times at the same time already, the limit for one user", user, watchersOfUserMax)
	case l.watching >= watchersMax:
		return nil, status.Errorf(codes.ResourceExhausted, "%d clients watch already, the limit: try again", watchersMax)
	}
	l.watching++
	l.watchers[user]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.watching--
		if l.watchers[user]--; l.watchers[user] == 0 {
			delete(l.watchers, user)
		}
	}, nil
}

// count what the clients of a listener have not taken.
func (l *limiter) count(listener net.Listener) net.Listener {
	return countingListener{listener, l}
}

type countingListener struct {
	net.Listener
	limiter *limiter
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &clientConn{Conn: conn, limiter: l.limiter}, nil
}

// clientConn counts what its client has not taken yet.
type clientConn struct {
	net.Conn
	limiter *limiter
	once    sync.Once

	// Under the limiter's lock.
	bytes   int
	closed  bool
	tooLate *time.Timer
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
	})
	return c.Conn.Close()
}
