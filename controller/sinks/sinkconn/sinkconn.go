// Package sinkconn is a sink's connection to another process of this machine, by gRPC over
// its Unix socket. The process need not be running yet, and may restart: a sink polls at
// each interval, and at once when it is woken.
package sinkconn

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
)

// Dial prepares a connection to the socket of a process, whose name stands in the
// error. Messages either way may have up to messageBytesMax.
func Dial(process, socket string, messageBytesMax int, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	// gRPC's own backoff grows to two minutes: far too long for a socket that
	// is back in a moment.
	retry := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.2, MaxDelay: 100 * time.Millisecond}
	conn, err := grpc.NewClient("unix:"+socket, append(options,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(messageBytesMax), grpc.MaxCallSendMsgSize(messageBytesMax)),
		grpc.WithIdleTimeout(0))...)
	if err != nil {
		return nil, fmt.Errorf("%s socket %s: %w", process, socket, err)
	}
	return conn, nil
}

// Waker wakes a sink's loop before its interval is over. However often it is woken
// meanwhile, the loop runs once.
type Waker chan struct{}

// NewWaker makes one that is not woken yet.
func NewWaker() Waker { return make(Waker, 1) }

// Wake never blocks.
func (w Waker) Wake() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// WakeWhenConnected or disconnected, until the context ends: a closed socket is seen
// at once instead of with the next poll.
func (w Waker) WakeWhenConnected(ctx context.Context, conn *grpc.ClientConn) {
	conn.Connect()
	for state := conn.GetState(); conn.WaitForStateChange(ctx, state); state = conn.GetState() {
		if state == connectivity.Ready || conn.GetState() == connectivity.Ready {
			w.Wake()
		}
	}
}
