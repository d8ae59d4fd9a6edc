package show

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/guideway/guideway/proto/plainjson"
)

func counting(rows ...[]string) output.Listing {
	return output.Listing{Header: []string{"SERVICE", "STATE", "PACKETS"}, Rows: rows, Named: 1, Counters: []output.Counter{{Name: "packets", Column: 2}}, Value: len(rows)}
}

func TestRatesAreWhatWasCountedPerSecond(t *testing.T) {
	began := time.Unix(100, 0)
	former := observation{at: began, Listing: counting([]string{"web", "serving", "100"}, []string{"dns", "serving", "50"}, []string{"old", "serving", "-"})}
	now := observation{at: began.Add(2 * time.Second), Listing: counting(
		[]string{"web", "serving", "300"}, []string{"", "", ""}, []string{"dns", "serving", "7"}, []string{"old", "serving", "9"}, []string{"new", "serving", "5"})}
	now.since(former)
	if len(now.perSecond) != 1 || now.perSecond["web"]["packets"] != 100 {
		t.Errorf("per second: %v", now.perSecond)
	}
	var got []string
	for _, row := range now.withRates().Rows {
		got = append(got, row[2])
	}
	// One that went back began anew; one that was not known has no rate yet.
	if !slices.Equal(got, []string{"100", "", "-", "-", "-"}) || now.withRates().Header[2] != "PACKETS/S" || now.Rows[0][2] != "300" {
		t.Errorf("shown: %q", got)
	}
}

func TestWatchingIsAsOftenAsItSaysAndNeverMoreThanATenthOfTheTime(t *testing.T) {
	for name, c := range map[string]struct{ took, apart time.Duration }{
		"quick": {time.Millisecond, 2 * time.Second},
		"slow":  {time.Second, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				began := time.Now()
				var looks []time.Duration
				var reported []error
				show := func(context.Context) (output.Listing, error) {
					looks = append(looks, time.Since(began))
					time.Sleep(c.took)
					switch len(looks) {
					case 3:
						return output.Listing{}, errors.New("restarting")
					case 5:
						cancel()
					}
					return counting(), nil
				}
				printed := 0
				err := watching{interval: 2 * time.Second}.watch(ctx, show, func(observation) error { printed++; return nil }, func(err error) { reported = append(reported, err) })
				if err != nil || printed != 3 || len(reported) != 1 {
					t.Errorf("%v, printed %d, reported %v", err, printed, reported)
				}
				for i, at := range looks {
					if at != time.Duration(i)*c.apart {
						t.Errorf("look %d after %v", i, at)
					}
				}
			})
		})
	}
}

func TestAFirstLookThatFailsEndsIt(t *testing.T) {
	failed := errors.New("no such socket")
	err := watching{interval: time.Second}.watch(t.Context(), func(context.Context) (output.Listing, error) { return output.Listing{}, failed }, nil, nil)
	if !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
}

// growing has counters that grow by 1000 with each request.
type growing struct {
	clitest.FakeController
	asked atomic.Uint64
}

func (g *growing) GetState(context.Context, *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error) {
	state := &controllerv1.GetStateResponse{Config: &controllerv1.Config{Stale: true}, Services: []*controllerv1.Service{{Name: "web"}}}
	state.Services[0].Packets = proto.Uint64(1000 * g.asked.Add(1))
	return state, nil
}

// accepted counts connections.
type accepted struct {
	net.Listener
	connections atomic.Int32
}

func (a *accepted) Accept() (net.Conn, error) {
	conn, err := a.Listener.Accept()
	if err == nil {
		a.connections.Add(1)
	}
	return conn, err
}

// until ends a program's context after some lines.
type until struct {
	bytes.Buffer
	lines int
	end   context.CancelFunc
}

func (u *until) Write(data []byte) (int, error) {
	n, err := u.Buffer.Write(data)
	if strings.Count(u.String(), "\n") >= u.lines {
		u.end()
	}
	return n, err
}

