package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/apitest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
	"go.yaml.in/yaml/v4"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

type fakeController struct {
	controllerv1.UnimplementedControllerServer
	drained []string
	// Answers to GetState, one after the other; the last one stays.
	states []*controllerv1.GetStateResponse
	// Of drains of services and the machine.
	drains  []proto.Message
	refuse  error
	offered string
	// The file that configs are applied to; and how that ends.
	target  string
	failure error
	order   *controllerv1.ApplyOrder
	reloads int
	// nil: the config is in files alone.
	fleet *controllerv1.GetFleetResponse
	ended *controllerv1.EndCanaryRequest
}

func (f *fakeController) GetState(context.Context, *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error) {
	if len(f.states) > 0 {
		state := f.states[0]
		if len(f.states) > 1 {
			f.states = f.states[1:]
		}
		return state, nil
	}
	return &controllerv1.GetStateResponse{
		Machine:  &controllerv1.Machine{Name: "lb-1", State: "serving"},
		Config:   &controllerv1.Config{Stale: true, Problem: "a.yaml:3: unknown field"},
		Services: []*controllerv1.Service{{Name: "web", Vips: []string{"203.0.113.10 tcp 80"}, State: "serving", BackendsActive: 1, Backends: 2, Pools: []string{"web"}}},
		Backends: []*controllerv1.Backend{
			{Service: "web", Name: "web-1", Address: "10.1.0.11", Weight: 2, State: "active", Reason: "ok: status 200"},
			{Service: "web", Name: "web-2", Address: "10.1.0.12", Weight: 1, State: "down", Reason: "ok: status 503, wanted 200"},
		},
		Routes:    []*controllerv1.Route{{Prefix: "203.0.113.10/32", Reason: "no backend", Services: []string{"web"}, Communities: []string{"64512:100", "64512:1:2"}}},
		Peers:     []*controllerv1.Peer{{Name: "lb-2", Addresses: []string{"10.0.0.2"}, Healthy: true, Reason: "answers"}, {Name: "lb-3", Addresses: []string{"10.0.0.3"}, Reason: "no answer"}},
		Neighbors: []*controllerv1.Neighbor{{Address: "10.0.0.254", Asn: 64513, State: "active", Attributes: []string{"med 10", "prepend 2"}, Bfd: "down", Reason: "hold-timer-expired"}},
	}, nil
}

func (f *fakeController) GetBackend(_ context.Context, r *controllerv1.GetBackendRequest) (*controllerv1.GetBackendResponse, error) {
	if r.Name != "web-1" {
		return nil, status.Error(codes.NotFound, r.Name+": no service of this machine has this backend")
	}
	now := time.Now()
	return &controllerv1.GetBackendResponse{
		Backends: []*controllerv1.Backend{{Service: "web", Name: "web-1", Address: "10.1.0.11", Weight: 2, State: "active", Reason: "ok: status 200", WeightPercent: 100}},
		Checks: []*controllerv1.BackendCheck{
			{
				Name: "ok", Kind: "https", Address: "10.1.0.11", Via: "direct", Pools: []string{"web", "canary"}, Interval: durationpb.New(time.Second),
				Timeout: durationpb.New(500 * time.Millisecond), Rise: 2, Fall: 3, Verdict: "up", Since: timestamppb.New(now.Add(-time.Minute)), Contradicting: 2,
				Last: &controllerv1.Probe{
					Result: "no answer within 500ms", Latency: durationpb.New(500 * time.Millisecond), At: timestamppb.New(now.Add(-200 * time.Millisecond)),
				},
			},
			{
				Name: "tls", Kind: "tls", Verdict: "up", Last: &controllerv1.Probe{
					Passed: true, Result: "TLS 1.3", Latency: durationpb.New(1234567), At: timestamppb.New(now), Warning: "the certificate expires in 3 days",
				},
			},
			{Name: "udp", Kind: "udp", Verdict: "unknown"},
		},
	}, nil
}

