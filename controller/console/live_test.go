package console

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/web"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// pipes is a listener whose connections hold nothing by themselves: a reader that does not
// read is felt at once.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours, nil
}

// serve a site as the controller does, and return a client of it and what ends the server.
func serve(t *testing.T, s *site) (client *http.Client, shutdown func() error) {
	listener := &pipes{make(chan net.Conn), make(chan struct{})}
	server := web.NewServer(s)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // until it is shut down
	shutdown = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return server.Shutdown(ctx)
	}
	t.Cleanup(func() { _ = shutdown(); _ = server.Close(); serving.Wait() })
	transport := &http.Transport{DialContext: listener.dial}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, shutdown
}

// opened page, as a browser has it.
type opened struct {
	*http.Response
	lines *bufio.Scanner
}

func open(t *testing.T, client *http.Client, page string) *opened {
	t.Helper()
	response, err := client.Get("http://lb-1/live?of=" + url.QueryEscape(page))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	return &opened{response, lines}
}

// next update; false: the stream has ended.
func (o *opened) next(t *testing.T) (u received, more bool) {
	t.Helper()
	for o.lines.Scan() {
		if text, isData := strings.CutPrefix(o.lines.Text(), "data: "); isData {
			if err := json.Unmarshal([]byte(text), &u); err != nil {
				t.Errorf("%v: %s", err, text)
			}
			return u, true
		}
	}
	return u, false
}

// until an update is as it should be, within some seconds.
func (o *opened) until(t *testing.T, what string, is func(received) bool) {
	t.Helper()
	begun := time.Now()
	for {
		u, more := o.next(t)
		switch {
		case !more || time.Since(begun) > 5*time.Second:
			t.Fatalf("%s: not seen within %v", what, time.Since(begun))
		case is(u):
			return
		}
	}
}

type received struct {
	Now     int64
	Notes   [][]any
	Problem string
	Tables  map[string]struct {
		Note  *string
		Order []string
		Rows  map[string][][]any
	}
	Graphs *struct {
		Plots  []plot
		Points []point
		Now    point
	}
}

func TestAnOpenPageHearsOfChangesAndOnlyOfThose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, smallState())
		client, _ := serve(t, s)
		page := open(t, client, "/backends")
		first, _ := page.next(t)
		if b := first.Tables["backends"]; len(b.Rows) != 3 || !slices.Equal(b.Order, []string{"web/web-2", "odd/odd-1", "web/web-1"}) || first.Now == 0 {
			t.Fatalf("%+v", first)
		}
		s.change(func(state *controllerv1.GetStateResponse) {
			state.Backends[0].State, state.Backends[0].Reason = "down", evil
		})
		page.until(t, "a backend dies", func(u received) bool {
			b, changed := u.Tables["backends"]
			if !changed {
				return false
			}
			row := b.Rows["web/web-1"]
			if len(b.Rows) > 2 || row == nil || fmt.Sprint(row[4]) != "[down bad]" || row[6][0] != evil || b.Order[0] != "web/web-1" {
				t.Errorf("%+v", u)
			}
			return true
		})
		s.change(func(state *controllerv1.GetStateResponse) { state.Backends = state.Backends[:1] })
		page.until(t, "backends are removed", func(u received) bool {
			return slices.Equal(u.Tables["backends"].Order, []string{"web/web-1"})
		})
	})
}

func TestTheOverviewIsLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, smallState())
		time.Sleep(30 * time.Second) // some points of the hour
		client, _ := serve(t, s)
		page := open(t, client, "/")
		first, _ := page.next(t)
		if first.Graphs == nil || len(first.Graphs.Plots) != 3 || len(first.Graphs.Points) != 3 || len(first.Notes) != 1 {
			t.Fatalf("%+v", first)
		}
		points, ticks, last := 0, 0, 0.0
		until := time.Now().Add(20 * time.Second)
		for time.Now().Before(until) {
			u, _ := page.next(t)
			if u.Graphs == nil {
				continue
			}
			points += len(u.Graphs.Points)
			now := u.Graphs.Now
			if now[0] < last || now[1] != 2000 || now[2] != 1000 || u.Graphs.Plots != nil {
				t.Errorf("%+v", u.Graphs)
			}
			if now[0] > last { // else the reading of this moment was missed
				ticks++
			}
			last = now[0]
		}
		if points < 1 || points > 3 || ticks < 10 { // readings and streams have one clock here: some miss one another
			t.Errorf("%d points and %d ticks in 20 s", points, ticks)
		}
		s.events.Tell(events.Event{Time: time.Now(), Object: events.Object{Kind: "backend", Name: "web/web-1"}, To: "down", Cause: "no answer"})
		page.until(t, "an event", func(u received) bool { return len(u.Tables["events"].Order) == 1 })
		s.change(func(state *controllerv1.GetStateResponse) { state.NotReady = nil })
		page.until(t, "it is ready", func(u received) bool { return u.Notes != nil && len(u.Notes) == 0 })
	})
}

func TestManyPagesCostOneReadingOfTheStateEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, smallState())
		client, _ := serve(t, s)
		for range 200 {
			page := open(t, client, "/services")
			go func() { _, _ = io.Copy(io.Discard, page.Body) }() // until the test ends
		}
		before := s.asked.Load()
		time.Sleep(30 * time.Second)
		if n := s.asked.Load() - before; n < 25 || n > 34 {
			t.Errorf("200 open pages had the state read %d times in 30 s", n)
		}
	})
}

