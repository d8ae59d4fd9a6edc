package events

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/fleet"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

func guideway(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return clitest.Execute(t, clitest.Program(Command()), args...)
}

var at = time.Date(2020, 11, 29, 3, 16, 27, 8e8, time.Local)

func event(number uint64, name string) *controllerv1.Event {
	return &controllerv1.Event{
		Number: number, Id: number, Time: timestamppb.New(at), Last: timestamppb.New(at), Machine: "lb-1", Kind: "backend", Name: name,
		From: "active", To: "down", Cause: "ok: no answer within 500ms", Count: 1,
	}
}

func twoEvents() []*controllerv1.Event {
	second := event(2, "web/web-2")
	second.Count, second.Last, second.Who, second.From = 40, timestamppb.New(at.Add(9*time.Second)), "alice", ""
	second.Cause = "a\nb\x1b[2J\u202e"
	return []*controllerv1.Event{event(1, "web/web-1"), second}
}

func Test_events_are_sentences(t *testing.T) {
	c := &clitest.FakeController{Streams: [][]*controllerv1.Event{twoEvents()}}
	out, _, err := guideway(t, "events", "--run-dir", clitest.Both(t, c, nil), "--since", "03:00", "--until", "0s", "--service", "web", "--object", "backend")
	want := "11-29 03:16:27  backend web/web-1: active to down: ok: no answer within 500ms\n" +
		"11-29 03:16:27  backend web/web-2: down, 40 times until 03:16:36: a b\\x1b[2J\\u202e (by alice)\n"
	if err != nil || out != want {
		t.Errorf("%v\n%s\nwanted\n%s", err, out, want)
	}
	r := c.Watched()[0]
	if r.Service != "web" || r.Object != "backend" || r.Since == nil || r.Until == nil || r.Follow {
		t.Error(r)
	}
	out, _, err = guideway(t, "events", "--run-dir", clitest.Both(t, &clitest.FakeController{Streams: [][]*controllerv1.Event{nil}}, nil))
	if err != nil || out != "no events\n" {
		t.Errorf("%v %q", err, out)
	}
}

func Test_events_are_lines_of_JSON(t *testing.T) {
	out, _, err := guideway(t, "events", "-o", "json", "--run-dir", clitest.Both(t, &clitest.FakeController{Streams: [][]*controllerv1.Event{twoEvents()}}, nil))
	lines := strings.Split(out, "\n")
	first := `{"number":1,"id":1,"time":"` + at.UTC().Format(time.RFC3339Nano) + `","machine":"lb-1","object":"backend web/web-1","from":"active","to":"down","cause":"ok: no answer within 500ms","who":"","count":1,"last":"`
	if err != nil || len(lines) != 3 || !strings.HasPrefix(lines[0], first) || strings.Contains(out, "\x1b") {
		t.Errorf("%v\n%s", err, out)
	}
}

func Test_mistakes_are_told(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{Streams: [][]*controllerv1.Event{nil}}, nil)
	for _, c := range []struct {
		line, says string
		exit       int
	}{
		{"--since yesterday", `--since "yesterday": give a time like 15:04`, commandline.ExitUsage},
		{"--until 25:00", `--until "25:00"`, commandline.ExitUsage},
		{"--since -10m", `--since "-10m"`, commandline.ExitUsage},
		{"--until 10m --follow", "give one of the two", commandline.ExitUsage},
		{"--since 10m --until 20m", "--until 20m is before --since 10m", commandline.ExitUsage},
		{"-o yaml", "give one of table, json", commandline.ExitUsage},
		{"web", `"web" is too much`, commandline.ExitUsage},
		{"--service wbe", "wbe: this machine has no such service", commandline.ExitFailed},
		{"--service wbe --follow", "wbe: this machine has no such service", commandline.ExitFailed},
		{"--fleet", "in files alone", commandline.ExitFailed},
	} {
		_, _, err := guideway(t, append([]string{"events", "--run-dir", runDir}, strings.Fields(c.line)...)...)
		if err == nil || !strings.Contains(err.Error(), c.says) || commandline.ExitCode(err) != c.exit {
			t.Errorf("%s: %v", c.line, err)
		}
	}
}

