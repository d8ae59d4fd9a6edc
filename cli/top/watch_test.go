package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/rates"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// controller is the real API and the real rates, of counters that grow by 2,000 packets each
// second for web and by 1,000 for dns.
type controller struct {
	api.Host
	all   *rates.Rates
	begun time.Time
	down  atomic.Bool
}

func (c *controller) Rates() *rates.Rates { return c.all }

func (c *controller) counters(context.Context) (*forwarderv1.GetCountersResponse, error) {
	if c.down.Load() {
		return nil, errors.New("the forwarder at its socket: connection refused")
	}
	n := uint64(time.Since(c.begun).Milliseconds())
	of := func(service string, packets uint64) *forwarderv1.ServiceCounters {
		return &forwarderv1.ServiceCounters{Service: service, Packets: packets, Bytes: 500 * packets, NewConnections: packets / 100}
	}
	return &forwarderv1.GetCountersResponse{
		Received: 4 * n, Sent: 3 * n, Dropped: []*forwarderv1.Drop{{Reason: "no_service", Packets: n, Meaning: "No service has it.", UsualCause: "A scan."}},
		Services: []*forwarderv1.ServiceCounters{of("web", 2*n), of("dns", n)},
		Backends: []*forwarderv1.BackendCounters{{Service: "web", Backend: "web-1", Packets: 2 * n}, {Service: "dns", Backend: "dns-1", Packets: n}},
	}, nil
}

func (c *controller) status(context.Context) (*forwarderv1.GetStatusResponse, error) {
	return &forwarderv1.GetStatusResponse{Threads: []*forwarderv1.Thread{{Role: "worker", Name: "worker-0", BusyRatio: 0.25}}}, nil
}

func newController(t *testing.T) *controller {
	c := &controller{begun: time.Now().Add(-time.Hour)}
	c.all = rates.New(rates.Source{Counters: c.counters, Status: c.status, Machine: func() string { return "lb-1" }, Answers: func(context.Context) map[string]*controllerv1.Answers { return nil }})
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { c.all.Run(ctx) })
	t.Cleanup(func() { stop(); done.Wait() })
	return c
}

// serve the API in a run directory until stop.
func (c *controller) serve(t *testing.T, runDir string) (stop func()) {
	t.Helper()
	sockets, err := api.Listen(runDir)
	if err != nil {
		t.Fatal(err)
	}
	server := api.NewServer(api.Settings{Host: c, Admit: api.Users(api.View)})
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(sockets.View) }) // ends with Stop
	return sync.OnceFunc(func() { server.Stop(); done.Wait(); sockets.Close() })
}

// screenOf a terminal, as the person before it sees it.
type screenOf struct {
	master, slave *os.File
	mu            sync.Mutex
	written       bytes.Buffer
	before        *unix.Termios
	ended         chan error
}

// openScreen of a pseudoterminal: pty(7), ioctl_tty(2).
func openScreen(t *testing.T, width, height uint16) *screenOf {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &screenOf{master: master, slave: slave, ended: make(chan error, 1)}
	s.resize(t, width, height)
	if s.before, err = unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS); err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			s.mu.Lock()
			s.written.Write(buffer[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() { slave.Close(); master.Close(); done.Wait() })
	return s
}

func (s *screenOf) resize(t *testing.T, width, height uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}); err != nil {
		t.Fatal(err)
	}
}

// start `guideway top` there.
func (s *screenOf) start(ctx context.Context, args ...string) {
	command := clitest.Program(Command())
	command.SetIn(s.slave)
	command.SetOut(s.slave)
	command.SetErr(io.Discard)
	command.SetArgs(append([]string{"top"}, args...))
	go func() { s.ended <- command.ExecuteContext(ctx) }()
}

func (s *screenOf) press(t *testing.T, keys string) {
	t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

var sequences = regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")

// text that was written so far.
func (s *screenOf) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.String()
}

// lines of the latest whole screen.
func (s *screenOf) lines() []string {
	frames := strings.Split(s.text(), home)
	for i := len(frames) - 1; i > 0; i-- {
		if frame, _, isWhole := strings.Cut(frames[i], restBelow); isWhole {
			return strings.Split(sequences.ReplaceAllString(frame, ""), "\r\n")
		}
	}
	return nil
}

// wait until the screen has a text, and not another one.
func (s *screenOf) wait(t *testing.T, has, hasNot string) []string {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		lines := s.lines()
		text := strings.Join(lines, "\n")
		if strings.Contains(text, has) && (hasNot == "" || !strings.Contains(text, hasNot)) {
			return lines
		}
		if time.Now().After(end) {
			t.Fatalf("%q is not there, or %q is:\n%s", has, hasNot, text)
		}
	}
}

