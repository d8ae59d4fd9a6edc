package speaker

// The process with real sockets: its forwarder answers on health.sock, its
// controller is the sink of package routes. Real routers stand in lab/scenarios.

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/routes"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
	"github.com/guideway/guideway/speaker/health"
)

// machine has the directories of a speaker, and starts what runs there.
type machine struct {
	t             *testing.T
	run, state    string
	stopForwarder func()
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	run, err := os.MkdirTemp("", "gw") // short, for sockets' paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	return &machine{t: t, run: run, state: t.TempDir()}
}

// speaker runs until the returned function is called.
func (m *machine) speaker() (stop func()) {
	m.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Options{RunDir: m.run, StateDir: m.state, Version: "test", Log: slog.New(slog.NewTextHandler(m.t.Output(), nil))})
	}()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			m.t.Error(err)
		}
	}
	m.t.Cleanup(stop)
	return stop
}

// forwarder that answers with these words, until it is stopped.
func (m *machine) forwarder(answer *forwarderv1.Health) {
	m.t.Helper()
	path := filepath.Join(m.run, health.SocketName)
	_ = os.Remove(path)
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { <-ctx.Done(); _ = conn.Close() }()
			go answerHealth(conn, answer)
		}
	}()
	m.stopForwarder = func() { cancel(); _ = listener.Close() }
	m.t.Cleanup(m.stopForwarder)
}

func answerHealth(conn net.Conn, answer *forwarderv1.Health) {
	buffer := make([]byte, 64)
	for {
		n, err := conn.Read(buffer)
		if err != nil {
			return
		}
		request := &forwarderv1.HealthRequest{}
		if proto.Unmarshal(buffer[:n], request) != nil {
			return
		}
		reply := proto.CloneOf(answer)
		reply.Sequence = request.Sequence
		data, _ := proto.Marshal(reply)
		if _, err := conn.Write(data); err != nil {
			return
		}
	}
}

func wellAt(generation uint64) *forwarderv1.Health {
	return &forwarderv1.Health{
		Pid: 1, Generation: generation, Threads: []*forwarderv1.ThreadHealth{{Name: "worker-0"}},
		Devices: []*forwarderv1.DeviceHealth{{Interface: "eth1", Up: true}}, Phase: forwarderv1.HealthPhase_HEALTH_PHASE_RUNNING,
	}
}

// controller until the returned function is called.
func (m *machine) controller() (sink *routes.Sink, stop func()) {
	m.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	sink, err := routes.New(m.run, slog.New(slog.NewTextHandler(m.t.Output(), nil)), func(brain.Event) {})
	if err != nil {
		m.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); sink.Run(ctx) }()
	stop = func() { cancel(); <-ended }
	m.t.Cleanup(stop)
	return sink, stop
}

// oneRoute to a router that does not answer (TEST-NET-1).
func oneRoute(plan uint64) *speakerv1.Desired {
	return routes.Encode(brain.Desired{
		Config: &config.Config{BGP: &config.BGP{
			ASN: 64512, RouterID: netip.MustParseAddr("192.0.2.1"),
			Neighbors: []config.Neighbor{{Address: netip.MustParseAddr("192.0.2.254"), ASN: 64513, HoldTime: 9 * time.Second}},
		}},
		Routes:     []brain.Route{{Prefix: netip.MustParsePrefix("203.0.113.10/32"), NextHop: netip.MustParseAddr("192.0.2.1")}},
		RoutesPlan: plan,
	}, time.Now())
}

