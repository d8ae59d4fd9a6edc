package run

// The whole controller, with a forwarder that does what the contract says and
// real backends. They need addresses that are no loopback's, so the test binary
// runs again in a network namespace of its own, which goes with it. BGP is
// tried with a router in speaker.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/apitest"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
	"github.com/guideway/guideway/speaker/health"
)

var backendAddresses = []string{"10.1.0.11", "10.1.0.12"}

// Of machines that send to each other.
var machineAddresses = []string{"10.3.0.1", "10.3.0.2", "10.3.0.3"}

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		os.Exit(m.Run()) // those that need a namespace say so
	}
	looptest.AllInNamespace()
	commands := [][]string{{"ip", "link", "set", "lo", "up"}}
	for _, address := range slices.Concat(backendAddresses, machineAddresses) {
		commands = append(commands, []string{"ip", "addr", "add", address + "/32", "dev", "lo"})
	}
	for _, command := range commands {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%v: %v: %s", command, err, out))
		}
	}
	goleak.VerifyTestMain(m)
}

// peer is a forwarder as far as the contract goes.
type peer struct {
	forwarderv1.UnimplementedForwarderServer
	mu   sync.Mutex
	plan *planv1.Plan
	// Plans are; or those alone that have fewer backends.
	refuse      atomic.Bool
	backendsMin atomic.Int32
	// To be compared.
	offered *planv1.Plan
	dead    atomic.Bool
	// Nothing is answered but whether it is well.
	jammed atomic.Bool
	// Of the service web.
	packets atomic.Uint64
	// It can be taken over from; and how often it was.
	successors atomic.Bool
	takenOver  atomic.Uint32
}

// jam holds a request up while the peer is jammed.
func (p *peer) jam(ctx context.Context) error {
	for p.jammed.Load() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

func (p *peer) SetPlan(_ context.Context, r *forwarderv1.SetPlanRequest) (*forwarderv1.SetPlanResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse.Load() || len(r.Plan.Backends) < int(p.backendsMin.Load()) {
		return nil, status.Error(codes.InvalidArgument, "services[0]: refused by the test")
	}
	if r.Plan.Generation <= p.plan.GetGeneration() {
		return nil, status.Errorf(codes.FailedPrecondition, "generation %d goes back from %d", r.Plan.Generation, p.plan.GetGeneration())
	}
	p.plan = r.Plan
	return &forwarderv1.SetPlanResponse{Generation: r.Plan.Generation}, nil
}

func (p *peer) GetPlan(context.Context, *forwarderv1.GetPlanRequest) (*forwarderv1.GetPlanResponse, error) {
	if plan := p.running(); plan != nil {
		return &forwarderv1.GetPlanResponse{Plan: plan}, nil
	}
	return nil, status.Error(codes.NotFound, "no plan yet")
}

func (p *peer) GetStatus(ctx context.Context, _ *forwarderv1.GetStatusRequest) (*forwarderv1.GetStatusResponse, error) {
	if err := p.jam(ctx); err != nil {
		return nil, err
	}
	generation := p.running().GetGeneration()
	process := p.takenOver.Load()
	return &forwarderv1.GetStatusResponse{
		Generation: generation, Version: "1.0", Pid: process, TakenOver: &forwarderv1.TakenOver{PredecessorPid: process - 1, PauseUs: 5000},
		Threads: []*forwarderv1.Thread{{Name: "worker-0", Generation: generation}},
		Devices: []*forwarderv1.Device{{Interface: "eth1", Up: true}},
	}, nil
}

func (p *peer) TakeOver(context.Context, *forwarderv1.TakeOverRequest) (*forwarderv1.TakeOverResponse, error) {
	if !p.successors.Load() {
		return nil, status.Error(codes.Unimplemented, "unknown method TakeOver") // as of an earlier version
	}
	if p.refuse.Load() {
		return nil, status.Error(codes.Aborted, "the successor ended with exit status: 1")
	}
	return &forwarderv1.TakeOverResponse{Pid: p.takenOver.Add(1)}, nil
}

func (p *peer) GetMetrics(context.Context, *forwarderv1.GetMetricsRequest) (*forwarderv1.GetMetricsResponse, error) {
	return &forwarderv1.GetMetricsResponse{Text: "# TYPE guideway_connections gauge\nguideway_connections 3\n" +
		"# TYPE guideway_table_fingerprint gauge\nguideway_table_fingerprint{service=\"web\",fingerprint=\"00ab\"} 1\n"}, nil
}

// ComparePlan answers as if b of two backends took over a's half.
func (p *peer) ComparePlan(_ context.Context, r *forwarderv1.ComparePlanRequest) (*forwarderv1.ComparePlanResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse.Load() {
		return nil, status.Error(codes.InvalidArgument, "services[0]: refused by the test")
	}
	if p.plan == nil {
		return nil, status.Error(codes.FailedPrecondition, "no plan yet")
	}
	p.offered = r.Plan
	response := &forwarderv1.ComparePlanResponse{Generation: p.plan.Generation}
	if proto.Equal(p.plan, r.Plan) {
		return response, nil
	}
	response.Services = []*forwarderv1.ServiceComparison{{
		Service: "web", Entries: 100, EntriesChanged: 50,
		Backends:    []*forwarderv1.BackendShare{{Backend: "a", EntriesBefore: 50}, {Backend: "b", EntriesBefore: 50, EntriesAfter: 100}},
		Established: &forwarderv1.ConnectionOutcomes{Staying: 9, Breaking: 8},
	}, {Service: "idle", Entries: 100}, {Service: "web-tls", Entries: 100, EntriesChanged: 50, SharesAs: "web"}}
	return response, nil
}

func (p *peer) running() *planv1.Plan {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.plan
}

// answerHealth on the socket that is there for it, until the process "ends".
func (p *peer) answerHealth(t *testing.T, runDir string) net.Listener {
	t.Helper()
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(runDir, health.SocketName), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				request, buffer := &forwarderv1.HealthRequest{}, make([]byte, 64)
				for {
					n, err := conn.Read(buffer)
					if err != nil || proto.Unmarshal(buffer[:n], request) != nil || p.dead.Load() {
						return
					}
					packet, _ := proto.Marshal(p.healthNow(request.Sequence))
					if _, err := conn.Write(packet); err != nil {
						return
					}
				}
			}()
		}
	}()
	return listener
}