// end of the program; the terminal is as it was before.
func (s *screenOf) end(t *testing.T) error {
	t.Helper()
	var err error
	select {
	case err = <-s.ended:
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
	s.isAsBefore(t)
	return err
}

func (s *screenOf) isAsBefore(t *testing.T) {
	t.Helper()
	after, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	if err != nil || *after != *s.before {
		t.Errorf("%v %+v, before %+v", err, after, s.before)
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) { // the reader may be behind
		written := s.text()
		if strings.HasSuffix(written, leaveScreen) && strings.Count(written, leaveScreen) == 1 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("ends with %q", written[max(0, len(written)-50):])
		}
	}
}

func Test_top_on_a_terminal(t *testing.T) {
	runDir, c := looptest.Dir(t), newController(t)
	stop := c.serve(t, runDir)
	s := openScreen(t, 80, 24)
	s.start(t.Context(), "--run-dir", runDir)
	lines := s.wait(t, " web", "")
	if len(lines) != 24 || !strings.HasPrefix(lines[0], "lb-1 ") || !strings.HasPrefix(lines[2], "busy: worker-0 25%") || !strings.Contains(lines[3], "dropped, no_service: No service has it.") {
		t.Errorf("%s", strings.Join(lines, "\n"))
	}
	s.press(t, "b")
	s.wait(t, "web/web-1", "SERVICE")
	s.press(t, "d")
	s.wait(t, "usually: A scan.", "web/web-1")
	s.press(t, "s/dn\x7fns\r")
	s.wait(t, `SERVICE (1 busy) with "dns"`, " web")
	s.press(t, "\x1b")
	s.wait(t, "SERVICE (2 busy)", "with")
	s.press(t, "\x1b[C")
	s.wait(t, ">BITS/S", ">PKTS/S")
	s.resize(t, 40, 10)
	if err := unix.Kill(unix.Getpid(), unix.SIGWINCH); err != nil { // the test has no controlling terminal
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); len(s.lines()) != 10; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(s.lines())
		}
	}
	s.resize(t, 80, 24)
	_ = unix.Kill(unix.Getpid(), unix.SIGWINCH)
	c.down.Store(true)
	s.wait(t, "the forwarder at its socket: connection refused: see", "web")
	c.down.Store(false)
	s.wait(t, " web", "refused")
	stop()
	s.wait(t, "trying again", " web")
	stop = c.serve(t, runDir)
	defer stop()
	s.wait(t, " web", "trying again")
	s.press(t, "q")
	if err := s.end(t); err != nil {
		t.Error(err)
	}
}

func Test_the_terminal_is_as_before_however_it_ends(t *testing.T) {
	runDir := looptest.Dir(t)
	defer newController(t).serve(t, runDir)()
	for how, end := range map[string]func(s *screenOf, cancel func()){
		"Ctrl-C":  func(s *screenOf, _ func()) { s.press(t, "\x03") },
		"SIGTERM": func(_ *screenOf, cancel func()) { cancel() }, // of which main makes this
		"SIGHUP":  func(*screenOf, func()) { _ = unix.Kill(unix.Getpid(), unix.SIGHUP) },
		"q, after the shell": func(s *screenOf, _ func()) {
			if err := unix.IoctlSetTermios(int(s.slave.Fd()), unix.TCSETS, s.before); err != nil {
				t.Fatal(err)
			}
			_ = unix.Kill(unix.Getpid(), unix.SIGCONT)
			for isRaw := false; !isRaw; time.Sleep(time.Millisecond) {
				now, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
				isRaw = err != nil || now.Lflag&unix.ICANON == 0
			}
			s.press(t, "q")
		},
	} {
		t.Run(how, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s := openScreen(t, 80, 24)
			s.start(ctx, "--run-dir", runDir)
			s.wait(t, " web", "")
			end(s, cancel)
			if err := s.end(t); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("lost", func(t *testing.T) {
		s := openScreen(t, 80, 24)
		s.start(t.Context(), "--run-dir", runDir)
		s.wait(t, " web", "")
		s.master.Close()
		select {
		case <-s.ended:
		case <-time.After(10 * time.Second):
			t.Fatal("it goes on without a terminal")
		}
	})
}

func Test_the_terminal_is_as_before_after_a_panic(t *testing.T) {
	s := openScreen(t, 80, 24)
	terminal, err := openTerminal(s.slave, s.slave)
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if recover() != "a mistake" {
				t.Error("the panic is lost")
			}
		}()
		terminal.guard(func() { panic("a mistake") })
	}()
	s.isAsBefore(t)
	if terminal.draw([]line{{text: "late"}}, 80, false); strings.Contains(s.text(), "late") {
		t.Error("drawn on the shell's screen")
	}
}