// until the speaker's state holds, as someone who looks sees it.
func (m *machine) until(what string, holds func(*speakerv1.State) bool) {
	m.t.Helper()
	conn, err := routes.Dial(m.run)
	if err != nil {
		m.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var state *speakerv1.State
	for {
		state, err = speakerv1.NewSpeakerClient(conn).GetState(ctx, &speakerv1.GetStateRequest{})
		if err == nil && holds(state) {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			m.t.Fatalf("%s: %v, %v", what, state, err)
		}
	}
}

func announces(count uint32) func(*speakerv1.State) bool {
	return func(s *speakerv1.State) bool {
		return s.GetRoutesAnnounced() == count && (count == 0) == (s.GetWithheld() != "")
	}
}

func withholds(reason string) func(*speakerv1.State) bool {
	return func(s *speakerv1.State) bool {
		return s.GetRoutesAnnounced() == 0 && strings.Contains(s.GetWithheld(), reason)
	}
}

func TestRoutesFollowTheForwarderAndOutliveTheController(t *testing.T) {
	m := newMachine(t)
	stopSpeaker := m.speaker()
	m.until("nothing is known", withholds("no controller has said yet"))
	sink, stopController := m.controller()
	sink.Set(oneRoute(7), false)
	m.until("no forwarder", withholds("forwarder: does not answer"))
	m.forwarder(wellAt(6))
	m.until("its plan is too old", withholds("older than 7"))
	m.stopForwarder()
	m.forwarder(wellAt(7))
	m.until("announced", announces(1))

	stopController()
	m.until("the controller is absent", func(s *speakerv1.State) bool { return s.GetControllerAbsentSince() != nil && announces(1)(s) })
	m.stopForwarder()
	m.until("the forwarder is dead", announces(0))
	m.forwarder(wellAt(7))
	m.until("it is back", announces(1))

	stopSpeaker()
	m.speaker()
	m.until("by what is on disk", announces(1))
}

func TestADiskThatDoesNotTakeTheRoutesDelaysNone(t *testing.T) {
	m := newMachine(t)
	stopSpeaker := m.speaker()
	m.forwarder(wellAt(7))
	m.until("nothing is known", withholds("no controller has said yet"))
	if err := os.Remove(m.state); err != nil {
		t.Fatal(err)
	}
	sink, stopController := m.controller()
	sink.Set(oneRoute(7), false)
	m.until("announced, and not on disk", func(s *speakerv1.State) bool {
		return announces(1)(s) && strings.Contains(s.GetNotKept(), m.state)
	})
	if err := os.Mkdir(m.state, 0o700); err != nil {
		t.Fatal(err)
	}
	m.until("on disk", func(s *speakerv1.State) bool { return announces(1)(s) && s.GetNotKept() == "" })
	stopController()
	stopSpeaker()
	m.speaker()
	m.until("by what is on disk", announces(1))
}

func TestAMachineThatIsSlowAnnouncesWorseRoutes(t *testing.T) {
	m := newMachine(t)
	m.speaker()
	m.forwarder(wellAt(7))
	sink, _ := m.controller()
	sink.Set(oneRoute(7), false)
	m.until("announced", announces(1))
	m.stopForwarder()
	// This process answers, and a loop that the kernel prefers to no other program
	// stands for its thread: there is no heartbeat, and the kernel says that it waits.
	starved := wellAt(7)
	starved.Pid = startStarved(t)
	starved.Threads = []*forwarderv1.ThreadHealth{{Name: "sh", HeartbeatAgeMs: 1300}}
	m.forwarder(starved)
	m.until("slow", func(s *speakerv1.State) bool {
		worse := slices.Equal(s.GetNeighbors()[0].GetAttributes(), []string{"med 1000", "prepend 1"})
		return announces(1)(s) && worse && strings.Contains(s.GetSlow(), "thread sh waited 1.3s for a processor")
	})
}

// startStarved is a process that waits for a processor: it has one with another, which
// the kernel prefers.
func startStarved(t *testing.T) (pid uint32) {
	t.Helper()
	for _, how := range [][]string{{"taskset", "-c", "0"}, {"taskset", "-c", "0", "chrt", "--idle", "0"}} {
		loop := exec.Command(how[0], append(how[1:], "sh", "-c", "while :; do :; done")...)
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = loop.Process.Kill(); _ = loop.Wait() })
		pid = uint32(loop.Process.Pid)
	}
	time.Sleep(100 * time.Millisecond) // until they are what they will be
	return pid
}

func TestAControllerThatDoesNotKnowTheRoutesLeavesThem(t *testing.T) {
	m := newMachine(t)
	m.speaker()
	m.forwarder(wellAt(7))
	sink, stop := m.controller()
	sink.Set(oneRoute(7), false)
	m.until("announced", announces(1))
	stop()

	sink, _ = m.controller()
	later := oneRoute(0)
	later.Routes, later.Neighbors[0].Asn = nil, 64514
	sink.Set(later, true)
	m.until("sessions are the new ones, routes the old", func(s *speakerv1.State) bool {
		return announces(1)(s) && len(s.GetNeighbors()) == 1 && s.GetNeighbors()[0].GetAsn() == 64514
	})
	sink.Set(later, false)
	m.until("now it knows them", func(s *speakerv1.State) bool { return s.GetRoutesAnnounced() == 0 && s.GetWithheld() == "" })
}

func TestAfterItsTimeTheControllersAbsenceWithdraws(t *testing.T) {
	m := newMachine(t)
	m.speaker()
	m.forwarder(wellAt(7))
	sink, stop := m.controller()
	limited := oneRoute(7)
	limited.ControllerAbsentMax = routes.AbsentMax(3 * time.Second)
	sink.Set(limited, false)
	m.until("announced", announces(1))
	stop()
	m.until("withdrawn", withholds("no controller for 3s"))
	m.controller()
	m.until("a controller is back", announces(1))
}
