// Package web serves HTTP for programs: /metrics, /healthz and /readyz; and it has the
// limits for all HTTP. Everything is read only. Whatever the number of clients, each page
// is made at most once a second.
package web

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// readyAge: what brings traffic here must hear soon that it should not.
const readyAge = 100 * time.Millisecond

// Handler answers /metrics, /healthz, and /readyz by what is missing: empty, or a sentence
// each.
func Handler(begin Begin, metrics func(context.Context) ([]byte, error), notReady func(context.Context) ([]string, error)) *http.ServeMux {
	mux := MetricsHandler(begin, metrics)
	mux.Handle("GET /readyz", readyz(begin, notReady))
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
	p := NewShared(begin, pageAge, func(ctx context.Context) ([]byte, int, error) {
		content, err := make(ctx)
		if err != nil {
			return nil, 0, err
		}
		packed := Pack(content)
		return packed, len(packed), nil
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, release, err := p.Get(r.Context())
		defer release()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		ServePacked(w, r, content, contentType)
	})
}

// Pack a page for ServePacked.
func Pack(content []byte) []byte {
	var to bytes.Buffer
	writer, _ := gzip.NewWriterLevel(&to, gzip.BestSpeed) // a level that there is
	_, _ = writer.Write(content)                          // memory takes everything
	_ = writer.Close()
	return to.Bytes()
}

// ServePacked answers by what Pack made: as it is for clients that take it, else as text.
func ServePacked(w http.ResponseWriter, r *http.Request, packed []byte, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Vary", "Accept-Encoding")
	if takesGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Length", strconv.Itoa(len(packed)))
		_, _ = w.Write(packed) // the reader went away, or was too slow
		return
	}
	if text, err := gzip.NewReader(bytes.NewReader(packed)); err == nil { // it is ours
		_, _ = io.Copy(w, text) // as above
	}
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

// readyz is for those who send traffic or go on with a rolling change.
func readyz(begin Begin, notReady func(context.Context) ([]string, error)) http.Handler {
	shared := NewShared(begin, readyAge, func(ctx context.Context) (string, int, error) {
		missing, err := notReady(ctx)
		text := strings.Join(missing, "\n")
		return text, len(text), err
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		missing, release, err := shared.Get(r.Context())
		defer release()
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case missing != "":
			http.Error(w, missing, http.StatusServiceUnavailable)
		default:
			fmt.Fprintln(w, "ready")
		}
	})
}