func (f *fakeController) Reload(context.Context, *controllerv1.ReloadRequest) (*controllerv1.ReloadResponse, error) {
	f.reloads++
	if f.target != "" {
		return &controllerv1.ReloadResponse{}, nil
	}
	return nil, status.Error(codes.InvalidArgument, "a.yaml:3: unknown field")
}

func (f *fakeController) DrainBackend(_ context.Context, r *controllerv1.DrainBackendRequest) (*controllerv1.DrainBackendResponse, error) {
	if r.Backend != "web-1" {
		return nil, status.Error(codes.NotFound, "no service of this machine has this backend")
	}
	f.drained = append(f.drained, r.Backend)
	if !r.Drain {
		return &controllerv1.DrainBackendResponse{Warnings: []string{"web-1 is drained on lb-2, too"}}, nil
	}
	return &controllerv1.DrainBackendResponse{}, nil
}

func (f *fakeController) DrainService(_ context.Context, r *controllerv1.DrainServiceRequest) (*controllerv1.DrainServiceResponse, error) {
	if r.Service != "web" {
		return nil, status.Error(codes.NotFound, "this machine has no such service")
	}
	f.drains = append(f.drains, r)
	return &controllerv1.DrainServiceResponse{Warnings: []string{"203.0.113.10/32 stays announced"}}, f.refuse
}

func (f *fakeController) DrainMachine(_ context.Context, r *controllerv1.DrainMachineRequest) (*controllerv1.DrainMachineResponse, error) {
	f.drains = append(f.drains, r)
	return &controllerv1.DrainMachineResponse{}, f.refuse
}

type fakeForwarder struct {
	forwarderv1.UnimplementedForwarderServer
	lookup   *forwarderv1.FlowKey
	captured *forwarderv1.CaptureRequest
	// Established connections of web-1, one answer after the other; the last one
	// stays. None: 40.
	established []uint64
}

func (*fakeForwarder) GetPlan(context.Context, *forwarderv1.GetPlanRequest) (*forwarderv1.GetPlanResponse, error) {
	return &forwarderv1.GetPlanResponse{Plan: &planv1.Plan{
		Backends: []*planv1.Backend{{Name: "web-1", Address: "10.1.0.11"}},
		Services: []*planv1.Service{{
			Name: "web",
			Vips: []*planv1.Vip{{
				Target: &planv1.Vip_Address{Address: "203.0.113.10"}, Protocol: planv1.Protocol_PROTOCOL_TCP,
				Ports: []*planv1.PortRange{{First: 80, Last: 80}, {First: 8000, Last: 8100}},
			}},
			Group: "web",
		}},
		Groups: []*planv1.Group{{
			Name:    "web",
			Members: []*planv1.Member{{Backend: "web-1", Weight: 2, State: planv1.BackendState_BACKEND_STATE_DRAINING}},
		}},
	}}, nil
}

func (*fakeForwarder) GetCounters(context.Context, *forwarderv1.GetCountersRequest) (*forwarderv1.GetCountersResponse, error) {
	return &forwarderv1.GetCountersResponse{
		Received: 1000, Sent: 990,
		Dropped: []*forwarderv1.Drop{
			{Reason: "quiet"},
			{Reason: "no_service", Packets: 3, Meaning: "no service has it"},
			{Reason: "too_big", Packets: 7, Meaning: "does not fit", UsualCause: "MTU"},
		},
		Services: []*forwarderv1.ServiceCounters{{Service: "web", Packets: 600, Bytes: 6000, NewConnections: 7}, {Service: "web", Packets: 390, Bytes: 3900, NewConnections: 5}},
		Backends: []*forwarderv1.BackendCounters{{Service: "web", Backend: "web-1", Packets: 990, NewConnections: 12}},
	}, nil
}

