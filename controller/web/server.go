package web

import (
	"context"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
)

// What clients can cost, however many they are and whatever they do: memory
// of 512 connections is some 20 MiB; each page is bounded apart (page.go).
const (
	// More wait in the kernel's queue.
	connectionsMax = 512
	headerTimeout  = 5 * time.Second
	headerBytesMax = 8 << 10
	// A page of 30 MB in this time is 16 Mbit/s.
	writeTimeout = 15 * time.Second
	idleTimeout  = 30 * time.Second
	// Of the kernel, for each connection; it would take up to 4 MiB.
	sendBufferBytes = 256 << 10
)

// NewServer answers by the handler, within time limits.
func NewServer(handler http.Handler) *http.Server {
	stopping, stop := context.WithCancel(context.Background())
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: 2 * headerTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytesMax,
		BaseContext: func(net.Listener) context.Context {
			return context.WithValue(context.Background(), stoppingKey{}, stopping)
		},
	}
	server.RegisterOnShutdown(stop)
	return server
}

type stoppingKey struct{}

// Stopping is closed when the request's server shuts down, which waits for requests:
// a stream that would go on for long ends then.
func Stopping(r *http.Request) <-chan struct{} {
	if stopping, ok := r.Context().Value(stoppingKey{}).(context.Context); ok {
		return stopping.Done()
	}
	return nil // no server of ours
}

// Limit the connections of a TCP listener, and what the kernel holds for each.
func Limit(listener net.Listener) net.Listener {
	return netutil.LimitListener(smallBuffers{listener}, connectionsMax)
}

// smallBuffers bounds what the kernel holds for clients that do not read.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBufferBytes) // a matter of memory only
	}
	return conn, err
}
