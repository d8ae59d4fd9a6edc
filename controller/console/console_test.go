package console

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/rates"
	"github.com/guideway/guideway/controller/web"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

const evil = `<script>alert(1)</script>`

// site is a console with what it shows.
type site struct {
	http.Handler
	console *Console
	events  *events.Log
	asked   atomic.Int32 // for the state

	mu    sync.Mutex
	state *controllerv1.GetStateResponse
}

func (s *site) change(change func(*controllerv1.GetStateResponse)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := smallState()
	change(fresh)
	s.state = fresh
}

func smallState() *controllerv1.GetStateResponse {
	return &controllerv1.GetStateResponse{
		Version:   "1.2.3",
		Machine:   &controllerv1.Machine{Name: "lb-1", State: "serving"},
		Config:    &controllerv1.Config{Source: "c.yaml"},
		Forwarder: &controllerv1.Forwarder{Healthy: true},
		Services: []*controllerv1.Service{
			{Name: "web", Group: "web", Vips: []string{"203.0.113.10 tcp 80"}, State: "serving", Backends: 2, BackendsActive: 1, Pools: []string{"web"}},
			{Name: evil, Group: "odd", Vips: []string{"203.0.113.11 tcp 80"}, State: "no backend", Reason: "all are <b>down</b>", Pools: []string{"odd"}},
			{Name: `..`, Group: "web", State: "serving"},
			{Name: `a/b?c=d&e="f'g#h`, Group: "web", State: "serving", Buckets: &controllerv1.Buckets{Moves: []*controllerv1.BucketMove{{From: "web-1", To: "web-2", Buckets: 70_000}}}},
		},
		Backends: []*controllerv1.Backend{
			{Group: "web", Services: 3, Name: "web-1", Address: "10.1.0.11", State: "active", Pools: []string{"web"}, Since: timestamppb.New(time.Now().Add(-90 * time.Second))},
			{Group: "web", Services: 3, Name: "web-2", Address: "10.1.0.12", State: "down", Reason: "http-ok: status 503", Pools: []string{"web"}, Since: timestamppb.Now()},
			{Group: "odd", Services: 1, Service: evil, Name: "odd-1", Address: "10.1.0.13", State: "active", Unresolved: "no neighbour", Pools: []string{"odd"}},
		},
		Routes:    []*controllerv1.Route{{Prefix: "203.0.113.10/32", Announced: true, Services: []string{"web"}}, {Prefix: "203.0.113.11/32", Reason: "no backend", Services: []string{evil}}},
		Neighbors: []*controllerv1.Neighbor{{Address: "10.0.0.254", Asn: 64513, State: "active", Reason: "connection refused"}},
		Vrrp:      []*speakerv1.VirtualRouter{{Vrid: 10, Family: "ipv4", State: "backup", Owner: "10.0.0.2", Vips: []string{"203.0.113.10"}}},
		NotReady:  []string{"no BGP session up"},
	}
}

// begin tasks that end with the test.
func begin(t testing.TB) web.Begin {
	var tasks sync.WaitGroup
	t.Cleanup(tasks.Wait)
	return func(task func(context.Context)) { tasks.Go(func() { task(t.Context()) }) }
}