func (f *fakeForwarder) GetConnections(_ context.Context, r *forwarderv1.GetConnectionsRequest) (*forwarderv1.GetConnectionsResponse, error) {
	f.lookup = r.Lookup
	if r.Lookup != nil {
		return &forwarderv1.GetConnectionsResponse{Found: []*forwarderv1.Connection{{Worker: 1, Service: "web", Backend: "web-1", Class: "established", IdleMs: 1500}}}, nil
	}
	established := uint64(40)
	if len(f.established) > 0 {
		established = f.established[0]
		if len(f.established) > 1 {
			f.established = f.established[1:]
		}
	}
	return &forwarderv1.GetConnectionsResponse{ConnectionsMax: 5000, Counts: []*forwarderv1.ConnectionCount{
		{Service: "web", Backend: "web-1", Class: "established", Connections: established},
		{Service: "web", Backend: "web-1", Class: "closing", Connections: 2},
	}}, nil
}

// both starts what is given under a run directory.
func both(t *testing.T, c *fakeController, f *fakeForwarder) (runDir string) {
	t.Helper()
	runDir = apitest.RunDir(t)
	if c != nil {
		for _, socket := range []string{api.ViewSocket(runDir), api.OperateSocket(runDir)} {
			apitest.Serve(t, socket, func(s *grpc.Server) { controllerv1.RegisterControllerServer(s, c) })
		}
	}
	if f != nil {
		for _, socket := range []string{"forwarder-view.sock", "forwarder.sock"} {
			apitest.Serve(t, filepath.Join(runDir, socket), func(s *grpc.Server) { forwarderv1.RegisterForwarderServer(s, f) })
		}
	}
	return runDir
}

func guideway(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	command := root()
	command.SetOut(&out)
	command.SetErr(&errs)
	command.SetArgs(args)
	err = command.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

func fields(text string) string { return strings.Join(strings.Fields(text), " ") }

func TestShowWithBothProcesses(t *testing.T) {
	runDir := both(t, &fakeController{}, &fakeForwarder{})
	cases := []struct {
		verb string
		want []string
	}{
		{"services", []string{"web 203.0.113.10 tcp 80 serving 1/2 990 9900"}},
		{"backends", []string{"web web-1 10.1.0.11 2 active - ok: status 200 990", "web web-2 10.1.0.12 1 down - ok: status 503, wanted 200 0"}},
		{"drops", []string{"too_big 7 does not fit usually: MTU 1.5s ago: tcp 192.0.2.7:40000 > 203.0.113.10:80, 1600 bytes", "no_service 3 no service has it"}},
		{"connections", []string{"web web-1 established 40", "web web-1 closing 2"}},
		{"peers", []string{"lb-2 10.0.0.2 healthy - answers", "lb-3 10.0.0.3 unhealthy - no answer"}},
		{"bgp", []string{"neighbor 10.0.0.254 active - AS 64513, 0 prefixes, med 10, prepend 2, BFD down hold-timer-expired", "route 203.0.113.10/32 withdrawn - for web, communities 64512:100 64512:1:2 no backend"}},
	}
	for _, c := range cases {
		t.Run(c.verb, func(t *testing.T) {
			out, _, err := guideway(t, "show", c.verb, "--run-dir", runDir)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(fields(out), want) {
					t.Errorf("lacks %q:\n%s", want, out)
				}
			}
			asJSON, _, err := guideway(t, "show", c.verb, "--run-dir", runDir, "-o", "json")
			if err != nil {
				t.Fatal(err)
			}
			asYAML, _, err := guideway(t, "show", c.verb, "--run-dir", runDir, "-o", "yaml")
			if err != nil {
				t.Fatal(err)
			}
			sameValue(t, asJSON, asYAML)
			if _, _, err := guideway(t, "show", c.verb, "--run-dir", runDir, "-o", "xml"); err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), "give one of table, wide, json, yaml") {
				t.Errorf("unknown format: %v", err)
			}
		})
	}
}