func (p *peer) healthNow(sequence uint64) *forwarderv1.Health {
	answer := &forwarderv1.Health{Sequence: sequence, Pid: 7, Generation: p.running().GetGeneration(), Phase: forwarderv1.HealthPhase_HEALTH_PHASE_RUNNING}
	if answer.Generation > 0 {
		answer.Threads = []*forwarderv1.ThreadHealth{{Name: "worker-0"}}
		answer.Devices = []*forwarderv1.DeviceHealth{{Interface: "eth1", Up: true}}
	}
	return answer
}

// process of a forwarder.
type process struct {
	grpc   *grpc.Server
	health net.Listener
	peer   *peer
}

func (p process) Stop() {
	p.peer.dead.Store(true)
	p.grpc.Stop()
	_ = p.health.Close()
}

func (p *peer) serve(t *testing.T, runDir string) process {
	t.Helper()
	p.dead.Store(false)
	server := apitest.Serve(t, forwarderSocket(runDir), func(s *grpc.Server) { forwarderv1.RegisterForwarderServer(s, p) })
	started := process{server, p.answerHealth(t, runDir), p}
	t.Cleanup(started.Stop)
	return started
}

// backend is a real HTTP server whose health can be changed.
type backend struct {
	port int
	mu   sync.Mutex
	code int
}

func newBackend(t *testing.T) *backend {
	b := &backend{code: http.StatusOK}
	listener, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		b.mu.Lock()
		defer b.mu.Unlock()
		w.WriteHeader(b.code)
	})}}
	server.Start()
	t.Cleanup(server.Close)
	b.port = listener.Addr().(*net.TCPAddr).Port
	return b
}

func (b *backend) answer(code int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.code = code
}

type harness struct {
	t       *testing.T
	dir     string
	metrics string
	backend *backend
	peer    *peer
	client  controllerv1.ControllerClient
	machine string
	watch   bool
	cancel  context.CancelFunc
	result  chan error
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("controller test: needs root, for a network namespace with addresses")
	}
	h := &harness{t: t, dir: looptest.Dir(t), backend: newBackend(t), peer: &peer{}}
	h.metrics = looptest.FreeAddress(t)
	if err := os.MkdirAll(h.runDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	h.write(h.config(""))
	return h
}

func (h *harness) runDir() string   { return filepath.Join(h.dir, "run") }
func (h *harness) stateDir() string { return filepath.Join(h.dir, "state") }
func (h *harness) hooksDir() string { return filepath.Join(h.dir, "hooks") }

