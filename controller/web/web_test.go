package web

import (
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestReadinessAndHealth(t *testing.T) {
	var missing []string
	metrics := func(context.Context) ([]byte, error) { return []byte("metrics here"), nil }
	cases := []struct {
		path    string
		missing []string
		code    int
		body    string
	}{
		{"/healthz", []string{"no BGP session up"}, http.StatusOK, "ok"},
		{"/readyz", []string{"no BGP session up", "no plan"}, http.StatusServiceUnavailable, "no BGP session up\nno plan"},
		{"/readyz", nil, http.StatusOK, "ready"},
		{"/metrics", nil, http.StatusOK, "metrics here"},
		{"/elsewhere", nil, http.StatusNotFound, "not found"},
	}
	for _, c := range cases {
		missing = c.missing
		answer := httptest.NewRecorder()
		Handler(begin(t), metrics, func(context.Context) ([]string, error) { return missing, nil }).ServeHTTP(answer, httptest.NewRequest("GET", c.path, nil))
		if answer.Code != c.code || !strings.Contains(answer.Body.String(), c.body) {
			t.Errorf("%s: %d %q, want %d %q", c.path, answer.Code, answer.Body, c.code, c.body)
		}
	}
}

// Metrics of a large site are twenty times as long as they are packed.
func TestPagesArePackedForWhoTakesThem(t *testing.T) {
	text := strings.Repeat("guideway_vip_packets_total{service=\"web\"} 1\n", 10_000)
	handler := MetricsHandler(begin(t), func(context.Context) ([]byte, error) { return []byte(text), nil })
	for accepts, isPacked := range map[string]bool{
		"": false, "identity": false, "gzip": true, "deflate, gzip;q=0.5": true, "gzip;q=0": false, "gzip;q=0.0, br": false, "gzipped": false,
	} {
		request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		request.Header.Set("Accept-Encoding", accepts)
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, request)
		body := io.Reader(answer.Body)
		if isPacked {
			if answer.Body.Len() > len(text)/20 || answer.Header().Get("Content-Encoding") != "gzip" {
				t.Errorf("%q: %d bytes, %v", accepts, answer.Body.Len(), answer.Header())
			}
			reader, err := gzip.NewReader(answer.Body)
			if err != nil {
				t.Fatal(err)
			}
			body = reader
		}
		if read, err := io.ReadAll(body); err != nil || string(read) != text || answer.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("%q: %v, %d bytes", accepts, err, len(read))
		}
	}
}