func TestDropsFitATerminal(t *testing.T) {
	found := listing{header: []string{"REASON", "PACKETS", "MEANING"}, wrapped: true, rows: [][]string{
		{"untrusted_tunnel_source", "18446744073709551615", strings.Repeat("a sentence of some length. ", 12)},
		{"", "", "1.5s ago: tcp [2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:40000 > [2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535, 1600 bytes"},
	}}
	var narrow, wide bytes.Buffer
	if err := errors.Join(found.print(&narrow, "table"), found.print(&wide, "wide")); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(narrow.String()) {
		if len(strings.TrimRight(line, " \n")) > widthMax {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	if strings.Count(wide.String(), "\n") != 3 || fields(narrow.String()) != fields(wide.String()) {
		t.Errorf("wide:\n%s\nnot wide:\n%s", wide.String(), narrow.String())
	}
}

// sameValue: both are well formed and say the same.
func sameValue(t *testing.T, asJSON, asYAML string) {
	t.Helper()
	var fromJSON, fromYAML any
	if err := json.Unmarshal([]byte(asJSON), &fromJSON); err != nil {
		t.Fatalf("%v\n%s", err, asJSON)
	}
	if err := yaml.Unmarshal([]byte(asYAML), &fromYAML); err != nil {
		t.Fatalf("%v\n%s", err, asYAML)
	}
	a, _ := json.Marshal(fromJSON)
	b, err := json.Marshal(fromYAML)
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("JSON %s and YAML %s differ (%v)", a, b, err)
	}
}

func TestShowCache(t *testing.T) {
	runDir := both(t, nil, &fakeForwarder{})
	out, _, err := guideway(t, "show", "cache", "--run-dir", runDir)
	if want := "STATE PACKETS OF ALL SENT LOST ENTRIES TARGETS REASON on 742 74.9 % 5 12 of 4096 3 of 65536 - not cached: service dns, 2 backends: the backend has several next hops"; err != nil || fields(out) != want {
		t.Errorf("%v\n%s\nwant %s", err, fields(out), want)
	}
	for _, c := range []struct {
		cache *forwarderv1.KernelCache
		want  string
	}{
		{nil, ""},
		{&forwarderv1.KernelCache{State: "none", Reason: "steering is not rss"}, "steering is not rss"},
		{&forwarderv1.KernelCache{State: "off"}, "forwarder.kernel_cache is off"},
		{&forwarderv1.KernelCache{State: "paused"}, "packets are captured: workers get them all"},
		{&forwarderv1.KernelCache{State: "on", TargetsRefused: 7}, "7 more targets found no room: flows to them are not cached"},
	} {
		if shown := cacheOf(c.cache, 10); shown.Reason != c.want || shown.SentShare != 0 {
			t.Errorf("%v: %+v, want %q", c.cache, shown, c.want)
		}
	}
}

func TestShowWarnsOfAStaleConfig(t *testing.T) {
	runDir := both(t, &fakeController{}, &fakeForwarder{})
	_, stderr, err := guideway(t, "show", "services", "--run-dir", runDir)
	if err != nil || !strings.Contains(stderr, "the config is stale, the former one serves: a.yaml:3: unknown field") {
		t.Errorf("%v %q", err, stderr)
	}
}

func TestShowWithoutAController(t *testing.T) {
	runDir := both(t, nil, &fakeForwarder{})
	out, stderr, err := guideway(t, "show", "services", "--run-dir", runDir)
	if err != nil || !strings.Contains(fields(out), "web 203.0.113.10 tcp 80,8000-8100 no backend 0/1 990") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{api.ViewSocket(runDir), "systemctl start guideway-controller", "the plan by which the forwarder goes on"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr %q lacks %q", stderr, want)
		}
	}
	if out, _, err = guideway(t, "show", "backends", "--run-dir", runDir); err != nil || !strings.Contains(fields(out), "web web-1 10.1.0.11 2 draining - - 990") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, _, err := guideway(t, "show", "bgp", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), "controller-view.sock") {
		t.Errorf("bgp: %v", err)
	}
}

