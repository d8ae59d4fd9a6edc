package run

// The HTTP listener, whose address may change with the config.

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/console"
	"github.com/guideway/guideway/controller/web"
)

func (c *Controller) httpHandler() http.Handler {
	mux := web.Handler(c.Go, c.metrics.Page, c.notReady)
	console.New(c.log, c.Go, console.Sources{
		State: c.State, Fleet: c.Fleet, Rates: c.rates, Events: c.told, ObjectsOf: c.ObjectsOf,
	}).Register(mux)
	return mux
}

type webServer struct {
	log     *slog.Logger
	handler http.Handler
	// Those that its server and former ones run in.
	tasks   *sync.WaitGroup
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
	w.tasks.Go((&webServer{server: w.server}).stop)
	w.address = address
	server := web.NewServer(w.handler)
	w.server = server
	w.tasks.Go(func() {
		if err := server.Serve(web.Limit(listener)); !errors.Is(err, http.ErrServerClosed) {
			w.log.Error("HTTP server ended", "address", address, "error", err)
		}
	})
	w.log.Info("serving /metrics, /readyz, /healthz and the console", "address", listener.Addr())
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
