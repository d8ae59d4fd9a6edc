package load

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/traffic/echo"
	"github.com/guideway/guideway/looptest"
)

func addrPort(t *testing.T, address net.Addr) netip.AddrPort {
	t.Helper()
	parsed, err := netip.ParseAddrPort(address.String())
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

func startEcho(t *testing.T) netip.AddrPort {
	t.Helper()
	address := looptest.FreeAddress(t)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() {
		if err := (echo.Server{Name: "be-1", TCP: []string{address}}).Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	for range 100 {
		if connection, err := net.Dial("tcp", address); err == nil {
			connection.Close()
			return netip.MustParseAddrPort(address)
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("echo server does not listen on %s", address)
	return netip.AddrPort{}
}

var specs atomic.Uint32

// testSpec has sources of its own: ports of an earlier test, or of an earlier
// run, may still be in TIME-WAIT.
func testSpec() Spec {
	run := [4]byte{127, byte(os.Getpid()), byte(os.Getpid()>>8) ^ byte(specs.Add(1)), 2}
	first := netip.AddrFrom4(run)
	return Spec{Seed: 1, Sources: []netip.Addr{first, first.Next()}, TimeLimit: 2 * time.Second}
}

func runFor(t *testing.T, spec Spec, duration time.Duration) Report {
	t.Helper()
	l, err := Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(duration)
	return l.Stop()
}

func nameYourself(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Backend", name)
		fmt.Fprintln(w, name)
	}
}

func TestAWholeWorldHasNoFailures(t *testing.T) {
	var turn atomic.Uint64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := "be-1"
		// Fresh ones alternate; a kept connection stays with its backend.
		if r.Close {
			name = fmt.Sprintf("be-%d", turn.Add(1)%2+1)
		}
		nameYourself(name)(w, r)
	}))
	defer web.Close()
	spec := testSpec()
	spec.Web, spec.FreshRate = []netip.AddrPort{addrPort(t, web.Listener.Addr())}, 200
	spec.KeepAliveConnections, spec.KeepAliveRate = 4, 100
	spec.Echo, spec.Connections, spec.MessageRate = []netip.AddrPort{startEcho(t)}, 20, 20

	report := runFor(t, spec, 700*time.Millisecond)
	if report.Failed != 0 || report.Broken != 0 || report.Open != 0 {
		t.Fatalf("failed %d, broken %d, open %d: %v", report.Failed, report.Broken, report.Open, report.Failures)
	}
	fresh := report.Fresh["be-1"] + report.Fresh["be-2"]
	if fresh < 100 || fresh != len(report.Recent) || report.Requests < fresh+40 {
		t.Fatalf("%d fresh, %d recent, %d requests", fresh, len(report.Recent), report.Requests)
	}
	if difference := report.Fresh["be-1"] - report.Fresh["be-2"]; difference < -1 || difference > 1 {
		t.Fatalf("shares %v", report.Fresh)
	}
	if report.Messages < 20*5 || report.LongestPause == 0 {
		t.Fatalf("%d messages, longest pause %v", report.Messages, report.LongestPause)
	}
}

// serve each connection by a function, then close it.
func serve(listener net.Listener, do func(net.Conn)) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer connection.Close()
			do(connection)
		}()
	}
}

func TestEveryWayAConversationCanBreakIsSeen(t *testing.T) {
	tests := map[string]struct {
		server func(net.Conn)
		reason string
	}{
		"closed at once": {func(net.Conn) {}, "greeting: EOF"},
		"closed later": {func(c net.Conn) {
			fmt.Fprintln(c, "be-1")
			_, _ = io.ReadAtLeast(c, make([]byte, 4000), 28)
		}, "EOF"},
		"one byte changed": {func(c net.Conn) {
			fmt.Fprintln(c, "be-1")
			buffer := make([]byte, 4000)
			n, _ := c.Read(buffer)
			buffer[n-1] ^= 1
			_, _ = c.Write(buffer[:n])
			_, _ = c.Read(buffer)
		}, "came back changed"},
		"an earlier message again": {func(c net.Conn) {
			fmt.Fprintln(c, "be-1")
			first := make([]byte, 4000)
			n, _ := c.Read(first)
			for {
				if _, err := c.Write(first[:n]); err != nil {
					return
				}
				if _, err := c.Read(make([]byte, 8000)); err != nil {
					return
				}
			}
		}, "message 2: "},
		"silence": {func(c net.Conn) {
			fmt.Fprintln(c, "be-1")
			_, _ = io.Copy(io.Discard, c)
		}, "time limit"},
		"reset": {func(c net.Conn) {
			fmt.Fprintln(c, "be-1")
			_ = c.(*net.TCPConn).SetLinger(0)
		}, "reset"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			listener := listen(t)
			go serve(listener, test.server)
			spec := testSpec()
			spec.TimeLimit = 300 * time.Millisecond
			spec.Echo, spec.Connections, spec.MessageRate = []netip.AddrPort{addrPort(t, listener.Addr())}, 1, 50
			report := runFor(t, spec, 600*time.Millisecond)
			if report.Broken != 1 || len(report.Failures) != 1 || report.Failed != 0 {
				t.Fatalf("report %+v", report)
			}
			if got := report.Failures[0]; !strings.Contains(got.Reason, test.reason) || got.Kind != KindEcho || !got.Flow.Source.IsValid() {
				t.Errorf("failure %+v, want reason %q", got, test.reason)
			}
		})
	}
}