// A network that takes nothing more, until SIGTERM.
func Test_a_terminal_that_nobody_reads_holds_up_nothing(t *testing.T) {
	runDir := looptest.Dir(t)
	defer newController(t).serve(t, runDir)()
	s := openScreen(t, 250, 200)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.mu.Lock() // its reader waits
	s.start(ctx, "--run-dir", runDir)
	for range 1000 { // far more is drawn than the kernel keeps
		time.Sleep(2 * time.Millisecond)
		_ = unix.Kill(unix.Getpid(), unix.SIGWINCH)
	}
	cancelled := time.Now()
	cancel()
	select {
	case <-s.ended:
		if time.Since(cancelled) < closeMax {
			t.Error("the terminal took everything")
		}
	case <-time.After(20 * time.Second):
		t.Error("it goes on")
	}
	after, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	s.mu.Unlock()
	if err != nil || *after != *s.before {
		t.Errorf("%v %+v, before %+v", err, after, s.before)
	}
}

// Any number of sizes within a moment, while frames are drawn.
func Test_a_storm_of_sizes(t *testing.T) {
	runDir := looptest.Dir(t)
	defer newController(t).serve(t, runDir)()
	s := openScreen(t, 80, 24)
	s.start(t.Context(), "--run-dir", runDir)
	s.wait(t, " web", "")
	for i := range uint16(2000) {
		s.resize(t, i*7%300, i*13%100)
		_ = unix.Kill(unix.Getpid(), unix.SIGWINCH)
	}
	s.resize(t, 1, 1)
	_ = unix.Kill(unix.Getpid(), unix.SIGWINCH)
	for end := time.Now().Add(10 * time.Second); len(s.lines()) != 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(len(s.lines()))
		}
	}
	s.resize(t, 80, 24)
	_ = unix.Kill(unix.Getpid(), unix.SIGWINCH)
	s.wait(t, " web", "")
	s.press(t, "q")
	if err := s.end(t); err != nil {
		t.Error(err)
	}
}

func guideway(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return clitest.Execute(t, clitest.Program(Command()), args...)
}

func Test_mistakes_are_told(t *testing.T) {
	nowhere := looptest.Dir(t)
	for _, c := range []struct {
		line, says string
		exit       int
	}{
		{"", "this is no terminal", commandline.ExitUsage},
		{"--sort name", "give one of packets, bytes, new_connections", commandline.ExitUsage},
		{"--once --limit 0", "--limit 0: give 1 to 1000", commandline.ExitUsage},
		{"--once --filter " + strings.Repeat("x", 60_000), "--filter: give at most 128 bytes", commandline.ExitUsage},
		{"--once -o wide", "give one of table, json, yaml", commandline.ExitUsage},
		{"--once", "no such socket", commandline.ExitFailed},
		{"--once --fleet", "no such socket", commandline.ExitFailed},
	} {
		_, _, err := guideway(t, append([]string{"top", "--run-dir", nowhere}, strings.Fields(c.line)...)...)
		if err == nil || !strings.Contains(err.Error(), c.says) || commandline.ExitCode(err) != c.exit {
			t.Errorf("%.50s: %v", c.line, err)
		}
	}
	s := openScreen(t, 80, 24)
	s.start(t.Context(), "--run-dir", nowhere) // a mistake, more likely than a restart
	if err := s.end(t); err == nil || !strings.Contains(err.Error(), "no such socket") {
		t.Error(err)
	}
	s = openScreen(t, 80, 24)
	s.start(t.Context(), "-o", "json", "--run-dir", nowhere)
	if err := <-s.ended; err == nil || !strings.Contains(err.Error(), "-o json requires --once") {
		t.Error(err)
	}
	_, _, err := guideway(t, "top", "--once", "--run-dir", clitest.Both(t, &clitest.FakeController{}, nil))
	if err == nil || !strings.Contains(err.Error(), "the controller is an older one") {
		t.Error(err)
	}
	down := &controllerv1.Rates{Machine: "lb-1", Problem: "the forwarder: connection refused"}
	_, _, err = guideway(t, "top", "--once", "--run-dir", clitest.Both(t, &clitest.FakeController{Rates: down}, nil))
	if err == nil || !strings.Contains(err.Error(), "the forwarder: connection refused: see `systemctl status guideway-forwarder`") {
		t.Error(err)
	}
}

