// Package clitest provides a controller and a forwarder that give the answers that a test
// wants, and executes command lines.
package clitest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/apitest"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

// FormerConfig is what runs before another is applied.
const FormerConfig = "former: 1\n"

// FakeController answers with a service web on two backends, and keeps what it is asked.
type FakeController struct {
	controllerv1.UnimplementedControllerServer
	Drained []string
	// Answers to GetState, one after the other; the last one stays.
	States []*controllerv1.GetStateResponse
	// Of drains of services and the machine.
	Drains  []proto.Message
	Refuse  error
	Offered string
	// The file that configs are applied to; and how that ends.
	Target  string
	Edited  bool
	Failure error
	// Why what was loaded last is refused.
	Refused string
	Order   *controllerv1.ApplyOrder
	Reloads int
	// nil: the config is in files alone.
	Fleet *controllerv1.GetFleetResponse
	Ended *controllerv1.EndCanaryRequest
	// Events of one stream after the other, which end as if their time was over; the last one goes on.
	// And what was asked.
	Streams [][]*controllerv1.Event
	mu      sync.Mutex
	watched []*controllerv1.WatchEventsRequest
	// nil: it is of a version that has none.
	Rates *controllerv1.Rates
	// Beside it, on the same machine; nil: none.
	forwarder forwarderv1.ForwarderClient
}

// Watched are the requests for events so far.
func (f *FakeController) Watched() []*controllerv1.WatchEventsRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.watched)
}