func TestARequestThatFailsIsCountedOnceAndNotTriedAgain(t *testing.T) {
	tests := map[string]struct {
		handler http.HandlerFunc
		reason  string
	}{
		"status": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }, "status 502"},
		"wrong backend": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Backend", "be-1")
			fmt.Fprint(w, "be-2")
		}, "be-2"},
		"torn": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var served atomic.Int64
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				served.Add(1)
				test.handler(w, r)
			}))
			defer web.Close()
			spec := testSpec()
			spec.Web, spec.FreshRate = []netip.AddrPort{addrPort(t, web.Listener.Addr())}, 50
			report := runFor(t, spec, 300*time.Millisecond)
			if report.Failed == 0 || report.Failed != report.Requests || report.Failed != int(served.Load()) {
				t.Fatalf("%d requests, %d failed, %d served", report.Requests, report.Failed, served.Load())
			}
			if !strings.Contains(report.Failures[0].Reason, test.reason) {
				t.Errorf("reason %q, want %q", report.Failures[0].Reason, test.reason)
			}
		})
	}
}

func TestTheLongestRequestIsThatOfASlowAnswer(t *testing.T) {
	const slow = 150 * time.Millisecond
	var served atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if served.Add(1) == 3 {
			time.Sleep(slow)
		}
		nameYourself("be-1")(w, r)
	}))
	defer web.Close()
	spec := testSpec()
	spec.Web, spec.FreshRate = []netip.AddrPort{addrPort(t, web.Listener.Addr())}, 50
	report := runFor(t, spec, 300*time.Millisecond)
	if report.Failed > 0 || report.LongestRequest < slow || report.LongestPause != 0 {
		t.Errorf("%+v", report)
	}
}

func TestNobodyListeningIsAFailureOfEachKind(t *testing.T) {
	nobody := netip.MustParseAddrPort(looptest.FreeAddress(t))
	spec := testSpec()
	spec.Web, spec.Echo = []netip.AddrPort{nobody}, []netip.AddrPort{nobody}
	spec.FreshRate, spec.KeepAliveConnections, spec.KeepAliveRate = 20, 2, 20
	spec.Connections, spec.MessageRate = 3, 1
	report := runFor(t, spec, 400*time.Millisecond)
	kinds := map[string]int{}
	for _, failure := range report.Failures {
		kinds[failure.Kind]++
		if !strings.Contains(failure.Reason, "refused") {
			t.Errorf("reason %q", failure.Reason)
		}
	}
	if kinds[KindEcho] != 3 || report.Broken != 3 || kinds[KindFresh] < 4 || kinds[KindKeepAlive] < 4 {
		t.Fatalf("kinds %v, report %+v", kinds, report)
	}
}

func TestAMarkBeginsANewCount(t *testing.T) {
	var name atomic.Value
	name.Store("before")
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		nameYourself(name.Load().(string))(w, r)
	}))
	defer web.Close()
	spec := testSpec()
	spec.Web, spec.FreshRate = []netip.AddrPort{addrPort(t, web.Listener.Addr())}, 200
	l, err := Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	name.Store("after")
	l.Mark()
	time.Sleep(200 * time.Millisecond)
	report := l.Stop()
	if report.Fresh["before"] != 0 || report.Fresh["after"] < 20 || report.Requests <= report.Fresh["after"] {
		t.Fatalf("after the mark %v of %d", report.Fresh, report.Requests)
	}
}

func TestSourcesAreNeverUsedTwiceAndFollowTheSeed(t *testing.T) {
	addresses := []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("10.0.0.2")}
	destinations := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("[2001:db8:1::1]:80")}
	take := func(seed uint64, count int) []Flow {
		s, list := newSources(seed, addresses), []Flow{}
		for range count {
			flow, err := s.next(destinations)
			if err != nil {
				t.Fatal(err)
			}
			if flow.Source.Addr().Is4() != flow.Destination.Addr().Is4() {
				t.Fatalf("families differ in %v", flow)
			}
			list = append(list, flow)
		}
		return list
	}
	all := take(1, 3*portCount)
	seen := map[netip.AddrPort]bool{}
	for _, flow := range all {
		if seen[flow.Source] {
			t.Fatalf("source %v used twice", flow.Source)
		}
		seen[flow.Source] = true
	}
	if again := take(1, 1000); again[999] != all[999] || again[0] != all[0] {
		t.Error("the same seed gave other flows")
	}
	if other := take(2, 1000); other[999] == all[999] && other[0] == all[0] {
		t.Error("another seed gave the same flows")
	}
}

func TestSourcesSayWhenNoneIsLeft(t *testing.T) {
	s := newSources(1, []netip.Addr{netip.MustParseAddr("10.0.0.1")})
	if _, err := s.next([]netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:80")}); err == nil {
		t.Error("an IPv4 source for an IPv6 destination")
	}
	s.taken = portCount
	if _, err := s.next([]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:80")}); err == nil || !strings.Contains(err.Error(), "give more") {
		t.Errorf("error %v", err)
	}
}

func TestBadSpecsAreRefused(t *testing.T) {
	good := testSpec()
	tests := map[string]func(*Spec){
		"no source addresses": func(s *Spec) { s.Sources = nil },
		"time limit":          func(s *Spec) { s.TimeLimit = 0 },
		"no web address":      func(s *Spec) { s.FreshRate = 1 },
		"no echo address":     func(s *Spec) { s.Connections = 1 },
	}
	for want, change := range tests {
		spec := good
		change(&spec)
		if _, err := Start(spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", want, err)
		}
	}
}