func Test_once(t *testing.T) {
	runDir, c := looptest.Dir(t), newController(t)
	defer c.serve(t, runDir)()
	out, _, err := guideway(t, "top", "--once", "-o", "json", "--filter", "dns", "--run-dir", runDir)
	var shown controllerv1.Rates
	if err == nil {
		err = protojson.Unmarshal([]byte(out), &shown)
	}
	if err != nil || shown.Machine != "lb-1" || shown.ServicesBusy != 1 || shown.Services[0].Service != "dns" || shown.Backends[0].Backend != "dns-1" || shown.Workers[0].BusyRatio != 0.25 {
		t.Fatalf("%v %s", err, out)
	}
	if r := shown.Services[0]; r.Packets < 500 || r.Packets > 2000 || math.Abs(r.Bytes-500*r.Packets) > 1 || math.Abs(shown.Received-4*r.Packets) > 10 || len(shown.Dropped) != 1 { // its machine may be busy
		t.Errorf("%s", out)
	}
	out, _, err = guideway(t, "top", "--once", "-o", "yaml", "--run-dir", runDir)
	if err != nil || !strings.Contains(out, "machine: lb-1\n") || !strings.Contains(out, "new_connections: ") {
		t.Errorf("%v %s", err, out)
	}
	out, _, err = guideway(t, "top", "--once", "--run-dir", runDir)
	if err != nil || !strings.Contains(clitest.Fields(out), "busy: worker-0 25%") || !strings.Contains(out, "web/web-1") || strings.Contains(out, "\x1b") || !strings.Contains(out, "dropped, no_service") {
		t.Errorf("%v %s", err, out)
	}
}

func Test_a_fleet_is_summed(t *testing.T) {
	authority := looptest.NewAuthority(t)
	first, second := &clitest.FakeController{Rates: withDrops(ratesOf(3))}, &clitest.FakeController{Rates: ratesOf(2)}
	asked := clitest.OverTCP(t, authority, first)
	machines := []*controllerv1.FleetMachine{
		{Name: "lb-1", Registered: &fleetv1.Machine{Api: asked}}, {Name: "lb-2", Registered: &fleetv1.Machine{Api: clitest.OverTCP(t, authority, second)}},
	}
	first.Fleet = &controllerv1.GetFleetResponse{Machines: machines}
	flags := append([]string{"--fleet", "--server", asked}, clitest.Certificate(t, authority)...)
	once := func() (shown *controllerv1.Rates, stderr string, err error) {
		out, stderr, err := guideway(t, append([]string{"top", "--once", "-o", "json"}, flags...)...)
		shown = &controllerv1.Rates{}
		if unreadable := protojson.Unmarshal([]byte(out), shown); unreadable != nil {
			t.Error(unreadable, err, stderr)
		}
		return shown, stderr, err
	}
	shown, stderr, err := once()
	if err != nil || shown.Services[0].Packets != 2*ratesOf(1).Services[0].Packets || shown.ServicesBusy != 3 || len(shown.Machines) != 2 || shown.Machines[0].Machine != "lb-1" || shown.Machines[0].Received != ratesOf(3).Received || len(shown.Machines[0].Services) > 0 || len(shown.Workers) != 4 || shown.Workers[3].Name != "lb-2/worker-1" {
		t.Errorf("%v %s %+v", err, stderr, shown)
	}
	first.Fleet = proto.CloneOf(first.Fleet)
	first.Fleet.Machines = append(machines, &controllerv1.FleetMachine{Name: "lb-3", Registered: &fleetv1.Machine{Api: "127.0.0.1:1"}}, &controllerv1.FleetMachine{Name: "lb-4", Reason: "not heard"})
	shown, stderr, err = once()
	if !errors.Is(err, commandline.ErrReported) || len(shown.Machines) != 4 || shown.Machines[3].Problem != "is absent: not heard" || shown.Received != ratesOf(3).Received+ratesOf(2).Received ||
		!strings.Contains(stderr, "warning: lb-3: the controller at 127.0.0.1:1 does not answer") {
		t.Errorf("%v %s %+v", err, stderr, shown.Machines)
	}
	s := openScreen(t, 100, 24)
	s.start(t.Context(), flags...)
	s.wait(t, "2 of 4 machines", "")
	s.press(t, "m")
	lines := strings.Join(s.wait(t, "lb-4: is absent: not heard", ""), "\n")
	if !strings.Contains(lines, "lb-3: the controller at 127.0.0.1:1 does not answer") || !regexp.MustCompile(`(?m) lb-2 *$`).MatchString(lines) {
		t.Errorf("%s", lines)
	}
	s.press(t, "q")
	if err := s.end(t); err != nil {
		t.Error(err)
	}
}
