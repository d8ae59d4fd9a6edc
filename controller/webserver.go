package controller

// The HTTP listener; its address may change with the config.

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"

	"github.com/guideway/guideway/controller/web"
)

func (c *Controller) httpHandler() http.Handler {
	return web.Handler(c.log, web.Sources{State: c.State, Counters: c.forwarderCounters, Metrics: c.metrics.Page, NotReady: c.notReady})
}

// What clients can cost, however many they are and whatever they do: memory
// of 512 connections is some 20 MiB; pages are bounded by package web.
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

// smallBuffers bounds what the kernel holds for clients that do not read.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetWriteBuffer(sendBufferBytes) // a matter of memory only
	}
	return conn, err
}

type webServer struct {
	log     *slog.Logger
	handler http.Handler
	address string
	server  *http.Server
}

// listen moves to another address. Metrics are no reason not to balance: a
// port in use is an error in the log, and the former address stays.
func (w *webServer) listen(address string) {
	if address == w.address || address == "" {
		return
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		w.log.Error("metrics.listen: cannot listen, give another address", "address", address, "error", err)
		return
	}
	// Requests under way wait for the brain's goroutine, which is this one.
	go (&webServer{server: w.server}).stop()
	w.address = address
	w.server = &http.Server{
		Handler: w.handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: 2 * headerTimeout,
		WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: headerBytesMax,
	}
	limited := netutil.LimitListener(smallBuffers{listener}, connectionsMax)
	go func(server *http.Server) {
		if err := server.Serve(limited); !errors.Is(err, http.ErrServerClosed) {
			w.log.Error("HTTP server ended", "address", address, "error", err)
		}
	}(w.server)
	w.log.Info("serving /metrics, /readyz, /healthz and the status page", "address", listener.Addr())
}

func (w *webServer) stop() {
	if w.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if w.server.Shutdown(ctx) != nil {
		_ = w.server.Close() // who is still reading now has had a second
	}
}
