package api

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/apitest"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

type host struct {
	reload  error
	drained []string
}

func (h *host) StateOf(context.Context, *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error) {
	return &controllerv1.GetStateResponse{Version: "test"}, nil
}
func (h *host) Reload(context.Context) ([]string, error) { return []string{"careful"}, h.reload }
func (h *host) DrainBackend(_ context.Context, backend string, _ bool) error {
	if backend == "nobody" {
		return ErrUnknownBackend
	}
	h.drained = append(h.drained, backend)
	return nil
}
func (h *host) DrainMachine(context.Context, bool) error { return errors.New("disk full") }

func dial(t *testing.T, h Host) (operator, viewer controllerv1.ControllerClient) {
	t.Helper()
	runDir := apitest.RunDir(t)
	sockets, err := Listen(runDir)
	if err != nil {
		t.Fatal(err)
	}
	operators, viewers := Server(h, true), Server(h, false)
	go operators.Serve(sockets.Operate)
	go viewers.Serve(sockets.View)
	t.Cleanup(func() { operators.Stop(); viewers.Stop(); sockets.Close() })
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
}

// As on a machine without our groups; packaging has the test of one with them.
func TestSocketsThatHaveNoGroupAreTheirOwnersOnly(t *testing.T) {
	runDir := apitest.RunDir(t)
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
	runDir := apitest.RunDir(t)
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
	runDir := apitest.RunDir(t)
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
