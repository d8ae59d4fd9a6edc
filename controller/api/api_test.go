package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/guideway/guideway/controller/apitest"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/rates"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

type host struct {
	reload  error
	drained []string
	offered []config.Source
	plan    error
	order   *controllerv1.ApplyOrder
	user    string
	written bool
	// Of the tests that call it.
	forwarder forwarderv1.ForwarderClient
	services  []*controllerv1.Service
	backends  []*controllerv1.Backend
	events    *events.Log
	rates     *rates.Rates
	runDir    string
}

func (h *host) StateOf(context.Context, *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error) {
	return &controllerv1.GetStateResponse{Version: "test", Services: h.services, Backends: h.backends}, nil
}
func (h *host) BackendOf(_ context.Context, name string) (*controllerv1.GetBackendResponse, error) {
	if name != "web-1" {
		return nil, fmt.Errorf("%s: %w", name, ErrUnknownBackend)
	}
	return &controllerv1.GetBackendResponse{Backends: []*controllerv1.Backend{{Name: name}}}, nil
}
func (h *host) Fleet(context.Context) (*controllerv1.GetFleetResponse, error) {
	return nil, Unmetf("in files alone")
}
func (h *host) EndCanary(context.Context, string, *controllerv1.EndCanaryRequest) (*controllerv1.ApplyConfigResponse, error) {
	return nil, Unmetf("none")
}
func (h *host) Restart(context.Context) (*controllerv1.RestartResponse, error) {
	return &controllerv1.RestartResponse{ForwarderVersion: "1.1"}, nil
}
func (h *host) Reload(_ context.Context, user string, _ bool) ([]string, error) {
	h.user = user
	return []string{"careful"}, h.reload
}
func (h *host) DrainBackend(_ context.Context, r *controllerv1.DrainBackendRequest) ([]string, error) {
	if r.Backend == "nobody" {
		return nil, ErrUnknownBackend
	}
	if r.Backend == "last" && !r.Force {
		return nil, Unmetf("service web has no backend to spare but last")
	}
	h.drained = append(h.drained, r.Backend)
	return nil, nil
}
func (h *host) DrainService(_ context.Context, r *controllerv1.DrainServiceRequest) ([]string, error) {
	if r.Service == "nothing" {
		return nil, ErrUnknownService
	}
	h.drained = append(h.drained, r.Service)
	return []string{"203.0.113.10/32 stays announced"}, nil
}
func (h *host) DrainMachine(context.Context, *controllerv1.DrainMachineRequest) error {
	return errors.New("disk full")
}
func (h *host) PlanConfig(_ context.Context, files []config.Source) (*controllerv1.PlanConfigResponse, error) {
	h.offered = files
	return &controllerv1.PlanConfigResponse{Number: 7}, h.plan
}

func (h *host) ApplyConfig(_ context.Context, user string, order *controllerv1.ApplyOrder, files []config.Source) (Applying, error) {
	h.offered, h.order, h.user = files, order, user
	return h, h.plan
}
func (h *host) File() File { return h }
func (h *host) Target() (path, digest string, edited bool) {
	return "/etc/guideway/guideway.yaml", "abc", false
}
func (h *host) Commit(context.Context) (*controllerv1.ApplyConfigResponse, error) {
	return &controllerv1.ApplyConfigResponse{Number: 3}, h.reload
}
func (h *host) Write() error { h.written = true; return nil }
func (h *host) PutBack(_ context.Context, reason error) error {
	return Unmetf("%w; put back", reason)
}
func (h *host) Events() *events.Log { return h.events }

func (h *host) Rates() *rates.Rates { return h.rates }
func (h *host) ObjectsOf(_ context.Context, service string) (func(events.Object) bool, error) {
	if service != "web" {
		return nil, ErrUnknownService
	}
	return func(o events.Object) bool { return o.Name == service }, nil
}
func (h *host) Forwarder() forwarderv1.ForwarderClient { return h.forwarder }
func (h *host) Close()                                 {}
func (h *host) ConfigNumber() uint64                   { return 9 }
func (h *host) ConfigHistory(context.Context) (*controllerv1.GetConfigHistoryResponse, error) {
	return &controllerv1.GetConfigHistoryResponse{Records: []*controllerv1.ConfigRecord{{Number: 3}}}, nil
}
func (h *host) RecordedConfig(_ context.Context, number uint64) (*controllerv1.GetConfigResponse, error) {
	if number != 3 {
		return nil, ErrUnknownConfig
	}
	return &controllerv1.GetConfigResponse{Record: &controllerv1.ConfigRecord{Number: 3}}, nil
}

