package web

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func get(t *testing.T, path string, state *controllerv1.GetStateResponse, counters *forwarderv1.GetCountersResponse) (int, string) {
	t.Helper()
	handler := Handler(slog.New(slog.DiscardHandler), begin(t), Sources{
		State: func(context.Context) (*controllerv1.GetStateResponse, error) { return state, nil },
		Counters: func(context.Context) (*forwarderv1.GetCountersResponse, error) {
			if counters == nil {
				return nil, errors.New("the forwarder does not answer")
			}
			return counters, nil
		},
		Metrics:  func(context.Context) ([]byte, error) { return []byte("metrics here"), nil },
		NotReady: func(context.Context) ([]string, error) { return state.NotReady, nil },
	})
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest("GET", path, nil))
	return answer.Code, answer.Body.String()
}

func state() *controllerv1.GetStateResponse {
	return &controllerv1.GetStateResponse{
		Machine:   &controllerv1.Machine{Name: "lb-1", State: "serving"},
		Config:    &controllerv1.Config{Source: "c.yaml"},
		Forwarder: &controllerv1.Forwarder{Healthy: true},
		Services:  []*controllerv1.Service{{Name: "<web>", Vips: []string{"203.0.113.10 tcp 80"}, State: "serving"}},
		Backends:  []*controllerv1.Backend{{Service: "web", Name: "web-1", State: "down", Reason: "http-ok: status 503", Since: timestamppb.Now()}},
		Routes:    []*controllerv1.Route{{Prefix: "203.0.113.10/32", Reason: "no backend"}},
		Neighbors: []*controllerv1.Neighbor{{Address: "10.0.0.254", State: "active"}},
	}
}

func TestThePageShowsWhatPeopleAskFor(t *testing.T) {
	counters := &forwarderv1.GetCountersResponse{Received: 12345, Dropped: []*forwarderv1.Drop{{Reason: "no_service", Packets: 7, Meaning: "no service has it"}, {Reason: "quiet"}}}
	code, body := get(t, "/", state(), counters)
	if code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	for _, want := range []string{"lb-1", "&lt;web&gt;", "203.0.113.10 tcp 80", "http-ok: status 503", "no backend", "10.0.0.254", "12345", "no_service", "no service has it"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(body, "quiet") {
		t.Error("a reason without packets is shown")
	}
}

func TestThePageLivesWithoutAForwarder(t *testing.T) {
	if code, body := get(t, "/", state(), nil); code != http.StatusOK || !strings.Contains(body, "the forwarder does not answer") {
		t.Errorf("%d %s", code, body)
	}
}

func TestReadinessAndHealth(t *testing.T) {
	waiting := state()
	waiting.NotReady = []string{"no BGP session up"}
	cases := []struct {
		path  string
		state *controllerv1.GetStateResponse
		code  int
		body  string
	}{
		{"/healthz", waiting, http.StatusOK, "ok"},
		{"/readyz", waiting, http.StatusServiceUnavailable, "no BGP session up"},
		{"/readyz", state(), http.StatusOK, "ready"},
		{"/metrics", state(), http.StatusOK, "metrics here"},
		{"/elsewhere", state(), http.StatusNotFound, "not found"},
	}
	for _, c := range cases {
		if code, body := get(t, c.path, c.state, nil); code != c.code || !strings.Contains(body, c.body) {
			t.Errorf("%s: %d %q, want %d %q", c.path, code, body, c.code, c.body)
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