func (h *harness) configFile() string { return filepath.Join(h.dir, "config.yaml") }

func (h *harness) write(config string) {
	h.t.Helper()
	if err := os.WriteFile(h.configFile(), []byte(config), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// Its backend is down after a second without answers, as is a forwarder: on a busy machine
// several answers in a row are late.
func (h *harness) config(extra string) string {
	return fmt.Sprintf(`
machine: {name: lb-1, addresses: [10.0.0.1]}
services: [{name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}]
pools: [{name: web, health_checks: [ok], backends: [{name: web-1, address: 10.1.0.11}%s]}]
health_checks: [{name: ok, via: direct, http: {port: %d}, interval: 50ms, timeout: 50ms, rise: 1, fall: 20}]
metrics: {listen: "%s"}
`, extra, h.backend.port, h.metrics)
}

func (h *harness) start() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel, h.result = cancel, make(chan error, 1)
	options := Options{Config: []string{h.configFile()}, Machine: h.machine, HooksDir: h.hooksDir(), RunDir: h.runDir(), StateDir: h.stateDir(), Watch: h.watch, Version: "test", Log: slog.New(slog.DiscardHandler)}
	ended := make(chan struct{})
	go func() { defer close(ended); h.result <- Run(ctx, options) }()
	h.client = apitest.Controller(h.t, api.OperateSocket(h.runDir()))
	h.t.Cleanup(func() { cancel(); <-ended })
}

// How long a request may take, and until something holds. A start waits 4 s for an etcd that
// is away, a request to it as long, and it counts as away after 14 s.
const patience = 20 * time.Second

func (h *harness) deadline() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	h.t.Cleanup(cancel)
	return ctx
}

func (h *harness) stop() {
	h.t.Helper()
	h.cancel()
	select {
	case err := <-h.result:
		if err != nil {
			h.t.Errorf("the controller ended with %v", err)
		}
	case <-time.After(patience):
		h.t.Fatal("the controller does not stop")
	}
}

func (h *harness) state() *controllerv1.GetStateResponse {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	state, err := h.client.GetState(ctx, &controllerv1.GetStateRequest{}, grpc.WaitForReady(true))
	if err != nil {
		select {
		case ended := <-h.result:
			h.t.Fatalf("the controller ended: %v", ended)
		default:
			h.t.Fatal(err)
		}
	}
	return state
}