func Test_times(t *testing.T) {
	now := time.Date(2026, 11, 29, 3, 30, 0, 0, time.FixedZone("here", 3600))
	for text, want := range map[string]string{
		"10m": "2026-11-29T03:20:00+01:00", "03:00": "2026-11-29T03:00:00+01:00", "23:00:01": "2026-11-28T23:00:01+01:00",
		"2026-11-28T23:00:00Z": "2026-11-28T23:00:00Z", "2026-11-28 23:00": "2026-11-28T23:00:00+01:00", "2026-11-28": "2026-11-28T00:00:00+01:00",
	} {
		o := options{since: text, request: &controllerv1.WatchEventsRequest{}}
		wanted, _ := time.Parse(time.RFC3339, want)
		if err := o.readTimes(now); err != nil || !o.request.Since.AsTime().Equal(wanted) {
			t.Errorf("%s: %v %v, want %s", text, o.request.Since.AsTime(), err, want)
		}
	}
	for _, c := range []struct {
		since, until string
		lasts        time.Duration
	}{{"23:00", "00:30", 90 * time.Minute}, {"23:00", "23:30", 30 * time.Minute}, {"03:00", "04:00", time.Hour}, {"72h", "03:00", 72*time.Hour - 30*time.Minute}} {
		o := options{since: c.since, until: c.until, request: &controllerv1.WatchEventsRequest{}}
		if err := o.readTimes(now); err != nil || o.request.Until.AsTime().Sub(o.request.Since.AsTime()) != c.lasts {
			t.Error(c, o.request, err)
		}
	}
}

func Test_a_stream_that_ends_is_begun_again_where_it_ended(t *testing.T) {
	c := &clitest.FakeController{Streams: [][]*controllerv1.Event{{event(5, "one"), event(9, "two")}, {event(2, "three")}, {event(3, "four")}}}
	o := options{m: machine.Machine{RunDir: clitest.Both(t, c, nil)}, request: &controllerv1.WatchEventsRequest{Follow: true}}
	var out, stderr bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 3*fleet.FollowPause)
	defer cancel()
	if err := followAll(ctx, []fleet.Source{{Machine: o.m}}, o.request, &printer{out: &out}, &stderr); err != nil {
		t.Error(err)
	}
	var after []uint64
	for _, r := range c.Watched() {
		after = append(after, r.After)
	}
	if fmt.Sprint(after) != "[0 9 2]" {
		t.Error(after)
	}
	want := "11-29 03:16:27  backend one: active to down: ok: no answer within 500ms\n"
	if !strings.HasPrefix(out.String(), want) || strings.Count(out.String(), "\n") != 4 || !strings.Contains(stderr.String(), "7 events came faster") {
		t.Errorf("%s%s", out.String(), stderr.String())
	}
}

func Test_of_a_fleet_those_that_cannot_be_asked_are_named(t *testing.T) {
	c := &clitest.FakeController{Fleet: &controllerv1.GetFleetResponse{Machines: []*controllerv1.FleetMachine{
		{Name: "lb-1", Registered: &fleetv1.Machine{}}, {Name: "lb-2", Reason: "not heard"}, {Name: "lb-3", Registered: &fleetv1.Machine{Api: "10.0.0.3:9471"}},
	}}}
	o := options{m: machine.Machine{RunDir: clitest.Both(t, c, nil)}, fleet: true}
	sources, missing, err := o.sources(t.Context())
	if err != nil || len(sources) != 1 || sources[0].Name != "lb-3" || sources[0].Machine.Remote.Server != "10.0.0.3:9471" || sources[0].Machine.RunDir != "" {
		t.Errorf("%v %v", sources, err)
	}
	if len(missing) != 2 || !strings.HasPrefix(missing[0].String(), "lb-1 has no API over TCP") || missing[1].String() != "lb-2 is absent: not heard" {
		t.Error(missing)
	}
	_, stderr, err := guideway(t, "events", "--fleet", "--run-dir", o.m.RunDir)
	if err == nil || !strings.Contains(stderr, "warning: lb-2 is absent") || !strings.Contains(err.Error(), "lb-3: ") {
		t.Errorf("%v\n%s", err, stderr)
	}
}

