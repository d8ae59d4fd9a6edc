package run

import (
	"bytes"
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
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/apitest"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/configs"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/hooks"
	"github.com/guideway/guideway/controller/store"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
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
		"controller controller:  > started (version test, in ", "controller controller: started > stopped (", "controller controller:  > started (version test, in ")
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
	h.untilEvents(&controllerv1.WatchEventsRequest{Object: "controller controller"}, "controller controller:  > started", "controller controller:  > started (version test")
	if found := h.events(&controllerv1.WatchEventsRequest{Object: "controller controller"}); !strings.Contains(found[1], "the one before it was killed, or the machine went down) lb-1") {
		t.Error(found)
	}
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

// teller tells what it is told of, and nothing else.
func teller(t *testing.T) (c *Controller, told func() []string) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	loaded, err := configs.Open(configs.Settings{Store: store.Store{Dir: t.TempDir()}, Keeper: newKeeper(t), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	c = &Controller{log: log, configs: loaded, hooks: hooks.New("", log), told: events.Open(t.TempDir(), log), spoken: spoken{states: map[events.Object]string{}}}
	return c, func() (found []string) {
		_ = c.told.Watch(t.Context(), events.Filter{}, func(r *events.Record, _ uint64) error {
			found = append(found, fmt.Sprintf("%s: %s > %s (%s)", r.Object, r.From, r.To, r.Cause))
			return nil
		})
		return found
	}
}

func TestWhatTheSpeakerSaysIsTold(t *testing.T) {
	c, told := teller(t)
	session := func(state, reason string) *speakerv1.NeighborState {
		return &speakerv1.NeighborState{Address: "10.0.0.254", Asn: 64513, State: state, Reason: reason}
	}
	claimed := &speakerv1.VirtualRouter{Vrid: 51, Family: "ipv4", State: "active", Reason: "the owner is gone", SecondOwner: "10.0.0.2 advertises priority 100"}
	owner := &speakerv1.VirtualRouter{Vrid: 51, Family: "ipv4", State: "active", Reason: "the owner is gone"}
	for _, state := range []*speakerv1.State{
		nil,
		{Neighbors: []*speakerv1.NeighborState{session("connect", "")}, Withheld: "no plan yet"},
		{Neighbors: []*speakerv1.NeighborState{session("active", "no route to host")}, Withheld: "still none"},
		{Neighbors: []*speakerv1.NeighborState{session("established", "")}, Vrrp: []*speakerv1.VirtualRouter{owner}},
		{Neighbors: []*speakerv1.NeighborState{session("idle", "hold-timer-expired")}, Vrrp: []*speakerv1.VirtualRouter{owner}, Slow: "worker-0 waits"},
		nil, // it is restarted
		{Vrrp: []*speakerv1.VirtualRouter{owner}, Slow: "worker-0 waits"},
		{Vrrp: []*speakerv1.VirtualRouter{claimed}, Slow: "worker-0 waits"},
		{Vrrp: []*speakerv1.VirtualRouter{owner}, Slow: "worker-0 waits", Problem: "no password"},
		{Vrrp: []*speakerv1.VirtualRouter{owner}, Slow: "worker-0 waits"},
	} {
		c.tellSpeaker(state)
	}
	want := []string{
		"session 10.0.0.254:  > down (connect)", "speaker routes:  > withheld (no plan yet)",
		"virtual router 51 ipv4:  > active (the owner is gone)",
		"session 10.0.0.254: down > established (the router of AS 64513 has a BGP session with this machine)",
		"speaker routes: withheld > announced (all that are desired)", "session 10.0.0.254: established > down (hold-timer-expired)",
		"speaker routes: announced > announced as worse ones (worker-0 waits)", "session 10.0.0.254: down > removed (no longer in the config)",
		"virtual router 51 ipv4: active > claimed by another (10.0.0.2 advertises priority 100)", "virtual router 51 ipv4: claimed by another > active (no other machine has claimed it for a minute)",
		"speaker config:  > failing (no password)", "speaker config: failing > in effect (all of it)",
	}
	if found := told(); !slices.Equal(found, want) {
		t.Errorf("%q\nwanted\n%q", found, want)
	}
}

func TestWhatFellBetweenTwoPollsIsTold(t *testing.T) {
	c, told := teller(t)
	for _, since := range []int64{1, 1, 2, 2} {
		c.tellSpeaker(&speakerv1.State{Neighbors: []*speakerv1.NeighborState{{
			Address: "10.0.0.254", Asn: 64513, State: "established", Since: &timestamppb.Timestamp{Seconds: since}, Ended: "hold-timer-expired",
		}}, Vrrp: []*speakerv1.VirtualRouter{{Vrid: 51, Family: "ipv4", State: "active", Since: &timestamppb.Timestamp{Seconds: since}, Reason: "the owner is gone"}}})
	}
	is := " > established (the router of AS 64513 has a BGP session with this machine)"
	want := []string{
		"virtual router 51 ipv4:  > active (the owner is gone)", "session 10.0.0.254: " + is, "speaker routes:  > announced (all that are desired)",
		"virtual router 51 ipv4: active > not active (between two looks at it)", "virtual router 51 ipv4: not active > active (the owner is gone)",
		"session 10.0.0.254: established > down (hold-timer-expired)", "session 10.0.0.254: down" + is,
	}
	if found := told(); !slices.Equal(found, want) {
		t.Errorf("%q\nwanted\n%q", found, want)
	}
}

func TestALogHasOnlyTheBackendsThatAStartFindsDown(t *testing.T) {
	c, told := teller(t)
	var log bytes.Buffer
	c.log, c.brain = slog.New(slog.NewTextHandler(&log, nil)), brain.New(time.Now())
	c.tellTransitions([]brain.Transition{
		{Kind: "backend", Name: "web/web-1", From: "new", To: "active", Reason: "healthy"},
		{Kind: "backend", Name: "web/web-2", From: "up", To: "down", Reason: "refused"},
	})
	if text := log.String(); strings.Contains(text, "web-1") || !strings.Contains(text, "web-2") {
		t.Errorf("log: %s", text)
	}
	if found := told(); len(found) > 0 {
		t.Errorf("events before each was probed: %q", found)
	}
}

type theseMachines []*fleetv1.Machine

func (f theseMachines) Machines(context.Context) ([]*fleetv1.Machine, error) { return f, nil }

func TestMachinesThatDifferAreTold(t *testing.T) {
	c, told := teller(t)
	one := &fleetv1.Machine{Name: "lb-1", Config: 7, ConfiguredFingerprint: "aa"}
	for _, fingerprint := range []string{"aa", "bb", "bb", "aa"} {
		other := &fleetv1.Machine{Name: "lb-2", Config: 7, ConfiguredFingerprint: fingerprint}
		if err := c.readMachines(t.Context(), theseMachines{one, other}); err != nil {
			t.Fatal(err)
		}
	}
	found := told()
	if len(found) != 2 || !strings.HasPrefix(found[0], "fleet machines: alike > different (") || !strings.HasPrefix(found[1], "fleet machines: different > alike (no longer: ") {
		t.Errorf("%q", found)
	}
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
		"backend web/web-1": true, "backend dns,spare/web-9": true, "backend dns/web-1": false, "drain backend web-1": true, "drain backend web-9": false, "agent web-1": true, "agent web-0, web-1, web-2 and 26 more": true, "agent web-9": false,
		"drain service web": true, "route 203.0.113.10/32": true, "route 203.0.113.11/32": false, "virtual router 51 ipv4": true, "virtual router 52 ipv4": false,
		"machine lb-1": false, "forwarder forwarder": false,
	} {
		var o events.Object
		if err := o.UnmarshalText([]byte(object)); err != nil || is(o) != want {
			t.Errorf("%s: %v, %v", object, is(o), err)
		}
	}
}