func dial(t *testing.T, h Host) (operator, viewer controllerv1.ControllerClient) {
	t.Helper()
	runDir := looptest.Dir(t)
	sockets, err := Listen(runDir)
	if err != nil {
		t.Fatal(err)
	}
	audit, err := OpenAudit(runDir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	operators := NewServer(Settings{Host: h, Admit: Users(Operate), Audit: audit})
	viewers := NewServer(Settings{Host: h, Admit: Users(View), Audit: audit})
	go operators.Serve(sockets.Operate)
	go viewers.Serve(sockets.View)
	t.Cleanup(func() { operators.Stop(); viewers.Stop(); sockets.Close(); audit.Close() })
	if h, ok := h.(*host); ok {
		h.runDir = runDir
	}
	return apitest.Controller(t, OperateSocket(runDir)), apitest.Controller(t, ViewSocket(runDir))
}

func TestViewersLookAndChangeNothing(t *testing.T) {
	h := &host{}
	_, viewer := dial(t, h)
	if state, err := viewer.GetState(t.Context(), &controllerv1.GetStateRequest{}); err != nil || state.Version != "test" {
		t.Errorf("%v %v", state, err)
	}
	_, reload := viewer.Reload(t.Context(), &controllerv1.ReloadRequest{})
	_, backend := viewer.DrainBackend(t.Context(), &controllerv1.DrainBackendRequest{Backend: "web-1", Drain: true})
	_, machine := viewer.DrainMachine(t.Context(), &controllerv1.DrainMachineRequest{Drain: true})
	for _, err := range []error{reload, backend, machine} {
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), OperateGroup) {
			t.Errorf("a viewer got %v", err)
		}
	}
	if len(h.drained) > 0 {
		t.Errorf("a viewer drained %v", h.drained)
	}
}

func TestAnswersOverTheSocket(t *testing.T) {
	h := &host{}
	client, _ := dial(t, h)
	state, err := client.GetState(t.Context(), &controllerv1.GetStateRequest{})
	if err != nil || state.Version != "test" {
		t.Fatalf("%v %v", state, err)
	}
	reloaded, err := client.Reload(t.Context(), &controllerv1.ReloadRequest{})
	if err != nil || !slices.Equal(reloaded.Warnings, []string{"careful"}) {
		t.Errorf("reload %v %v", reloaded, err)
	}
	h.reload = errors.New("a.yaml:3: unknown field")
	if _, err := client.Reload(t.Context(), &controllerv1.ReloadRequest{}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "a.yaml:3") {
		t.Errorf("bad reload: %v", err)
	}
	if _, err := client.DrainBackend(t.Context(), &controllerv1.DrainBackendRequest{Backend: "web-1", Drain: true}); err != nil || !slices.Equal(h.drained, []string{"web-1"}) {
		t.Errorf("drain: %v, drained %v", err, h.drained)
	}
	if _, err := client.DrainBackend(t.Context(), &controllerv1.DrainBackendRequest{Backend: "nobody"}); status.Code(err) != codes.NotFound {
		t.Errorf("drain of an unknown backend: %v", err)
	}
	if _, err := client.DrainMachine(t.Context(), &controllerv1.DrainMachineRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("drain that cannot be kept: %v", err)
	}
	if _, err := client.DrainBackend(t.Context(), &controllerv1.DrainBackendRequest{Backend: "last", Drain: true}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("drain of the last backend: %v", err)
	}
	if _, err := client.DrainBackend(t.Context(), &controllerv1.DrainBackendRequest{Backend: "last", Drain: true, Force: true}); err != nil {
		t.Errorf("forced drain of the last backend: %v", err)
	}
	if _, err := client.DrainService(t.Context(), &controllerv1.DrainServiceRequest{Service: "nothing", Drain: true}); status.Code(err) != codes.NotFound {
		t.Errorf("drain of an unknown service: %v", err)
	}
	if got, err := client.DrainService(t.Context(), &controllerv1.DrainServiceRequest{Service: "web", Drain: true, WaitMax: durationpb.New(time.Hour)}); err != nil || len(got.Warnings) != 1 {
		t.Errorf("drain of a service: %v %v", got, err)
	}
	for _, wait := range []time.Duration{-1, 0, time.Hour + 1} {
		_, service := client.DrainService(t.Context(), &controllerv1.DrainServiceRequest{Service: "web", Drain: true, WaitMax: durationpb.New(wait)})
		_, machine := client.DrainMachine(t.Context(), &controllerv1.DrainMachineRequest{Drain: true, WaitMax: durationpb.New(wait)})
		for _, err := range []error{service, machine} {
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "give more than 0s, up to 1h0m0s") {
				t.Errorf("wait_max %v: %v", wait, err)
			}
		}
	}
}