func TestShowWithoutAForwarder(t *testing.T) {
	runDir := both(t, &fakeController{}, nil)
	out, stderr, err := guideway(t, "show", "backends", "--run-dir", runDir)
	if err != nil || !strings.Contains(fields(out), "web-2 10.1.0.12 1 down - ok: status 503, wanted 200 -") || !strings.Contains(stderr, "systemctl start guideway-forwarder") {
		t.Errorf("%v\n%s\n%s", err, out, stderr)
	}
	for _, verb := range []string{"drops", "connections"} {
		if _, _, err := guideway(t, "show", verb, "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), "forwarder-view.sock") {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

func TestWithoutEitherBothAreNamed(t *testing.T) {
	_, _, err := guideway(t, "show", "services", "--run-dir", t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "controller-view.sock") || !strings.Contains(err.Error(), "forwarder-view.sock") || !strings.Contains(err.Error(), "no such socket") {
		t.Errorf("%v", err)
	}
}

func TestASocketOfADeadProcessIsToldApart(t *testing.T) {
	runDir := t.TempDir()
	if err := os.Mkdir(filepath.Dir(api.ViewSocket(runDir)), 0o755); err != nil {
		t.Fatal(err)
	}
	stale, err := net.Listen("unix", api.ViewSocket(runDir))
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	if _, _, err := guideway(t, "show", "bgp", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
}

func TestOperatorsMayLookWithoutBeingViewers(t *testing.T) {
	runDir := both(t, &fakeController{}, &fakeForwarder{})
	for _, socket := range []string{api.ViewSocket(runDir), filepath.Join(runDir, "forwarder-view.sock")} {
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
	}
	if out, stderr, err := guideway(t, "show", "services", "--run-dir", runDir); err != nil || strings.Contains(stderr, "socket") || !strings.Contains(out, "web") {
		t.Errorf("%v %s\n%s", err, stderr, out)
	}
}

func TestOneConnectionIsLookedUp(t *testing.T) {
	f := &fakeForwarder{}
	runDir := both(t, nil, f)
	out, _, err := guideway(t, "show", "connections", "tcp", "192.0.2.7:40000", "203.0.113.10:80", "--run-dir", runDir)
	if err != nil || !strings.Contains(fields(out), "1 web web-1 established 1.5s") {
		t.Errorf("%v\n%s", err, out)
	}
	if k := f.lookup; k.GetSource() != "192.0.2.7" || k.GetSourcePort() != 40000 || k.GetDestination() != "203.0.113.10" || k.GetDestinationPort() != 80 || k.GetProtocol() != 6 {
		t.Errorf("requested %v", k)
	}
	for _, bad := range [][]string{
		{"tcp", "192.0.2.7", "203.0.113.10:80"},
		{"sctp", "192.0.2.7:1", "203.0.113.10:80"},
		{"tcp", "192.0.2.7:1", "[2001:db8::1]:80"},
		{"tcp", "192.0.2.7:1"},
	} {
		if _, _, err := guideway(t, append([]string{"show", "connections", "--run-dir", runDir}, bad...)...); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

func TestOperating(t *testing.T) {
	c := &fakeController{}
	runDir := both(t, c, nil)
	if _, _, err := guideway(t, "reload", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), "a.yaml:3: unknown field") {
		t.Errorf("reload: %v", err)
	}
	if _, _, err := guideway(t, "drain", "backend", "web-1", "--run-dir", runDir); err != nil || len(c.drained) != 1 {
		t.Errorf("drain: %v %v", err, c.drained)
	}
	if _, _, err := guideway(t, "drain", "backend", "wbe-1", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), `did you mean "web-1"?`) || exitCode(err) != exitFailed {
		t.Errorf("drain of an unknown backend: %v", err)
	}
}
