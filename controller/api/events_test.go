package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/events"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

var threeOClock = time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)

// withEvents is a host that has four, a minute after one another.
func withEvents(t *testing.T) *host {
	t.Helper()
	h := &host{events: events.Open(t.TempDir(), slog.New(slog.DiscardHandler))}
	for i, object := range []events.Object{{Kind: "service", Name: "web"}, {Kind: "route", Name: "203.0.113.10/32"}, {Kind: "service", Name: "mail"}, {Kind: "pool", Name: "web"}} {
		h.events.Tell(events.Event{Time: threeOClock.Add(time.Duration(i) * time.Minute), Machine: "lb-1", Object: object, From: "a", To: "b", Cause: "why", Who: "alice"})
	}
	return h
}

// numbersOf the events that a request brings.
func numbersOf(t *testing.T, client controllerv1.ControllerClient, r *controllerv1.WatchEventsRequest) (numbers string, err error) {
	t.Helper()
	stream, err := client.WatchEvents(t.Context(), r)
	if err != nil {
		return "", err
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return strings.TrimSpace(numbers), nil
		}
		if err != nil {
			return "", err
		}
		numbers += fmt.Sprint(response.Event.Number, " ")
	}
}

func TestAViewerGetsTheEventsOfARequest(t *testing.T) {
	_, viewer := dial(t, withEvents(t))
	at := func(minutes int) *timestamppb.Timestamp {
		return timestamppb.New(threeOClock.Add(time.Duration(minutes) * time.Minute))
	}
	for name, c := range map[string]struct {
		request *controllerv1.WatchEventsRequest
		want    string
	}{
		"all":                  {&controllerv1.WatchEventsRequest{}, "1 2 3 4"},
		"between":              {&controllerv1.WatchEventsRequest{Since: at(1), Until: at(2)}, "2 3"},
		"of a service":         {&controllerv1.WatchEventsRequest{Service: "web"}, "1 4"},
		"of a kind":            {&controllerv1.WatchEventsRequest{Object: "service"}, "1 3"},
		"of a service, a kind": {&controllerv1.WatchEventsRequest{Service: "web", Object: "pool"}, "4"},
		"of an object":         {&controllerv1.WatchEventsRequest{Object: "route 203.0.113.10/32"}, "2"},
		"of nothing":           {&controllerv1.WatchEventsRequest{Object: strings.Repeat("x", 60<<10)}, ""},
		"that are new":         {&controllerv1.WatchEventsRequest{After: 3}, "4"},
	} {
		if got, err := numbersOf(t, viewer, c.request); err != nil || got != c.want {
			t.Errorf("%s: %q %v, want %q", name, got, err, c.want)
		}
	}
	stream, err := viewer.WatchEvents(t.Context(), &controllerv1.WatchEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	want := "lb-1 service web a b why alice 1"
	if e := EventOf(first.GetEvent()); err != nil || !e.Time.Equal(threeOClock) || e.Last != e.Time || fmt.Sprint(e.Machine, " ", e.Object, " ", e.From, " ", e.To, " ", e.Cause, " ", e.Who, " ", e.Count) != want {
		t.Errorf("%v %v", first, err)
	}
}

func TestRequestsForEventsThatMeanNothingAreRefused(t *testing.T) {
	_, viewer := dial(t, withEvents(t))
	now := timestamppb.Now()
	for name, c := range map[string]struct {
		request *controllerv1.WatchEventsRequest
		code    codes.Code
		says    string
	}{
		"an unknown service":      {&controllerv1.WatchEventsRequest{Service: "wbe"}, codes.NotFound, "no such service"},
		"until and follow":        {&controllerv1.WatchEventsRequest{Until: now, Follow: true}, codes.InvalidArgument, "one of the two"},
		"until before since":      {&controllerv1.WatchEventsRequest{Since: now, Until: timestamppb.New(threeOClock)}, codes.InvalidArgument, "is before since"},
		"a time that is none":     {&controllerv1.WatchEventsRequest{Since: &timestamppb.Timestamp{Nanos: -1}}, codes.InvalidArgument, "since, until"},
		"a year that is too late": {&controllerv1.WatchEventsRequest{Until: &timestamppb.Timestamp{Seconds: 1 << 60}}, codes.InvalidArgument, "since, until"},
		"a filter that is huge":   {&controllerv1.WatchEventsRequest{Object: strings.Repeat("x", 1<<20)}, codes.ResourceExhausted, ""},
	} {
		if _, err := numbersOf(t, viewer, c.request); status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEventsAreFollowed(t *testing.T) {
	h := withEvents(t)
	_, viewer := dial(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream, err := viewer.WatchEvents(ctx, &controllerv1.WatchEventsRequest{Follow: true, After: 4, Object: "peer"})
	if err != nil {
		t.Fatal(err)
	}
	h.events.Tell(events.Event{Time: time.Now(), Object: events.Object{Kind: "pool", Name: "web"}})
	h.events.Tell(events.Event{Time: time.Now(), Object: events.Object{Kind: "peer", Name: "lb-2"}, To: "down"})
	if got, err := stream.Recv(); err != nil || got.Event.Name != "lb-2" || got.Event.Number != 6 {
		t.Errorf("%v %v", got, err)
	}
}

func TestWatchersAreFewAndThoseThatDoNotReadHinderNobody(t *testing.T) {
	h := withEvents(t)
	operator, _ := dial(t, h)
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	refused, served := 0, 0
	var watching sync.WaitGroup
	for range 1000 / streamsMax {
		client := connectBy(t, OperateSocket(h.runDir), func(c net.Conn) net.Conn {
			return &deaf{Conn: c, left: 4 << 10, closed: make(chan struct{})}
		})
		for range streamsMax {
			watching.Go(func() {
				stream, err := client.WatchEvents(ctx, &controllerv1.WatchEventsRequest{Follow: true})
				if err == nil {
					_, err = stream.Recv()
				}
				mu.Lock()
				defer mu.Unlock()
				switch status.Code(err) {
				case codes.OK:
					served++
				case codes.ResourceExhausted:
					refused++
				}
			})
		}
	}
	watching.Wait()
	if served != watchersOfUserMax || refused < 900 {
		t.Errorf("%d are served, %d refused", served, refused)
	}
	for i := range 2 * events.KeptMax { // who tells waits for none of them
		h.events.Tell(events.Event{Time: time.Now(), Object: events.Object{Kind: "backend", Name: fmt.Sprint(i)}, Cause: strings.Repeat("why ", 100)})
	}
	if _, err := operator.DrainBackend(t.Context(), &controllerv1.DrainBackendRequest{Backend: "web-1"}); err != nil {
		t.Error(err)
	}
	cancel()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := numbersOf(t, operator, &controllerv1.WatchEventsRequest{After: 2 * events.KeptMax}); err == nil {
			return
		} else if time.Now().After(end) {
			t.Fatalf("places do not come back: %v", err)
		}
	}
}

func TestPlacesOfWatchers(t *testing.T) {
	l := newLimiter()
	var all []func()
	for user := range 10 {
		for range 10 {
			if done, err := l.watch(fmt.Sprint("user-", user)); err == nil {
				all = append(all, done)
			}
		}
	}
	if len(all) != watchersMax || l.watchers["user-0"] != watchersOfUserMax {
		t.Errorf("%d places, %v", len(all), l.watchers)
	}
	for _, done := range all {
		done()
	}
	if l.watching != 0 || len(l.watchers) != 0 {
		t.Errorf("%d, %v", l.watching, l.watchers)
	}
}