// As on a machine without our groups; packaging has the test of one with them.
func TestSocketsThatHaveNoGroupAreTheirOwnersOnly(t *testing.T) {
	runDir := looptest.Dir(t)
	sockets, err := Listen(runDir)
	if err != nil {
		t.Fatal(err)
	}
	defer sockets.Close()
	for socket, group := range map[string]string{OperateSocket(runDir): OperateGroup, ViewSocket(runDir): ViewGroup} {
		wanted := fs.FileMode(0o600)
		if _, err := user.LookupGroup(group); err == nil && os.Getuid() == 0 {
			wanted = 0o660
		}
		info, err := os.Stat(socket)
		if err != nil || info.Mode().Perm() != wanted {
			t.Errorf("%s: mode %v, wanted %v, %v", socket, info.Mode(), wanted, err)
		}
		if told := strings.Contains(strings.Join(sockets.NotShared, " "), socket); told != (wanted == 0o600) {
			t.Errorf("not shared: %v", sockets.NotShared)
		}
	}
}

func TestASecondControllerIsToldWhoWasFirst(t *testing.T) {
	runDir := looptest.Dir(t)
	first, err := Listen(runDir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Listen(runDir)
	if err == nil || !strings.Contains(err.Error(), "another controller runs in "+filepath.Dir(OperateSocket(runDir))) || !strings.Contains(err.Error(), "--run-dir") {
		t.Errorf("got %v", err)
	}
	first.Close()
	again, err := Listen(runDir)
	if err != nil {
		t.Fatalf("after the first has gone: %v", err)
	}
	again.Close()
}

func TestAStaleSocketIsReplacedAndAFileIsNot(t *testing.T) {
	runDir := looptest.Dir(t)
	path := OperateSocket(runDir)
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	stale, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	socket, err := Listen(runDir)
	if err != nil {
		t.Fatalf("stale socket: %v", err)
	}
	socket.Close()
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(runDir); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if kept, _ := os.ReadFile(path); string(kept) != "mine" {
		t.Error("the file was destroyed")
	}
}

func TestDescribeSaysVIPsAsPeopleWriteThem(t *testing.T) {
	missing := func(string) ([]byte, fs.FileMode, error) { return nil, 0, fs.ErrNotExist }
	c, err := config.Parse([]config.Source{{Name: "t.yaml", Data: []byte(`
machine: {addresses: [10.0.0.1]}
prefix_groups: [{name: class-a, prefixes: [203.0.113.0/24]}]
services:
- name: web
  vips: [{address: 203.0.113.10, ports: [80, "8000-8100"], protocol: tcp}, {address: 203.0.113.11}, {prefix_group: class-a, suffix: 0.0.0.10/8, protocol: udp}]
  pools: [web]
pools: [{name: web, backends: [{address: 10.1.0.11}]}]
`)}}, missing)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1, 0)
	s := brain.New(now)
	s.Step(brain.ConfigLoaded{Config: c}, now)
	state := Describe(s.View(true))
	want := []string{"203.0.113.10 tcp 80,8000-8100", "203.0.113.11", "class-a:0.0.0.10/8 udp"}
	if got := state.Services[0].Vips; !slices.Equal(got, want) {
		t.Errorf("vips %q, want %q", got, want)
	}
	if b := state.Backends[0]; b.State != "active" || b.Reason != "no health check" {
		t.Errorf("backend %v", b)
	}
}

func planOf(t *testing.T, client controllerv1.ControllerClient, files ...*controllerv1.ConfigFile) (*controllerv1.PlanConfigResponse, error) {
	t.Helper()
	return client.PlanConfig(t.Context(), &controllerv1.PlanConfigRequest{Files: files})
}

func configFile(name, data string) *controllerv1.ConfigFile {
	return &controllerv1.ConfigFile{Name: name, Data: []byte(data)}
}

func TestAConfigIsSeveralFilesAndItsFailuresHaveTheirCodes(t *testing.T) {
	h := &host{}
	operator, viewer := dial(t, h)
	response, err := planOf(t, operator, configFile("a", "12"), configFile("b", ""), configFile("c", "3"))
	if err != nil || response.Number != 7 {
		t.Fatal(response, err)
	}
	want := []config.Source{{Name: "a", Data: []byte("12")}, {Name: "b"}, {Name: "c", Data: []byte("3")}}
	if !slices.EqualFunc(h.offered, want, func(a, b config.Source) bool { return a.Name == b.Name && string(a.Data) == string(b.Data) }) {
		t.Errorf("the controller got %v", h.offered)
	}
	if _, err := planOf(t, viewer, configFile("a", "1")); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a viewer's: %v", err)
	}
	if _, err := planOf(t, operator); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no file: %v", err)
	}
	h.plan = Unmetf("no forwarder")
	if _, err := planOf(t, operator, configFile("a", "1")); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("nothing to compare with: %v", err)
	}
	h.plan = errors.New("a:1: unknown field")
	if _, err := planOf(t, operator, configFile("a", "1")); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a bad config: %v", err)
	}
}