func TestStreamsAreBoundedAndAPlaceIsFreeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, smallState())
		client, _ := serve(t, s)
		var pages []*opened
		for range streamsMax {
			pages = append(pages, open(t, client, "/drops"))
		}
		refused := open(t, client, "/drops")
		if text, _ := io.ReadAll(refused.Body); refused.StatusCode != http.StatusServiceUnavailable || !refused.Close || !strings.Contains(string(text), "too many pages are open") {
			t.Errorf("%d, %s", refused.StatusCode, text)
		}
		pages[0].Body.Close()
		time.Sleep(silenceMax + eventTimeout)
		if again := open(t, client, "/drops"); again.StatusCode != http.StatusOK {
			t.Errorf("%d", again.StatusCode)
		}
	})
}

func TestWhoDoesNotReadIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, smallState())
		client, _ := serve(t, s)
		page := open(t, client, "/")
		if n := len(s.console.streams); n != 1 {
			t.Fatalf("%d streams", n)
		}
		time.Sleep(5*time.Second + eventTimeout)
		if n := len(s.console.streams); n != 0 {
			t.Errorf("%d streams after a reader stopped", n)
		}
		if _, err := io.Copy(io.Discard, page.Body); err == nil {
			t.Error("what was cut looks whole")
		}
	})
}

func TestAStreamEndsAfterSomeMinutesForABrowserToComeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, smallState())
		client, _ := serve(t, s)
		page, begun := open(t, client, "/events"), time.Now()
		_, err := io.Copy(io.Discard, page.Body)
		if took := time.Since(begun); err != nil || took < streamTime || took > streamTime*6/5+time.Second {
			t.Errorf("%v, %v: the server's timeouts must not end it", took, err)
		}
	})
}

func TestAServerThatStopsDoesNotWaitForStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, smallState())
		client, shutdown := serve(t, s)
		var pages sync.WaitGroup
		for range 50 {
			page := open(t, client, "/")
			pages.Go(func() { _, _ = io.Copy(io.Discard, page.Body) })
		}
		begun := time.Now()
		if err := shutdown(); err != nil || time.Since(begun) > 600*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		pages.Wait()
	})
}

func TestAPageThatIsNotThereAnyMoreSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, smallState())
		client, _ := serve(t, s)
		page := open(t, client, "/service?name=web")
		s.change(func(state *controllerv1.GetStateResponse) { state.Services = state.Services[1:] })
		page.until(t, "the service is removed", func(u received) bool { return u.Problem == `there is no service "web"` })
		if _, more := page.next(t); more {
			t.Error("the stream goes on")
		}
	})
}

func TestOtherSitesGetNoStream(t *testing.T) {
	s := newSite(t, smallState())
	for origin, want := range map[string]int{"http://evil.example": 403, "null": 403, "http://lb-1:81": 403} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://lb-1/live?of=/", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Origin", origin)
		answer := httpAnswer(s, request)
		if answer.Code != want {
			t.Errorf("%s: %d", origin, answer.Code)
		}
	}
}

func TestAStreamTakesNoBodyAndNoHEAD(t *testing.T) {
	s := newSite(t, smallState())
	for method, body := range map[string]string{http.MethodGet: "x", http.MethodHead: ""} {
		if answer := httpAnswer(s, httptest.NewRequest(method, "/live?of=/", strings.NewReader(body))); answer.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", method, answer.Code)
		}
	}
}

// Whatever is open, by real sockets: who scrapes finds a place.
func TestScrapesAreAnsweredWhateverConsolesDo(t *testing.T) {
	s := newSite(t, largeState(10_000, 20_000))
	mux := web.Handler(begin(t), func(context.Context) ([]byte, error) { return []byte("metrics here"), nil },
		func(context.Context) ([]string, error) { return nil, nil })
	s.console.Register(mux)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := web.NewServer(mux)
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = server.Serve(web.Limit(listener)) }) // until it is closed
	at := listener.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); _ = server.Close(); tasks.Wait() })
	for i := range 600 {
		tasks.Go(func() { attack(ctx, at, i) })
	}
	time.Sleep(2 * time.Second)
	var took []time.Duration
	for i := range 30 {
		path := []string{"/metrics", "/readyz", "/healthz"}[i%3]
		begun := time.Now()
		client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get("http://" + at + path)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		response.Body.Close()
		took = append(took, time.Since(begun))
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", path, response.StatusCode)
		}
		time.Sleep(100 * time.Millisecond)
	}
	slices.Sort(took)
	t.Logf("of 30 scrapes half took less than %v, the slowest %v, beside 600 connections to /live, of which %d are streams", took[15], took[29], len(s.console.streams))
	if took[15] > time.Second { // all that run on this machine are in it
		t.Errorf("a scrape took %v", took[15])
	}
}

// attack by one connection after another: streams of searches that differ, some of which are
// never read.
func attack(ctx context.Context, at string, i int) {
	for ctx.Err() == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", at)
		if err != nil {
			return
		}
		done := context.AfterFunc(ctx, func() { conn.Close() })
		fmt.Fprintf(conn, "GET /live?of=%s HTTP/1.1\r\nHost: lb-1\r\n\r\n", url.QueryEscape(fmt.Sprintf("/services?q=%d&sort=name", i)))
		if i%3 == 0 {
			<-ctx.Done()
		} else if _, err = io.Copy(io.Discard, conn); !errors.Is(err, net.ErrClosed) {
			time.Sleep(time.Second) // refused
		}
		done()
		conn.Close()
	}
}
