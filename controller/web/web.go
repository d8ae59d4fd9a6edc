// Package web serves people and machines that speak HTTP: a status page,
// /metrics, /healthz and /readyz. Everything is read only. Whatever the number
// of clients, each page is made at most once a second.
package web

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

//go:embed status.html
var files embed.FS

var statusTemplate = template.Must(template.New("status.html").Funcs(template.FuncMap{
	"ago": func(t interface{ AsTime() time.Time }) string {
		return time.Since(t.AsTime()).Round(time.Second).String()
	},
	"join": func(words []string) string { return strings.Join(words, ", ") },
}).ParseFS(files, "status.html"))

// Sources are where the answers come from.
type Sources struct {
	State    func(context.Context) (*controllerv1.GetStateResponse, error)
	Counters func(context.Context) (*forwarderv1.GetCountersResponse, error)
	// In Prometheus' text format.
	Metrics func(context.Context) ([]byte, error)
	// Empty: ready. Else what is missing, a sentence each.
	NotReady func(context.Context) ([]string, error)
}

// readyAge: what brings traffic here must hear soon that it should not.
const readyAge = 100 * time.Millisecond

// Handler answers all paths.
func Handler(log *slog.Logger, begin Begin, sources Sources) http.Handler {
	mux := MetricsHandler(begin, sources.Metrics)
	mux.Handle("GET /readyz", readyz(begin, sources))
	status := newPage(begin, pageAge, func(ctx context.Context) ([]byte, error) { return status(ctx, log, sources) })
	mux.Handle("GET /{$}", serve(status, "text/html; charset=utf-8"))
	return mux
}

// MetricsHandler answers /metrics, and /healthz while the process lives.
func MetricsHandler(begin Begin, metrics func(context.Context) ([]byte, error)) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.Handle("GET /metrics", serve(newPage(begin, pageAge, metrics), "text/plain; version=0.0.4; charset=utf-8"))
	return mux
}

func serve(p *page, contentType string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, release, err := p.get(r.Context())
		defer release()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content) // the reader went away, or was too slow
	})
}

// readyz is for those who send traffic or go on with a rolling change. Empty
// content: ready.
func readyz(begin Begin, sources Sources) http.Handler {
	missing := newPage(begin, readyAge, func(ctx context.Context) ([]byte, error) {
		missing, err := sources.NotReady(ctx)
		return []byte(strings.Join(missing, "\n")), err
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, release, err := missing.get(r.Context())
		defer release()
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case len(content) > 0:
			http.Error(w, string(content), http.StatusServiceUnavailable)
		default:
			fmt.Fprintln(w, "ready")
		}
	})
}

type statusPage struct {
	*controllerv1.GetStateResponse
	Counters *forwarderv1.GetCountersResponse
	// Why there are no counters.
	NoCounters string
}

func status(ctx context.Context, log *slog.Logger, sources Sources) ([]byte, error) {
	state, err := sources.State(ctx)
	if err != nil {
		return nil, err
	}
	shown := statusPage{GetStateResponse: state}
	countersCtx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if shown.Counters, err = sources.Counters(countersCtx); err != nil {
		shown.NoCounters = err.Error()
	}
	var body bytes.Buffer
	if err := statusTemplate.Execute(&body, shown); err != nil {
		log.Error("status page", "error", err)
		return nil, errors.New("the status page has a fault: see the controller's log")
	}
	return body.Bytes(), nil
}