func TestShowWatchStreamsOverOneConnectionUntilItIsEnded(t *testing.T) {
	runDir := looptest.Dir(t)
	if err := os.MkdirAll(filepath.Dir(api.ViewSocket(runDir)), 0o755); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", api.ViewSocket(runDir))
	if err != nil {
		t.Fatal(err)
	}
	listener := &accepted{Listener: socket}
	server := grpc.NewServer()
	controllerv1.RegisterControllerServer(server, &growing{})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	ctx, cancel := context.WithCancel(t.Context())
	out := &until{lines: 4, end: cancel}
	var stderr bytes.Buffer
	command := clitest.Program(Command())
	command.SetOut(out)
	command.SetErr(&stderr)
	command.SetArgs([]string{"show", "services", "--watch", "--interval", "100ms", "-o", "json", "--run-dir", runDir})
	if err := command.ExecuteContext(ctx); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, line := range lines {
		var read struct {
			Time      time.Time
			Shown     []struct{ Packets uint64 }
			PerSecond map[string]map[string]float64 `json:"per_second"`
		}
		if err := json.Unmarshal([]byte(line), &read); err != nil || read.Time.IsZero() || read.Shown[0].Packets != uint64(1000*(i+1)) {
			t.Errorf("line %d: %s %v", i, line, err)
		}
		if rate := read.PerSecond["web"]["packets"]; (i == 0) != (rate == 0) || rate > 20_000 {
			t.Errorf("line %d: %v packets per second", i, rate)
		}
	}
	// The first tries the socket; all requests go by the second.
	if n := listener.connections.Load(); len(lines) != 4 || n != 2 {
		t.Errorf("%d lines by %d connections", len(lines), n)
	}
	// The fake's config is stale: said once.
	if n := strings.Count(stderr.String(), "the config is stale"); n != 1 {
		t.Errorf("stderr %q", stderr.String())
	}
}

// The busiest first, by what happens now.
func TestWatchShowsTheRowsThatAreChosen(t *testing.T) {
	services := []*controllerv1.Service{{Name: "idle"}, {Name: "busy", Group: "of busy"}, {Name: "gone"}}
	l := observation{
		at: time.Unix(0, 0), Listing: counting([]string{"idle", "serving", "900"}, []string{"busy", "serving", "100"}, []string{"gone", "serving", "5"}),
		perSecond: map[string]map[string]float64{"idle": {"packets": 1}, "busy": {"packets": 50}},
	}
	l.Value = plainjson.List(services)
	var out bytes.Buffer
	choice := output.Choice{SortBy: "packets", Max: 2}
	if err := l.printTo(&out, "table", choice); err != nil || !strings.Contains(clitest.Fields(out.String()), "PACKETS/S busy serving 50 idle serving 1 1 more") {
		t.Errorf("%v %q", err, out.String())
	}
	out.Reset()
	choice.Patterns = []string{"b*"}
	if err := l.printTo(&out, "json", choice); err != nil || !strings.Contains(out.String(), `"group":"of busy"}],"per_second":{"busy":{"packets":50}}`) {
		t.Errorf("%v %q", err, out.String())
	}
}

func TestWatchAsATable(t *testing.T) {
	var out bytes.Buffer
	l := observation{at: time.Unix(0, 0), Listing: counting([]string{"web", "serving", "100"}), perSecond: map[string]map[string]float64{"web": {"packets": 12.6}}}
	if err := l.printTo(&out, "table", output.Choice{}); err != nil || !strings.Contains(clitest.Fields(out.String()), "SERVICE STATE PACKETS/S web serving 13") {
		t.Errorf("%v %q", err, out.String())
	}
	out.Reset()
	if err := l.printTo(&out, "yaml", output.Choice{}); err != nil || !strings.HasPrefix(out.String(), "---\n") || !strings.Contains(out.String(), "packets: 12.6") {
		t.Errorf("%v %q", err, fmt.Sprint(out.String()))
	}
}