func (h *harness) until(what string, holds func(*controllerv1.GetStateResponse) bool) {
	h.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		state := h.state()
		if holds(state) {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("never: %s\n%v", what, state)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// announced, if there were a router.
func announced(state *controllerv1.GetStateResponse) bool {
	return len(state.Routes) == 1 && !state.Routes[0].Announced && state.Routes[0].Reason == api.NoBGP
}

func TestAVIPThatAnotherMachineOwnsIsNotAnnouncedHere(t *testing.T) {
	for name, c := range map[string]struct {
		router    *speakerv1.VirtualRouter
		announced bool
		reason    string
	}{
		"owned here":   {&speakerv1.VirtualRouter{State: "active"}, true, ""},
		"owned there":  {&speakerv1.VirtualRouter{State: "backup", Owner: "10.0.0.2"}, false, "VRRP: 10.0.0.2 owns it"},
		"not running":  {&speakerv1.VirtualRouter{State: "initialize", Reason: "the link is down"}, false, "VRRP: the link is down"},
		"not yet told": {&speakerv1.VirtualRouter{}, false, "the speaker does not know it yet"},
	} {
		if c.router.State != "" {
			c.router.Vips = []string{"203.0.113.9", "203.0.113.10"}
		}
		state := &controllerv1.GetStateResponse{Routes: []*controllerv1.Route{{Prefix: "203.0.113.10/32", Announced: true}}, Vrrp: []*speakerv1.VirtualRouter{c.router}}
		describeUnheard(state, &config.Config{VRRP: &config.VRRP{}})
		if r := state.Routes[0]; r.Announced != c.announced || r.Reason != c.reason {
			t.Errorf("%s: %v", name, r)
		}
	}
}

func TestNothingIsAnnouncedThatNoRouterHas(t *testing.T) {
	neighbor := func(state string) []*controllerv1.Neighbor {
		return []*controllerv1.Neighbor{{Address: "10.0.0.254", State: state}, {Address: "10.0.0.253", State: "active"}}
	}
	for name, c := range map[string]struct {
		neighbors []*controllerv1.Neighbor
		announced bool
		reason    string
	}{
		"no BGP":       {nil, false, api.NoBGP},
		"no session":   {neighbor("active"), false, api.NoSession},
		"one session":  {neighbor("established"), true, ""},
		"no speaker":   {neighbor("unknown"), false, api.NoSession},
		"half a start": {neighbor("openconfirm"), false, api.NoSession},
	} {
		state := &controllerv1.GetStateResponse{Neighbors: c.neighbors, Routes: []*controllerv1.Route{
			{Prefix: "203.0.113.10/32", Announced: true, GracefulShutdown: true}, {Prefix: "203.0.113.11/32", Reason: "no backend"},
		}}
		inUse := &config.Config{}
		if c.neighbors != nil {
			inUse.BGP = &config.BGP{}
		}
		describeUnheard(state, inUse)
		if r := state.Routes[0]; r.Announced != c.announced || r.GracefulShutdown != c.announced || r.Reason != c.reason {
			t.Errorf("%s: %v", name, r)
		}
		if r := state.Routes[1]; r.Announced || r.Reason != "no backend" {
			t.Errorf("%s: %v", name, r)
		}
	}
}

func backendState(name, want string) func(*controllerv1.GetStateResponse) bool {
	return func(state *controllerv1.GetStateResponse) bool {
		return slices.ContainsFunc(state.Backends, func(b *controllerv1.Backend) bool { return b.Name == name && b.State == want })
	}
}

func (h *harness) get(path string) (int, string) {
	h.t.Helper()
	response, err := http.Get("http://" + h.metrics + path)
	if err != nil {
		h.t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

func TestFromConfigToPlanAndRoute(t *testing.T) {
	h := newHarness(t)
	forwarder := h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	if code, body := h.get("/readyz"); code != http.StatusOK {
		t.Errorf("readyz %d %s", code, body)
	}
	_, page := h.get("/metrics")
	for _, want := range []string{`guideway_backend_up{backend="web-1",service="web"} 1`, "guideway_connections 3", `guideway_health_checks_total{result="pass"}`} {
		if !strings.Contains(page, want) {
			t.Errorf("metrics lack %s", want)
		}
	}

	h.backend.answer(http.StatusServiceUnavailable)
	h.until("the backend is down and the route gone", func(s *controllerv1.GetStateResponse) bool {
		return backendState("web-1", "down")(s) && !announced(s)
	})
	if got := h.state().Backends[0].Reason; got != "ok: status 503, wanted 200" {
		t.Errorf("reason %q", got)
	}
	h.backend.answer(http.StatusOK)
	h.until("it is back", announced)

	forwarder.Stop()
	h.until("the forwarder's death withdraws", func(s *controllerv1.GetStateResponse) bool { return !announced(s) })
	if reason := h.state().Routes[0].Reason; !strings.Contains(reason, "forwarder: does not answer") {
		t.Errorf("reason %q", reason)
	}
	h.stop()
}

func TestAForwarderWhoseAnswersForPeopleAreJammedIsStillAnnounced(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	since := h.state().Routes[0].Since.AsTime()
	h.peer.jammed.Store(true)
	time.Sleep(3 * time.Second)
	h.peer.jammed.Store(false)
	if state := h.state(); !announced(state) || !state.Routes[0].Since.AsTime().Equal(since) {
		t.Errorf("routes %v, announced since %v before", state.Routes, since)
	}
	h.stop()
}

func TestReloads(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	generation := h.peer.running().Generation

	h.write(h.config("") + "servces: []\n")
	_, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "servces") {
		t.Errorf("bad reload: %v", err)
	}
	state := h.state()
	if !state.Config.Stale || !strings.Contains(state.Config.Problem, "servces") || !announced(state) {
		t.Errorf("after a bad reload: %v", state)
	}
	if got := h.peer.running().Generation; got != generation {
		t.Errorf("a bad reload made plan %d after %d", got, generation)
	}

	h.write(h.config(", {name: web-2, address: 10.1.0.12}"))
	h.peer.refuse.Store(true)
	_, err = h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the forwarder refuses the plan") {
		t.Errorf("a reload that the forwarder refuses: %v", err)
	}
	h.peer.refuse.Store(false)
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{}); err != nil {
		t.Fatal(err)
	}
	h.until("the new backend is in the plan", func(s *controllerv1.GetStateResponse) bool {
		return !s.Config.Stale && slices.ContainsFunc(h.peer.running().Backends, func(b *planv1.Backend) bool { return b.Name == "web-2" })
	})
	h.stop()
}

// The config is a pipe: reading it takes until the test writes.
func TestAReloadThatTakesLongHoldsUpNoDrain(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	if err := errors.Join(os.Remove(h.configFile()), syscall.Mkfifo(h.configFile(), 0o600)); err != nil {
		t.Fatal(err)
	}
	reloaded := make(chan error, 1)
	go func() {
		_, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{})
		reloaded <- err
	}()
	// Opening it to write waits until the reload has opened it to read.
	pipe, err := os.OpenFile(h.configFile(), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.client.DrainBackend(h.deadline(), &controllerv1.DrainBackendRequest{Backend: "web-1", Drain: true, Force: true}); err != nil {
		t.Error(err)
	}
	select {
	case err := <-reloaded:
		t.Errorf("the reload ended before it had the config: %v", err)
	default:
	}
	_, err = pipe.WriteString(h.config(", {name: web-2, address: 10.1.0.12}"))
	if err := errors.Join(err, pipe.Close(), <-reloaded); err != nil {
		t.Error(err)
	}
	h.until("the config is in use", func(s *controllerv1.GetStateResponse) bool { return len(h.peer.running().Backends) == 2 })
	h.stop()
}

func TestAnotherSecretIsRefusedWithTheWayToChangeIt(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	secret := filepath.Join(h.dir, "cluster.key")
	writeSecret := func(text string) {
		t.Helper()
		if err := os.WriteFile(secret, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	writeSecret("the first secret of this cluster")
	h.write(h.config("") + "cluster: {secret_file: cluster.key}\n")
	h.start()
	h.until("announced", announced)

	writeSecret("the second secret of this cluster")
	_, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{})
	for _, word := range []string{"secret changes", "guideway drain machine", "systemctl restart guideway-forwarder guideway-controller", "guideway undrain machine"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("reload said %v, without %q", err, word)
		}
	}
	if state := h.state(); !state.Config.Stale || !announced(state) {
		t.Errorf("after the reload: %v", state)
	}
	h.stop()
}

func TestWatchedFilesAreReadWhenTheyChange(t *testing.T) {
	h := newHarness(t)
	h.watch = true
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	h.write(h.config("") + "nonsense: 1\n")
	h.until("the bad change is told", func(s *controllerv1.GetStateResponse) bool { return s.Config.Stale && announced(s) })
	h.write(h.config(", {name: web-2, address: 10.1.0.12}"))
	h.until("the good change is in use", func(s *controllerv1.GetStateResponse) bool {
		return !s.Config.Stale && backendState("web-2", "active")(s)
	})
	h.stop()
}

func TestABadConfigAtStartServesTheLastGoodOne(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	before := h.peer.running().Generation
	h.stop()

	kept, err := os.Stat(filepath.Join(h.stateDir(), "config-last-good.json"))
	if err != nil || kept.Mode().Perm() != 0o600 {
		t.Errorf("the kept config: %v %v", kept, err)
	}
	h.write("nonsense: true\n")
	h.start()
	h.until("announced", announced)
	state := h.state()
	if !state.Config.Stale || !strings.Contains(state.Config.Problem, "nonsense") || !strings.Contains(state.Config.Source, "last good") {
		t.Errorf("config %v", state.Config)
	}
	if now := h.peer.running().Generation; now <= before {
		t.Errorf("generation %d after %d", now, before)
	}
	h.stop()
}

// A folder in the way of the file stands for a full disk.
func TestAConfigThatCannotBeKeptServesAndIsToldAndKeptLater(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	file := filepath.Join(h.stateDir(), "config-last-good.json")
	if err := os.MkdirAll(file, 0o700); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.until("announced, and told", func(s *controllerv1.GetStateResponse) bool {
		return announced(s) && strings.Contains(s.Config.NotKept, "config-last-good.json")
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	h.until("kept", func(s *controllerv1.GetStateResponse) bool { return s.Config.NotKept == "" })
	if kept, err := os.Stat(file); err != nil || !kept.Mode().IsRegular() {
		t.Errorf("%v %v", kept, err)
	}
	found := strings.Join(h.events(&controllerv1.WatchEventsRequest{Object: "config"}), "\n")
	if strings.Count(found, "> not kept (") != 1 || strings.Count(found, "not kept > kept (") != 1 {
		t.Errorf("events:\n%s", found)
	}
	h.stop()
}

// freezable makes the folder a file system of its own.
func freezable(t *testing.T, dir string) (freeze func() (thaw func())) {
	t.Helper()
	do := func(command ...string) {
		t.Helper()
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", command, err, out)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(t.TempDir(), "image")
	do("truncate", "--size=16M", image)
	do("/sbin/mkfs.ext4", "-q", image)
	do("mount", "-o", "loop", image, dir)
	t.Cleanup(func() { do("umount", dir) })
	return func() func() {
		do("fsfreeze", "--freeze", dir)
		thaw := sync.OnceFunc(func() { do("fsfreeze", "--unfreeze", dir) })
		t.Cleanup(thaw) // before the controller is waited for
		return thaw
	}
}

// A frozen file system takes calls and does not answer them, as a disk that hangs.
func TestADiskThatHangsDelaysNoDecision(t *testing.T) {
	h := newHarness(t)
	h.write(h.config(", {name: web-2, address: 10.1.0.12}"))
	h.peer.serve(t, h.runDir())
	h.watch = true
	freeze := freezable(t, h.stateDir())
	h.start()
	h.until("announced", announced)
	thaw := freeze()
	h.write(h.config(""))
	h.until("one backend", func(s *controllerv1.GetStateResponse) bool { return len(s.Backends) == 1 })
	h.backend.answer(http.StatusServiceUnavailable)
	h.until("its failure is seen", func(s *controllerv1.GetStateResponse) bool { return !announced(s) })
	h.until("people are told", func(s *controllerv1.GetStateResponse) bool {
		return strings.Contains(s.Config.NotKept, "the disk has not taken it for")
	})
	thaw()
	h.until("kept", func(s *controllerv1.GetStateResponse) bool { return s.Config.NotKept == "" })
	h.stop()
}

func TestABadConfigAtTheFirstStartIsAnErrorWithEveryMistake(t *testing.T) {
	h := newHarness(t)
	h.write("nonsense: true\nrubbish: 1\n")
	err := Run(t.Context(), Options{Config: []string{h.configFile()}, RunDir: h.runDir(), StateDir: h.stateDir(), Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "nonsense") || !strings.Contains(err.Error(), "rubbish") {
		t.Errorf("got %v", err)
	}
}

func TestDrainsAreKeptOverRestarts(t *testing.T) {
	h := newHarness(t)
	h.write(h.config(", {name: web-2, address: 10.1.0.12}"))
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	for _, drain := range []bool{true, false} {
		_, backend := h.client.DrainBackend(h.deadline(), &controllerv1.DrainBackendRequest{Backend: "nosuch", Drain: drain})
		_, service := h.client.DrainService(h.deadline(), &controllerv1.DrainServiceRequest{Service: "nosuch", Drain: drain})
		if status.Code(backend) != codes.NotFound || status.Code(service) != codes.NotFound {
			t.Errorf("drain %v of what is not there: %v, %v", drain, backend, service)
		}
	}
	if _, err := h.client.DrainBackend(h.deadline(), &controllerv1.DrainBackendRequest{Backend: "web-1", Drain: true, Fleet: true, Force: true}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "names no others") {
		t.Errorf("drain on all machines of one: %v", err)
	}
	drain := func(drain bool) {
		t.Helper()
		_, backend := h.client.DrainBackend(h.deadline(), &controllerv1.DrainBackendRequest{Backend: "web-1", Drain: drain})
		_, service := h.client.DrainService(h.deadline(), &controllerv1.DrainServiceRequest{Service: "web", Drain: drain, Force: true})
		_, machine := h.client.DrainMachine(h.deadline(), &controllerv1.DrainMachineRequest{Drain: drain, Force: true})
		if err := errors.Join(backend, service, machine); err != nil {
			t.Fatal(err)
		}
	}
	drained := func(state *controllerv1.GetStateResponse) bool {
		return backendState("web-1", "draining")(state) && state.Machine.GetDrain().GetWithdrawn() && state.Services[0].GetDrain() != nil && !announced(state)
	}
	drain(true)
	h.until("drained", drained)
	h.stop()
	h.start()
	h.until("still drained", drained)
	drain(false)
	h.until("announced", announced)
	if state := h.state(); state.Machine.Drain != nil || state.Services[0].Drain != nil || backendState("web-1", "draining")(state) {
		t.Errorf("after the undrain %v", state)
	}
	h.stop()
}

func TestADrainThatWouldLeaveClientsWithoutAServiceIsRefusedUnlessForced(t *testing.T) {
	h := newHarness(t)
	h.write(h.config(", {name: web-2, address: 10.1.0.12}"))
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	calls := map[string]func(force bool) error{
		"service web has no backend to spare but web-2 (web-1 is draining: drained by command): bring another backend up first, or give --force": func(force bool) error {
			_, err := h.client.DrainBackend(h.deadline(), &controllerv1.DrainBackendRequest{Backend: "web-2", Drain: true, Force: force})
			return err
		},
		"the config names none under `peers`: bring another one up and name it under `peers`, or give --force": func(force bool) error {
			_, err := h.client.DrainService(h.deadline(), &controllerv1.DrainServiceRequest{Service: "web", Drain: true, Force: force})
			return err
		},
		"no other load balancer is known to take over": func(force bool) error {
			_, err := h.client.DrainMachine(h.deadline(), &controllerv1.DrainMachineRequest{Drain: true, Force: force})
			return err
		},
	}
	if _, err := h.client.DrainBackend(h.deadline(), &controllerv1.DrainBackendRequest{Backend: "web-1", Drain: true}); err != nil {
		t.Fatal(err)
	}
	for why, call := range calls {
		if err := call(false); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), why) {
			t.Errorf("not refused by %q: %v", why, err)
		}
	}
	if state := h.state(); !announced(state) || len(state.Machine.DrainedBackends) != 1 || state.Machine.Drain != nil || state.Services[0].Drain != nil {
		t.Errorf("a refused drain has changed something: %v", state)
	}
	for why, call := range calls {
		if err := call(true); err != nil {
			t.Errorf("forced against %q: %v", why, err)
		}
	}
	h.stop()
}

func TestADrainWaitsForTheForwardersCounters(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	busy, idle := context.WithCancel(t.Context())
	defer idle()
	go func() {
		for busy.Err() == nil {
			h.peer.packets.Add(10)
			time.Sleep(5 * time.Millisecond)
		}
	}()
	if _, err := h.client.DrainMachine(h.deadline(), &controllerv1.DrainMachineRequest{Drain: true, Force: true, WaitMax: durationpb.New(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	h.until("the rate is known", func(state *controllerv1.GetStateResponse) bool {
		return state.Machine.GetDrain().GetPacketsPerSecond() > 10
	})
	time.Sleep(2 * time.Second) // as long as a drain without traffic takes
	if state := h.state(); !announced(state) || state.Machine.State != brain.Draining {
		t.Errorf("while traffic comes: %v", state)
	}
	idle()
	h.until("withdrawn", func(state *controllerv1.GetStateResponse) bool {
		return !announced(state) && state.Machine.GetDrain().GetMovedAway() && state.Machine.State == brain.Drained
	})
	h.stop()
}

func TestTheServiceManagerIsTold(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	path := filepath.Join(h.dir, "notify.sock")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	hear := func(want string) {
		t.Helper()
		buffer := make([]byte, 256)
		manager.SetReadDeadline(time.Now().Add(patience))
		n, err := manager.Read(buffer)
		if err != nil || !strings.HasPrefix(string(buffer[:n]), want) {
			t.Errorf("heard %q, %v; want %s", buffer[:n], err, want)
		}
	}
	h.start()
	hear("READY=1")
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	hear("RELOADING=1\nMONOTONIC_USEC=")
	hear("READY=1")
	h.cancel()
	hear("STOPPING=1")
	<-h.result
}

// A machine that starts has not probed yet: nothing to be woken for.
func TestWhatAStartFindsIsNoWarning(t *testing.T) {
	for _, c := range []struct {
		from   string
		wanted string
	}{{"new", "INFO"}, {"active", "WARN"}} {
		var out bytes.Buffer
		logEvent(slog.New(slog.NewTextHandler(&out, nil)), events.Event{Object: events.Object{Kind: "backend", Name: "web/web-1"}, From: c.from, To: "down", Cause: "not probed yet", Who: "alice"})
		if !strings.Contains(out.String(), "level="+c.wanted+` msg="backend down" object="backend web/web-1" from=`+c.from+` to=down cause="not probed yet" who=alice`) {
			t.Errorf("from %s: %s", c.from, out.String())
		}
	}
}
