// Package web serves people and machines that speak HTTP: a status page,
// /metrics, /healthz and /readyz. Everything is read only.
package web

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"strings"
	"time"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

//go:embed status.html
var files embed.FS

var page = template.Must(template.New("status.html").Funcs(template.FuncMap{
	"ago": func(t interface{ AsTime() time.Time }) string {
		return time.Since(t.AsTime()).Round(time.Second).String()
	},
	"join": func(words []string) string { return strings.Join(words, ", ") },
}).ParseFS(files, "status.html"))

// Sources are where the answers come from.
type Sources struct {
	State    func(context.Context) (*controllerv1.GetStateResponse, error)
	Counters func(context.Context) (*forwarderv1.GetCountersResponse, error)
	Metrics  http.Handler
}

// Handler answers all paths.
func Handler(log *slog.Logger, sources Sources) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", sources.Metrics)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { readyz(w, r, sources) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { status(log, w, r, sources) })
	return mux
}

// readyz is for those who send traffic or go on with a rolling change.
func readyz(w http.ResponseWriter, r *http.Request, sources Sources) {
	state, err := sources.State(r.Context())
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	case len(state.NotReady) > 0:
		http.Error(w, strings.Join(state.NotReady, "\n"), http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ready")
	}
}

type statusPage struct {
	*controllerv1.GetStateResponse
	Counters *forwarderv1.GetCountersResponse
	// Why there are no counters.
	NoCounters string
}

func status(log *slog.Logger, w http.ResponseWriter, r *http.Request, sources Sources) {
	state, err := sources.State(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	shown := statusPage{GetStateResponse: state}
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	if shown.Counters, err = sources.Counters(ctx); err != nil {
		shown.NoCounters = err.Error()
	}
	var body bytes.Buffer
	if err := page.Execute(&body, shown); err != nil {
		log.Error("status page", "error", err)
		http.Error(w, "the status page has a fault: see the controller's log", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	_, _ = w.Write(body.Bytes()) // the reader went away
}
