package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/apitest"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/events"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

// events of a request, as a viewer gets them.
func (h *harness) events(r *controllerv1.WatchEventsRequest) (found []string) {
	h.t.Helper()
	stream, err := apitest.Controller(h.t, api.ViewSocket(h.runDir())).WatchEvents(h.deadline(), r, grpc.WaitForReady(true))
	if err != nil {
		h.t.Fatal(err)
	}
	for {
		response, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			h.t.Fatal(err)
		}
		e := response.Event
		found = append(found, fmt.Sprintf("%s %s: %s > %s (%s) %s %s", e.Kind, e.Name, e.From, e.To, e.Cause, e.Machine, e.Who))
	}
}

func (h *harness) untilEvents(r *controllerv1.WatchEventsRequest, begin ...string) {
	h.t.Helper()
	var found []string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		found = h.events(r)
		if len(found) == len(begin) && !slices.ContainsFunc(begin, func(text string) bool { return !strings.HasPrefix(found[slices.Index(begin, text)], text) }) {
			return
		}
	}
	h.t.Errorf("events:\n%s\nwanted:\n%s", strings.Join(found, "\n"), strings.Join(begin, "\n"))
}

func TestEventsTellWhatHappenedAndWhoDidItAlsoAfterARestart(t *testing.T) {
	h := newHarness(t)
	h.write(h.config(", {name: web-2, address: 10.1.0.12}"))
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.DrainBackend(h.deadline(), &controllerv1.DrainBackendRequest{Backend: "web-1", Drain: true}); err != nil {
		t.Fatal(err)
	}
	h.write("services: [")
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{}); err == nil {
		t.Error("a bad config is loaded")
	}
	drained := []string{
		"drain backend web-1: undrained > drained (by command) lb-1 " + me.Username,
		"backend web/web-1: active > draining (drained by command) lb-1 ",
	}
	h.untilEvents(&controllerv1.WatchEventsRequest{Service: "web", Object: "drain"}, drained[0])
	h.untilEvents(&controllerv1.WatchEventsRequest{Service: "web", Object: "backend web-1"}, drained[1])
	h.untilEvents(&controllerv1.WatchEventsRequest{Object: "config"},
		"config config:  > 1 in use (start) lb-1 ", "config config:  > stale (")
	for _, line := range h.events(&controllerv1.WatchEventsRequest{}) {
		t.Log(line)
	}
	h.write(h.config(", {name: web-2, address: 10.1.0.12}"))
	h.stop()
	h.start()
	h.until("announced", announced)
	h.untilEvents(&controllerv1.WatchEventsRequest{Object: "controller controller"},
		"controller controller:  > started (version test) lb-1", "controller controller: started > stopped (", "controller controller:  > started (version test) lb-1")
	h.untilEvents(&controllerv1.WatchEventsRequest{Service: "web", Object: "backend web-1"}, drained[1])
	h.stop()
}

func TestAControllerThatWasKilledIsTold(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	if err := os.Mkdir(h.stateDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	killed := events.Open(h.stateDir(), slog.New(slog.DiscardHandler))
	killed.Start()
	killed.Tell(events.Event{Object: itself, To: "started"})
	killed.Close()
	h.start()
	h.untilEvents(&controllerv1.WatchEventsRequest{Object: "controller controller"},
		"controller controller:  > started", "controller controller:  > started (version test; the one before it was killed, or the machine went down) lb-1")
	h.stop()
}

func TestAFollowerHearsOfAChange(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream, err := h.client.WatchEvents(ctx, &controllerv1.WatchEventsRequest{Object: "drain backend web-1", Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.DrainBackend(h.deadline(), &controllerv1.DrainBackendRequest{Backend: "web-1", Drain: true, Force: true}); err != nil {
		t.Fatal(err)
	}
	if got, err := stream.Recv(); err != nil || got.Event.To != "drained" {
		t.Errorf("%v %v", got, err)
	}
	h.stop() // which a stream does not hinder
}

func TestObjectsOfAService(t *testing.T) {
	service := &config.Service{
		Name: "web", Group: "web", Pools: []string{"web"}, BackupPools: []string{"spare"}, Members: []config.Member{{Backend: &config.Backend{Name: "web-1"}}},
	}
	routes := []config.Route{
		{Prefix: netip.MustParsePrefix("203.0.113.10/32"), Services: []string{"dns", "web"}}, {Prefix: netip.MustParsePrefix("203.0.113.11/32"), Services: []string{"dns"}},
	}
	is := objectsOf(service, routes, []*speakerv1.VirtualRouter{{Vrid: 51, Family: "ipv4", Vips: []string{"203.0.113.10"}}, {Vrid: 52, Family: "ipv4", Vips: []string{"203.0.113.11"}}})
	for object, want := range map[string]bool{
		"service web": true, "service dns": false, "service 3 services of web": true, "buckets web": true, "pool web": true, "pool spare": true, "pool dns": false,
		"backend web/web-1": true, "backend dns,spare/web-9": true, "backend dns/web-1": false, "drain backend web-1": true, "drain backend web-9": false,
		"drain service web": true, "route 203.0.113.10/32": true, "route 203.0.113.11/32": false, "virtual router 51 ipv4": true, "virtual router 52 ipv4": false,
		"machine lb-1": false, "forwarder forwarder": false,
	} {
		var o events.Object
		if err := o.UnmarshalText([]byte(object)); err != nil || is(o) != want {
			t.Errorf("%s: %v, %v", object, is(o), err)
		}
	}
}
