// Package web serves people and machines that speak HTTP: a status page,
// /metrics, /healthz and /readyz. Everything is read only. Whatever the number
// of clients, each page is made at most once a second.
package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io"
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
	status := func(ctx context.Context) ([]byte, error) { return status(ctx, log, sources) }
	mux.Handle("GET /{$}", serve(begin, status, "text/html; charset=utf-8"))
	return mux
}

// MetricsHandler answers /metrics, and /healthz while the process lives.
func MetricsHandler(begin Begin, metrics func(context.Context) ([]byte, error)) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.Handle("GET /metrics", serve(begin, metrics, "text/plain; version=0.0.4; charset=utf-8"))
	return mux
}

// serve a page that is packed when it is made: metrics of 10,000 services are 10 MB of text,
// and half a MB packed.
func serve(begin Begin, make func(context.Context) ([]byte, error), contentType string) http.Handler {
	p := newPage(begin, pageAge, func(ctx context.Context) ([]byte, error) {
		content, err := make(ctx)
		if err != nil {
			return nil, err
		}
		return packed(content)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, release, err := p.get(r.Context())
		defer release()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		w.Header().Set("Vary", "Accept-Encoding")
		if takesGzip(r) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Length", strconv.Itoa(len(content)))
			_, _ = w.Write(content) // the reader went away, or was too slow
			return
		}
		if text, err := gzip.NewReader(bytes.NewReader(content)); err == nil { // it is ours
			_, _ = io.Copy(w, text) // as above
		}
	})
}

func packed(content []byte) ([]byte, error) {
	var to bytes.Buffer
	writer, err := gzip.NewWriterLevel(&to, gzip.BestSpeed)
	if err == nil {
		_, err = writer.Write(content)
	}
	if err == nil {
		err = writer.Close()
	}
	return to.Bytes(), err
}

func takesGzip(r *http.Request) bool {
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, quality, _ := strings.Cut(strings.TrimSpace(coding), ";")
		if name == "gzip" {
			return strings.Trim(quality, " q=0.") != "" || quality == ""
		}
	}
	return false
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
