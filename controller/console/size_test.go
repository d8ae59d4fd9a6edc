package console

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func httpAnswer(handler http.Handler, request *http.Request) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, request)
	return answer
}

// largeState as bench/control makes it: services over a hundredth as many pools.
func largeState(services, backends int) *controllerv1.GetStateResponse {
	state := smallState()
	state.Services, state.Backends, state.Routes = nil, nil, nil
	pools := max(1, services/100)
	for i := range services {
		vip := fmt.Sprintf("203.0.%d.%d", i/250, i%250)
		pool := fmt.Sprintf("pool-%d", i%pools)
		state.Services = append(state.Services, &controllerv1.Service{
			Name: fmt.Sprintf("service-%d", i), Group: pool, Vips: []string{vip + " tcp 80,443"}, State: "serving", Backends: uint32(backends / pools), BackendsActive: uint32(backends / pools), Pools: []string{pool},
		})
		state.Routes = append(state.Routes, &controllerv1.Route{Prefix: vip + "/32", Announced: true, Services: []string{fmt.Sprintf("service-%d", i)}, Since: timestamppb.Now()})
	}
	for i := range backends {
		pool := fmt.Sprintf("pool-%d", i%pools)
		b := &controllerv1.Backend{
			Group: pool, Services: uint32(services / pools), Name: fmt.Sprintf("backend-%d", i), Address: fmt.Sprintf("10.64.%d.%d", i/250, i%250), Weight: 1,
			State: "active", Reason: "http-ok: status 200", Pools: []string{pool}, Since: timestamppb.Now(),
		}
		if i%50 == 7 {
			b.State, b.Reason = "down", "http-ok: no answer within 1s"
		}
		state.Backends = append(state.Backends, b)
	}
	return state
}

// The issue asks for a second, with 10,000 services.
func TestPagesOfALargeSiteAreSmallAndMadeAtOnce(t *testing.T) {
	s := newSite(t, largeState(10_000, 20_000))
	for _, path := range []string{"/", "/services", "/services?q=service-99&sort=packets", "/backends", "/backends?q=10.64.7+down", "/service?name=service-7", "/routes", "/events", "/drops", "/machines", "/moves"} {
		s.console.view, s.console.gate = New(s.console.log, begin(t), s.console.sources).view, newGate() // as nobody had asked before
		var packed, whole int
		var took [2]time.Duration
		for i := range took {
			request := httptest.NewRequest(http.MethodGet, path, nil)
			request.Header.Set("Accept-Encoding", "gzip")
			begun := time.Now()
			answer := httpAnswer(s, request)
			took[i] = time.Since(begun)
			if answer.Code != http.StatusOK {
				t.Fatalf("%s: %d %s", path, answer.Code, answer.Body)
			}
			packed = answer.Body.Len()
			text, err := gzip.NewReader(bytes.NewReader(answer.Body.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			read, err := io.Copy(io.Discard, text)
			if whole = int(read); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%-36s %6.1f ms, then %5.2f ms; %6d bytes, %5d packed", path, ms(took[0]), ms(took[1]), whole, packed)
		if took[0] > time.Second || whole > 128<<10 {
			t.Errorf("%s: %v, %d bytes", path, took[0], whole)
		}
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// BenchmarkSearch of one page of 10,000 services or 20,000 backends, by everyone another one.
func BenchmarkSearch(b *testing.B) {
	s := newSite(b, largeState(10_000, 20_000))
	v, _, err := s.console.readView(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	for _, path := range []string{"/services?q=nothing", "/services?sort=packets", "/backends?q=nothing", "/backends?sort=name"} {
		b.Run(path, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p, err := parsePage(httptest.NewRequest(http.MethodGet, path, nil).URL)
				if err == nil {
					_, err = p.kind.build(&builder{view: v, page: p, events: s.events, hours: s.console.sources.Rates})
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