// WatchEvents of the next stream.
func (f *FakeController) WatchEvents(r *controllerv1.WatchEventsRequest, stream grpc.ServerStreamingServer[controllerv1.WatchEventsResponse]) error {
	f.mu.Lock()
	at := len(f.watched)
	f.watched = append(f.watched, r)
	f.mu.Unlock()
	if r.Service == "wbe" {
		return status.Error(codes.NotFound, "wbe: this machine has no such service")
	}
	isLast := at >= len(f.Streams)-1
	for _, e := range f.Streams[min(at, len(f.Streams)-1)] {
		if err := stream.Send(&controllerv1.WatchEventsResponse{Event: e}); err != nil {
			return err
		}
	}
	switch {
	case !r.Follow:
		return nil
	case !isLast:
		return status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	}
	if err := stream.Send(&controllerv1.WatchEventsResponse{Lost: 7}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// WatchRates answers once, and goes on.
func (f *FakeController) WatchRates(_ *controllerv1.WatchRatesRequest, stream grpc.ServerStreamingServer[controllerv1.Rates]) error {
	if f.Rates == nil {
		return status.Error(codes.Unimplemented, "unknown method WatchRates")
	}
	if err := stream.Send(f.Rates); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// GetState with what the forwarder beside it counted.
func (f *FakeController) GetState(ctx context.Context, r *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error) {
	state := f.state()
	if r.WithCounters {
		state.NotCounted = f.count(ctx, state.Services, state.Backends)
	}
	return state, nil
}

func (f *FakeController) count(ctx context.Context, services []*controllerv1.Service, backends []*controllerv1.Backend) (notCounted string) {
	if f.forwarder == nil {
		return "the forwarder: no such socket"
	}
	counts, err := api.AskCounts(ctx, f.forwarder, true)
	if err != nil {
		return err.Error()
	}
	counts.AddTo(services, backends)
	return ""
}

func (f *FakeController) state() *controllerv1.GetStateResponse {
	if len(f.States) > 0 {
		state := f.States[0]
		if len(f.States) > 1 {
			f.States = f.States[1:]
		}
		return state
	}
	return &controllerv1.GetStateResponse{
		Machine:  &controllerv1.Machine{Name: "lb-1", State: "serving"},
		Config:   &controllerv1.Config{Stale: true, Problem: "a.yaml:3: unknown field"},
		Services: []*controllerv1.Service{{Name: "web", Vips: []string{"203.0.113.10 tcp 80"}, State: "serving", BackendsActive: 1, Backends: 2, Pools: []string{"web"}}},
		Backends: []*controllerv1.Backend{
			{Service: "web", Name: "web-1", Address: "10.1.0.11", Weight: 2, State: "active", Reason: "ok: status 200"},
			{Service: "web", Name: "web-2", Address: "10.1.0.12", Weight: 1, State: "down", Reason: "ok: status 503, wanted 200"},
		},
		Routes: []*controllerv1.Route{{Prefix: "203.0.113.10/32", Reason: "no backend", Services: []string{"web"}, Communities: []string{"64512:100", "64512:1:2"}}},
		Peers:  []*controllerv1.Peer{{Name: "lb-2", Addresses: []string{"10.0.0.2"}, Healthy: true, Reason: "answers"}, {Name: "lb-3", Addresses: []string{"10.0.0.3"}, Reason: "no answer"}},
		MemberSources: []*controllerv1.MemberSource{
			{Name: "web", Source: "file /etc/guideway/web.json", Backends: 4, Leaving: 1, Waiting: 3, WaitingUntil: &timestamppb.Timestamp{Seconds: 1}},
			{Name: "mail", Source: "dns mail.internal", Problem: "answered by SERVFAIL"},
		},
		Vrrp: []*speakerv1.VirtualRouter{
			{Vrid: 51, Family: "ipv4", State: "active", Priority: 250, Vips: []string{"203.0.113.10"}},
			{Vrid: 52, Family: "ipv6", State: "backup", Priority: 242, Owner: "fe80::2", OwnerPriority: 250, Reason: "started", Vips: []string{"2001:db8:a::10"}},
		},
		VrrpProbes: []*speakerv1.VrrpProbe{{Address: "10.0.0.254", Gateway: true, Answers: true}, {Address: "fe80::254", Gateway: true}, {Address: "10.0.0.3"}},
		Neighbors:  []*controllerv1.Neighbor{{Address: "10.0.0.254", Asn: 64513, State: "active", Attributes: []string{"med 10", "prepend 2"}, Bfd: "down", Reason: "hold-timer-expired"}},
	}
}

// GetBackend with its packets.
func (f *FakeController) GetBackend(ctx context.Context, r *controllerv1.GetBackendRequest) (*controllerv1.GetBackendResponse, error) {
	if r.Name != "web-1" {
		return nil, status.Error(codes.NotFound, r.Name+": no service of this machine has this backend")
	}
	now := time.Now()
	backends := []*controllerv1.Backend{{Service: "web", Name: "web-1", Address: "10.1.0.11", Weight: 2, State: "active", Reason: "ok: status 200", WeightPercent: 100}}
	return &controllerv1.GetBackendResponse{
		Backends: backends, NotCounted: f.count(ctx, nil, backends),
		Checks: []*controllerv1.BackendCheck{
			{
				Name: "ok", Kind: "https", Address: "10.1.0.11", Via: "direct", Pools: []string{"web", "canary"}, Interval: durationpb.New(time.Second),
				Timeout: durationpb.New(500 * time.Millisecond), Rise: 2, Fall: 3, Verdict: "up", Since: timestamppb.New(now.Add(-time.Minute)), Contradicting: 2,
				Last: &controllerv1.Probe{
					Result: "no answer within 500ms", LatencySeconds: 0.5, At: timestamppb.New(now.Add(-200 * time.Millisecond)),
				},
			},
			{
				Name: "tls", Kind: "tls", Verdict: "up", Last: &controllerv1.Probe{
					Passed: true, Result: "TLS 1.3", LatencySeconds: 0.001234567, At: timestamppb.New(now), Warning: "the certificate expires in 3 days",
				},
			},
			{Name: "udp", Kind: "udp", Verdict: "unknown"},
		},
	}, nil
}

func (f *FakeController) Reload(context.Context, *controllerv1.ReloadRequest) (*controllerv1.ReloadResponse, error) {
	f.Reloads++
	if f.Target != "" {
		return &controllerv1.ReloadResponse{}, nil
	}
	return nil, status.Error(codes.InvalidArgument, "a.yaml:3: unknown field")
}

func (f *FakeController) DrainBackend(_ context.Context, r *controllerv1.DrainBackendRequest) (*controllerv1.DrainBackendResponse, error) {
	if r.Backend != "web-1" {
		return nil, status.Error(codes.NotFound, "no service of this machine has this backend")
	}
	f.Drained = append(f.Drained, r.Backend)
	if !r.Drain {
		return &controllerv1.DrainBackendResponse{Warnings: []string{"web-1 is drained on lb-2, too"}}, nil
	}
	return &controllerv1.DrainBackendResponse{}, nil
}

func (f *FakeController) DrainService(_ context.Context, r *controllerv1.DrainServiceRequest) (*controllerv1.DrainServiceResponse, error) {
	if r.Service != "web" {
		return nil, status.Error(codes.NotFound, "this machine has no such service")
	}
	f.Drains = append(f.Drains, r)
	return &controllerv1.DrainServiceResponse{Warnings: []string{"203.0.113.10/32 stays announced"}}, f.Refuse
}

func (f *FakeController) DrainMachine(_ context.Context, r *controllerv1.DrainMachineRequest) (*controllerv1.DrainMachineResponse, error) {
	f.Drains = append(f.Drains, r)
	return &controllerv1.DrainMachineResponse{}, f.Refuse
}

// ApplyConfig takes what was written to the target, or fails.
func (f *FakeController) ApplyConfig(stream grpc.BidiStreamingServer[controllerv1.ApplyConfigRequest, controllerv1.ApplyConfigResponse]) error {
	for f.Order = nil; f.Order == nil; {
		request, err := stream.Recv()
		if err != nil {
			return err
		}
		f.Order = request.Order
	}
	sum := sha256.Sum256([]byte(FormerConfig))
	if err := stream.Send(&controllerv1.ApplyConfigResponse{Path: f.Target, Digest: hex.EncodeToString(sum[:]), Edited: f.Edited}); err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	if f.Failure != nil {
		return f.Failure
	}
	return stream.Send(&controllerv1.ApplyConfigResponse{Number: 7})
}

func (f *FakeController) GetConfigHistory(context.Context, *controllerv1.GetConfigHistoryRequest) (*controllerv1.GetConfigHistoryResponse, error) {
	at := timestamppb.New(time.Unix(1_700_000_000, 0))
	return &controllerv1.GetConfigHistoryResponse{NotRecorded: "disk full", Refused: f.Refused, Records: []*controllerv1.ConfigRecord{
		{Number: 7, Time: at, How: "apply", User: "alice", Message: "too\nearly", From: []string{"/new.yaml"}, Digest: "77"},
		{Number: 6, Time: at, How: "rollback", RollbackTo: 4, User: "root", InUse: true},
		{Number: 5, Time: at, How: "reload"},
	}}, nil
}

func (f *FakeController) GetConfig(_ context.Context, r *controllerv1.GetConfigRequest) (*controllerv1.GetConfigResponse, error) {
	text := map[uint64]string{0: "different: 1\nb: 2\n", 5: "different: 1\nb: 3\n", 6: "different: 1\nb: 2\n"}[r.Number]
	if text == "" {
		return nil, status.Error(codes.NotFound, "the history has no such config")
	}
	files := []*controllerv1.ConfigFile{{Name: "/etc/g.yaml", Data: []byte(text)}}
	return &controllerv1.GetConfigResponse{Record: &controllerv1.ConfigRecord{Number: r.Number}, Files: files}, nil
}

// PlanConfig finds changes by the words in the config.
func (f *FakeController) PlanConfig(_ context.Context, request *controllerv1.PlanConfigRequest) (*controllerv1.PlanConfigResponse, error) {
	f.Offered = ""
	for _, file := range request.Files {
		f.Offered += string(file.Data)
	}
	response := &controllerv1.PlanConfigResponse{Number: 42, Services: []*controllerv1.ServiceChange{
		{Service: "idle", TableEntries: 65537, Established: &controllerv1.ConnectionChange{Staying: 3}},
	}}
	switch {
	case strings.HasPrefix(f.Offered, "bad"):
		return nil, status.Error(codes.InvalidArgument, "new.yaml:1: unknown field")
	case strings.HasPrefix(f.Offered, "same"):
		return response, nil
	}
	response.Changed = true
	response.Changes = []*controllerv1.ConfigChange{
		{Kind: "service", Name: "web", What: "changed", Fields: []*controllerv1.FieldChange{{Field: "encap", Before: "gre", After: "gue"}, {Field: "dscp", After: "46"}}},
		{Kind: "backend", Name: "web-3", What: "added"},
	}
	response.Services = append(response.Services, &controllerv1.ServiceChange{
		Service: "web", TableEntries: 1000, TableEntriesChanged: 334, TableEntriesMoved: 1,
		Backends:         []*controllerv1.ShareChange{{Backend: "web-1", ShareBefore: 1, ShareAfter: 0.666}, {Backend: "web-3", ShareAfter: 0.334}},
		Established:      &controllerv1.ConnectionChange{Staying: 700, Breaking: 40, Moving: 3, Unknown: 2},
		OpeningOrClosing: &controllerv1.ConnectionChange{Staying: 9, Breaking: 4}, QuotaReached: true,
	}, &controllerv1.ServiceChange{Service: "web-tls", TableEntries: 1000, TableEntriesChanged: 334, SharesAs: "web", Established: &controllerv1.ConnectionChange{}})
	response.Routes = []*controllerv1.RouteChange{{Prefix: "203.0.113.11/32", Announced: true, Reason: "its services have backends", Services: []string{"web"}}}
	response.BgpSessions = []*controllerv1.SessionChange{
		{Address: "10.0.0.254", Asn: 64513, Routes: 3, Reason: "asn: 64513 to 64514"},
		{Address: "10.0.0.253", Asn: 64513, Routes: 3, Removed: true, Reason: "the neighbor is removed"},
	}
	response.LastBgpSessionEnds = true
	response.Warnings = []string{"new.yaml:2: careful"}
	response.AssumedActive = []string{"web-3"}
	response.NewProbes = &controllerv1.TriedProbes{
		Passed: 2, Untried: 1, UntriedReason: "no healthy forwarder runs a plan that has this tunnel",
		Failed: []*controllerv1.FailedProbe{{Backend: "web-2", HealthCheck: "ok", Via: "tunnel", Reason: "answers directly, not at the VIP 203.0.113.10: connection refused"}},
	}
	response.UntrackedQuota = 5
	response.RestartRequired = "other devices"
	return response, nil
}

func (f *FakeController) GetFleet(context.Context, *controllerv1.GetFleetRequest) (*controllerv1.GetFleetResponse, error) {
	if f.Fleet == nil {
		return nil, status.Error(codes.FailedPrecondition, "this machine's config is in files alone")
	}
	return f.Fleet, nil
}

func (f *FakeController) EndCanary(_ context.Context, r *controllerv1.EndCanaryRequest) (*controllerv1.ApplyConfigResponse, error) {
	if f.Refuse != nil {
		return nil, f.Refuse
	}
	f.Ended = r
	return &controllerv1.ApplyConfigResponse{Number: 19, NotChecked: []string{"lb-3: its controller is not registered"}}, nil
}

// FakeForwarder answers with that service's counters, plan and connections.
type FakeForwarder struct {
	forwarderv1.UnimplementedForwarderServer
	Lookup   *forwarderv1.FlowKey
	Captured *forwarderv1.CaptureRequest
	// Established connections of web-1, one answer after the other; the last one
	// stays. None: 40.
	Established []uint64
}

func (*FakeForwarder) GetPlan(context.Context, *forwarderv1.GetPlanRequest) (*forwarderv1.GetPlanResponse, error) {
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

func (*FakeForwarder) GetCounters(context.Context, *forwarderv1.GetCountersRequest) (*forwarderv1.GetCountersResponse, error) {
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

func (f *FakeForwarder) GetConnections(_ context.Context, r *forwarderv1.GetConnectionsRequest) (*forwarderv1.GetConnectionsResponse, error) {
	f.Lookup = r.Lookup
	if r.Lookup != nil {
		return &forwarderv1.GetConnectionsResponse{Found: []*forwarderv1.Connection{{Worker: 1, Service: "web", Backend: "web-1", Class: "established", IdleMs: 1500}}}, nil
	}
	established := uint64(40)
	if len(f.Established) > 0 {
		established = f.Established[0]
		if len(f.Established) > 1 {
			f.Established = f.Established[1:]
		}
	}
	return &forwarderv1.GetConnectionsResponse{ConnectionsMax: 5000, Counts: []*forwarderv1.ConnectionCount{
		{Service: "web", Backend: "web-1", Class: "established", Connections: established},
		{Service: "web", Backend: "web-1", Class: "closing", Connections: 2},
	}}, nil
}

func (*FakeForwarder) Explain(_ context.Context, r *forwarderv1.ExplainRequest) (*forwarderv1.ExplainResponse, error) {
	slot := uint32(4711)
	told := &forwarderv1.ExplainResponse{
		Generation: 7, Verdict: "sent", Service: "web", Matched: "203.0.113.10 tcp 80", Hash: "0123456789abcdef", Selector: "0123456789abcdef",
		Affinity: "flow", Slot: &slot, TableSize: 65537, BackendByHash: "web-2",
		Cached:  &forwarderv1.CachedFlow{Interface: "eth1", Queue: 1, IdleMs: 300},
		Tracked: &forwarderv1.TrackedFlow{Worker: 1, Backend: "web-1", Class: "established", IdleMs: 1500, Decides: true},
		Backend: "web-1", BackendAddress: "10.1.0.11", Encap: "gre", Outer: "02000000000102000000" + "00fe0800" + "4500002a",
		NextHop: &forwarderv1.NextHop{Device: "eth1", Mac: "02:00:00:00:00:01", Mtu: 1600},
	}
	switch r.Flow.DestinationPort {
	case 81:
		return &forwarderv1.ExplainResponse{Generation: 7, Verdict: "dropped", Hash: told.Hash, Selector: told.Hash,
			End: &forwarderv1.Drop{Reason: "no_service", Meaning: "No service has it.", UsualCause: "A scan."}}, nil
	case 82:
		told.Tracked = nil
	case 84:
		told.Encap = "l2"
	case 83:
		told.Cached, told.NotCached = nil, "its packets are not tracked"
		told.Mode, told.TableSize, told.RouteOption = "stateless", 8192, []string{"10.1.0.12", "10.1.0.13"}
	}
	return told, nil
}

func (*FakeForwarder) GetDropSamples(context.Context, *forwarderv1.GetDropSamplesRequest) (*forwarderv1.GetDropSamplesResponse, error) {
	frame, err := hex.DecodeString("02000000000102000000" + "00fe0800" + "45000028000040004006" + "0000" + "c0000207cb00710a" + "9c400050")
	return &forwarderv1.GetDropSamplesResponse{Samples: []*forwarderv1.DropSample{
		{Reason: "too_big", Worker: 1, AgeMs: 1500, FrameBytes: 1600, Start: frame},
	}}, err
}

func (f *FakeForwarder) Capture(r *forwarderv1.CaptureRequest, stream grpc.ServerStreamingServer[forwarderv1.CaptureResponse]) error {
	f.Captured = r
	if r.Service == "none" {
		return status.Error(codes.InvalidArgument, "service: the plan has no service `none`")
	}
	frame := []byte("a frame of thirty-one bytes, yes")[:31]
	for _, packets := range [][]*forwarderv1.CapturedPacket{
		{{TimeNs: 1_700_000_000_123_456_789, Worker: 1, Interface: "eth1", Verdict: "sent", Service: "web", Backend: "web-1", Frame: frame}},
		{{TimeNs: 1_700_000_001_000_000_000, Interface: "eth2", Verdict: "dropped", Reason: "no_service", Frame: frame}},
	} {
		if err := stream.Send(&forwarderv1.CaptureResponse{Packets: packets, Missed: 2}); err != nil {
			return err
		}
	}
	<-stream.Context().Done()
	return nil
}

func (*FakeForwarder) GetStatus(context.Context, *forwarderv1.GetStatusRequest) (*forwarderv1.GetStatusResponse, error) {
	return &forwarderv1.GetStatusResponse{
		Version: "1", Generation: 7, ControllerAbsentMs: 5400,
		Devices: []*forwarderv1.Device{{Interface: "eth1", Driver: "af_xdp", Mode: "generic", Queues: 2, Up: true, Mtu: 1600, TapMissing: "no /dev/net/tun", DriverReason: "the config names it"}},
		KernelCache: &forwarderv1.KernelCache{State: "on", Packets: 742, Entries: 12, EntriesMax: 4096, Targets: 3, TargetsMax: 65536,
			NotCached: []*forwarderv1.NotCached{{Service: "dns", Reason: "the backend has several next hops", Backends: 2}}},
		PlanUnsaved:  "writing plan.json: no space left on device",
		TunnelErrors: &forwarderv1.TunnelErrors{Count: 12, From: "10.1.255.254", About: "web-1", Mtu: 1400, AgeMs: 61000},
		Unresolved:   []*forwarderv1.UnresolvedBackend{{Name: "web-1", Address: "10.1.0.11", Why: "no route"}},
	}, nil
}

func (*FakeForwarder) GetMetrics(context.Context, *forwarderv1.GetMetricsRequest) (*forwarderv1.GetMetricsResponse, error) {
	return &forwarderv1.GetMetricsResponse{Text: "guideway_rx_lost_packets_total{interface=\"eth1\",queue=\"0\",where=\"kernel\"} 0\n" +
		"guideway_rx_lost_packets_total{interface=\"eth1\",queue=\"1\",where=\"ring_full\"} 9\n"}, nil
}

// Both starts what is given under a run directory.
func Both(t *testing.T, c *FakeController, f *FakeForwarder) (runDir string) {
	t.Helper()
	runDir = looptest.Dir(t)
	if c != nil {
		for _, socket := range []string{api.ViewSocket(runDir), api.OperateSocket(runDir)} {
			apitest.Serve(t, socket, func(s *grpc.Server) { controllerv1.RegisterControllerServer(s, c) })
		}
	}
	if f != nil {
		if c != nil {
			c.forwarder = forwarderv1.NewForwarderClient(apitest.Connect(t, filepath.Join(runDir, "forwarder.sock")))
		}
		for _, socket := range []string{"forwarder-view.sock", "forwarder.sock"} {
			apitest.Serve(t, filepath.Join(runDir, socket), func(s *grpc.Server) { forwarderv1.RegisterForwarderServer(s, f) })
		}
	}
	return runDir
}

// OverTCP serves a controller to those who have a certificate, and returns its address.
func OverTCP(t *testing.T, authority *looptest.Authority, c controllerv1.ControllerServer) string {
	t.Helper()
	certificate, err := tls.X509KeyPair(authority.Issue(looptest.Named("lb")))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Pool(), NextProtos: []string{"h2"},
	})))
	controllerv1.RegisterControllerServer(server, c)
	go func() { _ = server.Serve(listener) }() // ends with Stop
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// Certificate of a client of such a controller, as flags.
func Certificate(t *testing.T, authority *looptest.Authority) (flags []string) {
	t.Helper()
	certificate, key := authority.Issue(looptest.Named("alice"))
	for flag, data := range map[string][]byte{"cert": certificate, "key": key, "ca": authority.Certificate} {
		file := filepath.Join(t.TempDir(), flag)
		looptest.WriteFile(t, file, data)
		flags = append(flags, "--"+flag+"-file", file)
	}
	return flags
}

// Draining web-1: 100 buckets are prepared, 28 have moved.
func Draining() *controllerv1.GetStateResponse {
	buckets := &controllerv1.Buckets{
		Count: 256, Generation: 7, GenerationAcknowledged: 6, Moving: 128, Waiting: 3, MoveAgeMax: durationpb.New(24 * time.Hour),
		Backends: []*controllerv1.BucketUse{{Backend: "web-1", Owned: 100, Earlier: 28}, {Backend: "web-2", Owned: 156, Next: 100}},
		Moves: []*controllerv1.BucketMove{
			{From: "web-1", To: "web-2", Buckets: 100},
			{From: "web-1", To: "web-2", Buckets: 28, Moved: true, Since: timestamppb.New(time.Now().Add(-time.Hour)), Connections: proto.Uint64(12)},
		},
	}
	return &controllerv1.GetStateResponse{Services: []*controllerv1.Service{{Name: "tracked"}, {Name: "web", Buckets: buckets}}}
}

// Fields of a text, one space between them.
func Fields(text string) string { return strings.Join(strings.Fields(text), " ") }

// Program is `guideway` with one of its verbs.
func Program(verbs ...*cobra.Command) *cobra.Command {
	command := &cobra.Command{Use: "guideway", SilenceErrors: true, SilenceUsage: true}
	command.AddCommand(verbs...)
	commandline.Strict(command)
	return command
}

// Execute a command line.
func Execute(t *testing.T, program *cobra.Command, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	program.SetOut(&out)
	program.SetErr(&errs)
	program.SetArgs(args)
	err = program.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}