func Test_a_fleet_is_asked_by_the_API_of_each_machine(t *testing.T) {
	authority := looptest.NewAuthority(t)
	later := event(1, "web/web-9")
	later.Machine, later.Time = "lb-2", timestamppb.New(at.Add(time.Second))
	first, second := &clitest.FakeController{Streams: [][]*controllerv1.Event{twoEvents()}}, &clitest.FakeController{Streams: [][]*controllerv1.Event{{later}}}
	asked := clitest.OverTCP(t, authority, first)
	first.Fleet = &controllerv1.GetFleetResponse{Machines: []*controllerv1.FleetMachine{
		{Name: "lb-1", Registered: &fleetv1.Machine{Api: asked}}, {Name: "lb-2", Registered: &fleetv1.Machine{Api: clitest.OverTCP(t, authority, second)}},
	}}
	line := append([]string{"events", "--fleet", "--object", "backend", "--server", asked}, clitest.Certificate(t, authority)...)
	out, stderr, err := guideway(t, line...)
	if names := regexp.MustCompile(`lb-[12]: backend \S+`).FindAllString(out, -1); err != nil || fmt.Sprint(names) != "[lb-1: backend web/web-1: lb-1: backend web/web-2: lb-2: backend web/web-9:]" {
		t.Errorf("%v\n%s%s", err, out, stderr)
	}
	if second.Watched()[0].Object != "backend" {
		t.Error(second.Watched())
	}
	first.Fleet.Machines[1].Registered.Api = "127.0.0.1:1"
	out, stderr, err = guideway(t, line...)
	if !errors.Is(err, commandline.ErrReported) || !strings.Contains(stderr, "warning: lb-2: the controller at 127.0.0.1:1 does not answer") || !strings.Contains(out, "web/web-2") {
		t.Errorf("%v\n%s%s", err, out, stderr)
	}
}

func Test_events_of_a_fleet_are_in_order_of_time_and_of_each_machine_in_its_own(t *testing.T) {
	list := func(machine string, seconds ...int) (records []events.Record) {
		for i, s := range seconds {
			records = append(records, events.Record{Number: uint64(i + 1), Event: events.Event{Machine: machine, Time: at.Add(time.Duration(s) * time.Second)}})
		}
		return records
	}
	var got []string
	for _, r := range merged([][]events.Record{list("b", 1, 5, 3), nil, list("a", 1, 2, 4)}) { // the clock of b went back
		got = append(got, fmt.Sprint(r.Machine, r.Number))
	}
	if fmt.Sprint(got) != "[a1 b1 a2 a3 b2 b3]" {
		t.Error(got)
	}
	first := list("b", 1)[0]
	first.Object, first.To, first.Cause = events.Object{Kind: "route", Name: "203.0.113.10/32"}, "announced", strings.Repeat("word ", 30)
	var out bytes.Buffer
	if err := (&printer{out: &out, withMachine: true}).one(&first); err != nil || !strings.HasPrefix(out.String(), "11-29 03:16:28  b: route 203.0.113.10/32: announced: word word") {
		t.Errorf("%v %q", err, out.String())
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > output.WidthMax+1 || !strings.HasPrefix(line, "11-29") && !strings.HasPrefix(line, strings.Repeat(" ", 16)+"word") {
			t.Errorf("%q", line)
		}
	}
}