func TestAConfigThatIsTooLargeIsRefused(t *testing.T) {
	h := &host{}
	operator, _ := dial(t, h)
	for _, bytes := range []int{config.FilesBytesMax, 2 * config.FilesBytesMax} { // the name counts; it is not read at all
		_, err := planOf(t, operator, configFile("a", string(make([]byte, bytes))))
		if code := status.Code(err); code != codes.InvalidArgument && code != codes.ResourceExhausted {
			t.Errorf("%d bytes: %v", bytes, err)
		}
	}
	if h.offered != nil {
		t.Error("the controller got it")
	}
}

func beginApply(t *testing.T, client controllerv1.ControllerClient) (controllerv1.Controller_ApplyConfigClient, error) {
	t.Helper()
	stream, err := client.ApplyConfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// Its error comes with the answer.
	_ = stream.Send(&controllerv1.ApplyConfigRequest{Files: []*controllerv1.ConfigFile{configFile("a", "12")}, Order: &controllerv1.ApplyOrder{Number: 7, Message: "why"}})
	target, err := stream.Recv()
	if err == nil && (target.Path != "/etc/guideway/guideway.yaml" || target.Digest != "abc") {
		t.Errorf("target %v", target)
	}
	return stream, err
}

func TestAConfigIsAppliedWhenItsClientHasWrittenIt(t *testing.T) {
	h := &host{}
	operator, viewer := dial(t, h)
	stream, err := beginApply(t, operator)
	if err != nil {
		t.Fatal(err)
	}
	if string(h.offered[0].Data) != "12" || h.order.Message != "why" || h.user != userName(uint32(os.Geteuid())) {
		t.Errorf("the controller got %v %v of %q", h.offered, h.order, h.user)
	}
	_ = stream.Send(&controllerv1.ApplyConfigRequest{Written: true}) // its error comes with the answer
	if done, err := stream.Recv(); err != nil || done.Number != 3 {
		t.Errorf("%v %v", done, err)
	}
	if _, err := beginApply(t, viewer); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a viewer's: %v", err)
	}
	stream, err = beginApply(t, operator)
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&controllerv1.ApplyConfigRequest{})
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("not written: %v", err)
	}
	h.plan = Unmetf("another generation")
	if _, err := beginApply(t, operator); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("refused: %v", err)
	}
}

// connectedAs another user: of a thread that is given up afterwards.
func connectedAs(t *testing.T, uid uintptr, socket string) net.Conn {
	t.Helper()
	connected := make(chan net.Conn, 1)
	go func() {
		defer close(connected)
		runtime.LockOSThread() // and never unlocked: the thread ends with its user
		const stays = ^uintptr(0)
		if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, stays, uid, stays); err != 0 {
			t.Errorf("become user %d: %v", uid, err)
			return
		}
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Errorf("connect as user %d: %v", uid, err)
			return
		}
		connected <- conn
	}()
	return <-connected
}

func TestOnlyRootAppliesAndAnOperatorDoesNot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	h := &host{}
	dial(t, h)
	runDir := h.runDir
	for path := OperateSocket(runDir); path != filepath.Dir(path) && path != os.TempDir(); path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	conn := connectedAs(t, 54321, OperateSocket(runDir))
	if conn == nil {
		return
	}
	client := connectBy(t, OperateSocket(runDir), func(own net.Conn) net.Conn { _ = own.Close(); return conn })
	_, err := beginApply(t, client)
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "by root, not by user 54321: use sudo") {
		t.Errorf("got %v", err)
	}
	if h.offered != nil {
		t.Error("the controller got it")
	}
	if _, err := client.Reload(t.Context(), &controllerv1.ReloadRequest{}); err != nil || h.user != "54321" {
		t.Errorf("a reload of %q: %v", h.user, err)
	}
}

func TestTheHistoryIsForAllAndItsConfigsForOperators(t *testing.T) {
	operator, viewer := dial(t, &host{})
	if history, err := viewer.GetConfigHistory(t.Context(), &controllerv1.GetConfigHistoryRequest{}); err != nil || history.Records[0].Number != 3 {
		t.Errorf("%v %v", history, err)
	}
	if _, err := viewer.GetConfig(t.Context(), &controllerv1.GetConfigRequest{Number: 3}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a viewer's: %v", err)
	}
	if found, err := operator.GetConfig(t.Context(), &controllerv1.GetConfigRequest{Number: 3}); err != nil || found.Record.Number != 3 {
		t.Errorf("%v %v", found, err)
	}
	if _, err := operator.GetConfig(t.Context(), &controllerv1.GetConfigRequest{Number: 4}); status.Code(err) != codes.NotFound {
		t.Errorf("an unknown number: %v", err)
	}
}