// newSite with a forwarder that forwards a packet each millisecond.
func newSite(t testing.TB, state *controllerv1.GetStateResponse) *site {
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	s := &site{state: state, events: events.Open(t.TempDir(), log)}
	started := time.Now().Add(-time.Hour)
	r := rates.New(rates.Source{
		Machine: func() string { return "lb-1" },
		Answers: func(context.Context) map[string]*controllerv1.Answers { return nil },
		Counters: func(context.Context) (*forwarderv1.GetCountersResponse, error) {
			n := uint64(time.Since(started) / time.Millisecond)
			return &forwarderv1.GetCountersResponse{
				Received: 2 * n, Sent: n, Dropped: []*forwarderv1.Drop{{Reason: "no_service", Packets: n, Meaning: "No service has it.", UsualCause: "A scan."}, {Reason: "quiet"}},
				Services: []*forwarderv1.ServiceCounters{{Service: "web", Packets: n, Bytes: 1000 * n, NewConnections: n / 10}},
			}, nil
		},
		Status: func(context.Context) (*forwarderv1.GetStatusResponse, error) {
			return &forwarderv1.GetStatusResponse{}, nil
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	s.console = New(log, begin(t), Sources{
		State: func(context.Context) (*controllerv1.GetStateResponse, error) {
			s.asked.Add(1)
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.state, nil
		},
		Fleet: func(context.Context) (*controllerv1.GetFleetResponse, error) {
			return nil, fmt.Errorf("this machine's config names no others")
		},
		Rates: r, Events: s.events,
		ObjectsOf: func(_ context.Context, service string) (func(events.Object) bool, error) {
			return func(o events.Object) bool { return o == events.Object{Kind: "service", Name: service} }, nil
		},
	})
	for counters := (*forwarderv1.GetCountersResponse)(nil); counters == nil; _, counters = r.Latest() {
		time.Sleep(time.Millisecond)
	}
	mux := http.NewServeMux()
	s.console.Register(mux)
	s.Handler = mux
	return s
}

func (s *site) get(t testing.TB, path string) (int, string, http.Header) {
	t.Helper()
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
	return answer.Code, answer.Body.String(), answer.Result().Header
}

func TestPagesShowWhatPeopleAskFor(t *testing.T) {
	s := newSite(t, smallState())
	s.events.Tell(events.Event{Time: time.Now(), Machine: "lb-1", Object: events.Object{Kind: "service", Name: "web"}, From: "no backend", To: "serving", Cause: "web-1 is up", Who: "alice"})
	for path, wants := range map[string][]string{
		"/":                 {"lb-1", "Not ready: no BGP session up", "2 of 3", "http-ok: status 503", "next hop: no neighbour", "web-1 is up", "all are &lt;b&gt;down&lt;/b&gt;"},
		"/services":         {"203.0.113.10 tcp 80", "1 of 2", "./service?name=web", "./service?name=..", "no backend: all are", ">4<"},
		"/service?name=web": {"203.0.113.10 tcp 80", "10.1.0.12", "http-ok: status 503", "no backend → serving", "alice"},
		"/backends":         {"web-1", "1 min", "3 of pools web", "http-ok: status 503"},
		"/moves":            {"70,000", "prepared", "not counted"},
		"/machines":         {"names no others", "lb-1", "1.2.3"},
		"/routes":           {"203.0.113.11/32", "withdrawn", "10.0.0.254", "connection refused", "10 ipv4", "10.0.0.2"},
		"/drops":            {"no_service", "No service has it.", "A scan."},
		"/events":           {"service web", "no backend → serving", "web-1 is up", "alice"},
	} {
		code, body, header := s.get(t, path)
		if code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
		for _, want := range wants {
			if !strings.Contains(body, want) {
				t.Errorf("%s lacks %q:\n%s", path, want, body)
			}
		}
		if strings.Contains(body, evil) || strings.Contains(body, "quiet") {
			t.Errorf("%s: %s", path, body)
		}
		policy := header.Get("Content-Security-Policy")
		if !strings.HasPrefix(policy, "default-src 'none'; script-src 'self';") || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-ancestors 'none'") {
			t.Errorf("%s: policy %q", path, policy)
		}
		for _, inline := range []string{"<script>", " style=", " onload=", "<style", "http://", "https://"} {
			if strings.Contains(body, inline) {
				t.Errorf("%s has %q", path, inline)
			}
		}
	}
	if n := s.asked.Load(); n > 3 {
		t.Errorf("nine pages within a second or two had the state read %d times", n)
	}
}

var hrefs = regexp.MustCompile(`href="(\./service\?[^"]*)"`)

func TestEveryServiceHasAPageWhateverItsName(t *testing.T) {
	s := newSite(t, smallState())
	_, body, _ := s.get(t, "/services")
	links := hrefs.FindAllStringSubmatch(body, -1)
	if len(links) != len(s.state.Services) {
		t.Fatalf("%v", links)
	}
	found := map[string]bool{}
	for _, l := range links {
		at, err := url.Parse("/" + strings.TrimPrefix(html.UnescapeString(l[1]), "./"))
		if err != nil {
			t.Fatal(err)
		}
		found[at.Query().Get("name")] = true
		code, body, _ := s.get(t, at.String())
		if title := "<h1>" + html.EscapeString(at.Query().Get("name")) + "</h1>"; code != http.StatusOK || !strings.Contains(strings.ReplaceAll(body, "&#43;", "+"), title) {
			t.Errorf("%s: %d, no %s", at, code, title)
		}
	}
	if len(found) != len(links) {
		t.Errorf("%v", found)
	}
}

func TestSearchOrderAndPages(t *testing.T) {
	state := smallState()
	state.Services = nil
	for i := range 250 {
		state.Services = append(state.Services, &controllerv1.Service{Name: fmt.Sprintf("svc-%03d", i), Vips: []string{fmt.Sprintf("203.0.113.%d tcp 80", i)}, State: "serving"})
	}
	state.Services[77].State = "no backend"
	s := newSite(t, state)
	names := regexp.MustCompile(`data-key="(svc-\d+)"`)
	for _, c := range []struct {
		query, first string
		rows         int
		has          string
	}{
		{"", "svc-077", 100, "250, page 1 of 3"},
		{"sort=name", "svc-000", 100, `href="./services?page=2&amp;sort=name"`},
		{"sort=name&page=3", "svc-200", 50, "250, page 3 of 3"},
		{"sort=name&page=1000000000000000000", "svc-200", 50, "page 3 of 3"},
		{"q=SVC-24", "svc-240", 10, "10 of 250"},
		{"q=svc-1+113.11", "svc-110", 10, "10 of 250"},
		{"q=backend", "svc-077", 1, "1 of 250"},
		{"q=.*", "", 0, "0 of 250"},
		{"q=(%5B%5C", "", 0, `value="([\"`},
		{"q=%22%3E" + url.QueryEscape(evil), "", 0, "0 of 250"},
	} {
		code, body, _ := s.get(t, "/services?"+c.query)
		found := names.FindAllStringSubmatch(body, -1)
		if code != http.StatusOK || len(found) != c.rows || c.rows > 0 && found[0][1] != c.first || !strings.Contains(body, c.has) || strings.Contains(body, evil) {
			t.Errorf("%q: %d, %d rows, %.1v", c.query, code, len(found), found)
		}
	}
}

func TestEventsArePagedBackwards(t *testing.T) {
	s := newSite(t, smallState())
	for i := range 250 {
		s.events.Tell(events.Event{Time: time.Now(), Object: events.Object{Kind: "backend", Name: fmt.Sprint("web/web-", i)}, From: "active", To: "down", Cause: evil})
	}
	next := regexp.MustCompile(`rel="next" href="\.([^"]+)"`)
	path, seen := "/events?q=down", 0
	for range 4 {
		code, body, _ := s.get(t, path)
		if code != http.StatusOK || strings.Contains(body, evil) {
			t.Fatalf("%d %s", code, body)
		}
		seen += strings.Count(body, "active → down")
		found := next.FindStringSubmatch(body)
		if found == nil {
			break
		}
		path = html.UnescapeString(found[1])
	}
	if seen != 250 || path != "/events?before=51&q=down" {
		t.Errorf("%d events, the last page is %s", seen, path)
	}
}

func TestWrongRequestsAreRefusedWithTheCure(t *testing.T) {
	s := newSite(t, smallState())
	for path, want := range map[string]string{
		"/services?page=-1":                         `400 page is "-1": give a number from 1`,
		"/services?page=0":                          `400 page is "0": give a number from 1`,
		"/services?page=1e9":                        `400 page is "1e9": give a number from 1`,
		"/services?page=" + strings.Repeat("9", 30): `400 page is "` + strings.Repeat("9", 30) + `": give a number from 1`,
		"/services?sort=colour":                     `400 sort is "colour": give one of trouble, name, packets, bytes, connections`,
		"/services?search=web":                      `400 there is no parameter "search" here; there are: q, sort, page`,
		"/services?q=a&q=b":                         "400 q is given twice: give it once",
		"/services?q=" + strings.Repeat("x", 201):   "400 q has 201 bytes: give at most 200",
		"/services?q=%zz":                           `400 parameters: invalid URL escape "%zz"`,
		"/services?a;b":                             "400 parameters: invalid semicolon separator in query",
		"/events?before=x":                          `400 before is "x": give an event's number`,
		"/drops?q=x":                                `400 there is no parameter "q" here; there are: none`,
		"/service":                                  "400 name is missing: give a service's name",
		"/service?name=wbe":                         `404 there is no service "wbe"`,
		"/service?name=%1b[31m":                     `404 there is no service "\\x1b[31m"`,
		"/live":                                     "400 /live has one parameter, of: the path of a page with its parameters",
		"/live?of=/&x=1":                            "400 /live has one parameter, of: the path of a page with its parameters",
		"/live?of=/metrics":                         "404 /metrics is no page of the console",
		"/live?of=http://evil/":                     "400 of: give a path, without a host",
		"/live?of=%3A":                              "400 of: ",
		"/live?of=/services?q%3D%zz":                "400 /live has one parameter",
		"/assets/":                                  "404 404 page not found",
		"/assets/../page.html":                      "307 ",
		"/assets/%2e%2e/page.html":                  "404 404 page not found",
		"/assets/..%2fpage.html":                    "404 404 page not found",
	} {
		code, body, _ := s.get(t, path)
		if got := fmt.Sprintf("%d %s", code, strings.TrimSuffix(body, "\n")); !strings.HasPrefix(got, want) || len(body) > 400 {
			t.Errorf("%.60s: %s\nwant %s", path, got, want)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
		for _, path := range []string{"/", "/services", "/live?of=/", "/assets/console.js"} {
			answer := httptest.NewRecorder()
			s.ServeHTTP(answer, httptest.NewRequest(method, path, strings.NewReader("x=1")))
			if answer.Code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, answer.Code)
			}
		}
	}
}

// What is vendored is what was released, whoever edits the tree.
func TestVendoredFilesAreUnchanged(t *testing.T) {
	for name, want := range map[string]string{ // of the npm package uplot, 1.6.32
		"uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
		"uPlot.min.css":     "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
	} {
		content, err := os.ReadFile("assets/" + name)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(content)
		if got := hex.EncodeToString(sum[:]); got != want {
			t.Errorf("%s has the digest %s, not that of the release, %s", name, got, want)
		}
	}
	if licence, err := os.ReadFile("../../LICENSES/MIT-uPlot.txt"); err != nil || !strings.Contains(string(licence), "Leon Sorokin") {
		t.Errorf("uPlot's licence: %v", err)
	}
}

func TestAssetsAreKeptByTheirDigest(t *testing.T) {
	s := newSite(t, smallState())
	_, page, _ := s.get(t, "/")
	found := regexp.MustCompile(`(?:src|href)="\.(/assets/[^"]+)"`).FindAllStringSubmatch(page, -1)
	if len(found) != 4 {
		t.Fatalf("%v", found)
	}
	for _, f := range found {
		code, body, header := s.get(t, f[1])
		want := map[bool]string{true: "text/javascript; charset=utf-8", false: "text/css; charset=utf-8"}[strings.Contains(f[1], ".js?")]
		if code != http.StatusOK || body == "" || header.Get("Content-Type") != want || !strings.Contains(header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d, %v", f[1], code, header)
		}
	}
	if _, _, header := s.get(t, "/assets/console.js?v=former"); header.Get("Cache-Control") != "no-cache" {
		t.Errorf("%v", header)
	}
}

func TestNumbersAsPeopleWriteThem(t *testing.T) {
	for got, want := range map[string]string{
		count(uint64(0)): "0", count(999): "999", count(1000): "1,000", count(uint64(1234567)): "1,234,567",
		perSecond(0): "0", perSecond(0.04): "0.0", perSecond(9.94): "9.9", perSecond(9.96): "10", perSecond(12345.6): "12,346",
		bytesPerSecond(999): "999 B/s", bytesPerSecond(999.6): "1.0 kB/s", bytesPerSecond(1.25e9): "1.2 GB/s", bytesPerSecond(1e18): "1,000,000 TB/s",
		ago(0, time.Unix(59, 0)): "59 s", ago(0, time.Unix(3599, 0)): "59 min", ago(0, time.Unix(48*3600, 0)): "2 d", ago(10, time.Unix(0, 0)): "0 s",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
