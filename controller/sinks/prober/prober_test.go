package prober

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guideway/guideway/controller/check"
	"github.com/guideway/guideway/controller/compile"
)

func target(address string) compile.Probe {
	return compile.Probe{
		Address:  netip.MustParseAddr(address),
		Check:    check.TCP{Port: 80},
		Interval: time.Second,
		Timeout:  500 * time.Millisecond,
	}
}

// recorder is a probe that notes when it was called.
type recorder struct {
	mu    sync.Mutex
	times map[compile.Probe][]time.Time
	act   func(context.Context, compile.Probe) (check.Answer, error)
}

func (r *recorder) probe(ctx context.Context, t compile.Probe) (check.Answer, error) {
	r.mu.Lock()
	if r.times == nil {
		r.times = map[compile.Probe][]time.Time{}
	}
	r.times[t] = append(r.times[t], time.Now())
	r.mu.Unlock()
	if r.act != nil {
		return r.act(ctx, t)
	}
	return check.Answer{Text: "ok"}, nil
}

func (r *recorder) of(t compile.Probe) []time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.times[t]
}

func TestOnceSaysOfEachProbeWhatBecameOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alive, silent := target("10.1.0.11"), target("10.1.0.12")
		p := newProber(func(ctx context.Context, probe compile.Probe) (check.Answer, error) {
			if probe == silent {
				return hang(ctx, probe)
			}
			return check.Answer{Text: "ok"}, nil
		}, 1)
		probes := []compile.Probe{alive, tunnelled, silent}
		results := p.Once(t.Context(), probes)
		if !results[0].OK || !results[1].Unsent || results[2].OK || results[2].Unsent || results[2].Reason == "" {
			t.Errorf("%+v", results)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		results = p.Once(ctx, probes)
		if !results[0].OK || !results[2].Unsent || results[2].Reason != "there was no time for it" {
			t.Errorf("in a short time: %+v", results)
		}
	})
}

func hang(ctx context.Context, _ compile.Probe) (check.Answer, error) {
	<-ctx.Done()
	return check.Answer{}, ctx.Err()
}

// drain reads results until the test ends.
func drain(t *testing.T, p *Prober) (results func() []Result) {
	var mu sync.Mutex
	var all []Result
	go func() {
		for {
			select {
			case r := <-p.Results():
				mu.Lock()
				all = append(all, r)
				mu.Unlock()
			case <-t.Context().Done():
				return
			}
		}
	}()
	return func() []Result {
		mu.Lock()
		defer mu.Unlock()
		return append([]Result(nil), all...)
	}
}

func TestATargetIsProbedSoonAndThenOncePerIntervalWithJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		p := newProber(r.probe, 10)
		drain(t, p)
		one := target("10.0.0.1")
		began := time.Now()
		p.Set([]compile.Probe{one})
		time.Sleep(20 * time.Second)
		p.Stop()
		times := r.of(one)
		if first := times[0].Sub(began); first > startSpread {
			t.Errorf("first probe after %v", first)
		}
		if n := len(times); n < 18 || n > 23 {
			t.Errorf("%d probes in 20 s", n)
		}
		distinct := map[time.Duration]bool{}
		for i := 1; i < len(times); i++ {
			gap := times[i].Sub(times[i-1])
			distinct[gap] = true
			if gap < 900*time.Millisecond || gap > 1100*time.Millisecond {
				t.Errorf("gap %v", gap)
			}
		}
		if len(distinct) < 2 {
			t.Error("no jitter")
		}
	})
}

func TestAProbeThatWaitsForASlotSaysHowLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{act: func(ctx context.Context, _ compile.Probe) (check.Answer, error) {
			time.Sleep(200 * time.Millisecond)
			return check.Answer{Text: "ok"}, nil
		}}
		p := newProber(r.probe, 1)
		results := drain(t, p)
		p.Set([]compile.Probe{target("10.0.0.1"), target("10.0.0.2")})
		time.Sleep(550 * time.Millisecond) // the start is spread over 100 ms, and then one each
		p.Stop()
		var delays []time.Duration
		for _, result := range results() {
			delays = append(delays, result.Delay)
		}
		if len(delays) != 2 || delays[0] != 0 || delays[1] < 100*time.Millisecond || delays[1] > 200*time.Millisecond {
			t.Errorf("delays %v", delays)
		}
	})
}

func TestEqualTargetsAreProbedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		p := newProber(r.probe, 10)
		results := drain(t, p)
		p.Set([]compile.Probe{target("10.0.0.1"), target("10.0.0.1")})
		time.Sleep(500 * time.Millisecond)
		p.Stop()
		if n := len(results()); n != 1 {
			t.Errorf("%d probes, want 1", n)
		}
	})
}

func TestSetKeepsTheScheduleOfWhatStaysAndStopsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		p := newProber(r.probe, 10)
		drain(t, p)
		stays, goes := target("10.0.0.1"), target("10.0.0.2")
		p.Set([]compile.Probe{stays, goes})
		for range 50 { // a restarted schedule would probe at each of these
			time.Sleep(100 * time.Millisecond)
			p.Set([]compile.Probe{stays})
		}
		p.Stop()
		if n := len(r.of(stays)); n < 4 || n > 6 {
			t.Errorf("%d probes in 5 s of the target that stays", n)
		}
		if n := len(r.of(goes)); n > 1 {
			t.Errorf("%d probes of the target that went", n)
		}
	})
}

func TestAHangingTargetDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hanging, well := target("10.0.0.1"), target("10.0.0.2")
		r := &recorder{act: func(ctx context.Context, t compile.Probe) (check.Answer, error) {
			if t == hanging {
				return hang(ctx, t)
			}
			return check.Answer{Text: "ok"}, nil
		}}
		p := newProber(r.probe, 10)
		results := drain(t, p)
		p.Set([]compile.Probe{hanging, well})
		time.Sleep(5 * time.Second)
		p.Stop()
		if n := len(r.of(well)); n < 4 {
			t.Errorf("%d probes of the well one in 5 s", n)
		}
		for _, result := range results() {
			if result.OK != (result.Probe == well) {
				t.Errorf("result %+v", result)
			}
			if !result.OK && result.Reason != "no answer within 500ms" {
				t.Errorf("reason %q", result.Reason)
			}
		}
	})
}

func TestWithoutAFreeSlotAProbeIsLateAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocking := make(chan struct{})
		r := &recorder{act: func(context.Context, compile.Probe) (check.Answer, error) {
			<-blocking
			return check.Answer{Text: "ok"}, nil
		}}
		p := newProber(r.probe, 1)
		drain(t, p)
		p.Set([]compile.Probe{target("10.0.0.1"), target("10.0.0.2")})
		time.Sleep(3 * time.Second)
		close(blocking)
		p.Stop()
		if p.Late() == 0 {
			t.Error("a second target had no slot, and it was not counted")
		}
	})
}

func TestAStoppedTargetReportsNoFailureOfItsOwnStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProber((&recorder{act: hang}).probe, 10)
		results := drain(t, p)
		p.Set([]compile.Probe{target("10.0.0.1")})
		time.Sleep(startSpread + time.Millisecond) // under way now
		p.Stop()
		synctest.Wait()
		if got := results(); len(got) != 0 {
			t.Errorf("results %v", got)
		}
	})
}

// serve starts an HTTP server and returns a target for it.
func serve(t *testing.T, network, address string, handler http.HandlerFunc) compile.Probe {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Skipf("cannot listen on %s: %v", address, err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}}
	server.Start()
	t.Cleanup(server.Close)
	return httpTarget(listener.Addr())
}

func httpTarget(address net.Addr) compile.Probe {
	at := netip.MustParseAddrPort(address.String())
	return compile.Probe{
		Address:  at.Addr(),
		Check:    check.HTTP{Port: at.Port(), Path: "/healthz?deep=1", Host: "web.example", Status: check.StatusesOf(204, 200)},
		Interval: time.Second,
		Timeout:  2 * time.Second,
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

func TestHTTPChecks(t *testing.T) {
	redirect := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/elsewhere" {
			t.Error("the redirect was followed")
		}
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	}
	asked := func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "web.example" || r.URL.RequestURI() != "/healthz?deep=1" || !r.Close {
			w.WriteHeader(http.StatusTeapot)
		}
	}
	cases := []struct {
		name, address string
		handler       http.HandlerFunc
		ok            bool
		reason        string
	}{
		{"a wanted status passes", "127.0.0.1:0", status(204), true, "status 204"},
		{"another status fails and both are named", "127.0.0.1:0", status(503), false, "status 503, wanted 200,204"},
		{"a redirect is not followed", "127.0.0.1:0", redirect, false, "status 302, wanted 200,204"},
		{"path, query, host header, own connection", "127.0.0.1:0", asked, true, "status 200"},
		{"IPv6", "[::1]:0", status(200), true, "status 200"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := New().attempt(t.Context(), serve(t, "tcp", c.address, c.handler))
			if got.OK != c.ok || got.Reason != c.reason {
				t.Errorf("got %v %q, want %v %q", got.OK, got.Reason, c.ok, c.reason)
			}
		})
	}
}

func TestAServerThatAcceptsAndStaysSilentFailsHTTPButPassesTCP(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	silent := httpTarget(listener.Addr())
	silent.Timeout = 50 * time.Millisecond
	p := New()
	if got := p.attempt(t.Context(), silent); got.OK || got.Reason != "no answer within 50ms" {
		t.Errorf("HTTP: %v %q", got.OK, got.Reason)
	}
	silent.Check = check.TCP{Port: silent.Check.(check.HTTP).Port}
	if got := p.attempt(t.Context(), silent); !got.OK || got.Reason != "connected" {
		t.Errorf("TCP: %v %q", got.OK, got.Reason)
	}
}

func TestAClosedPortIsRefusedInPlainWords(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := httpTarget(listener.Addr())
	listener.Close()
	for _, one := range []check.Check{closed.Check, check.TCP{Port: closed.Check.(check.HTTP).Port}} {
		closed.Check = one
		if got := New().attempt(t.Context(), closed); got.OK || got.Reason != "connection refused" {
			t.Errorf("%#v: %v %q", one, got.OK, got.Reason)
		}
	}
}

func TestGarbageInsteadOfHTTPFails(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			conn.Read(make([]byte, 1024))
			conn.Write([]byte("SSH-2.0-garbage\r\n\r\n"))
			conn.Close()
		}
	}()
	got := New().attempt(t.Context(), httpTarget(listener.Addr()))
	if got.OK || !strings.Contains(got.Reason, "malformed") {
		t.Errorf("%v %q", got.OK, got.Reason)
	}
}

func TestReasonsAreShort(t *testing.T) {
	if got := check.Reason(errors.New("odd"), time.Second); got != "odd" {
		t.Errorf("got %q", got)
	}
}
