package run

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func (p *peer) GetCounters(context.Context, *forwarderv1.GetCountersRequest) (*forwarderv1.GetCountersResponse, error) {
	web := &forwarderv1.ServiceCounters{Service: "web", Packets: p.packets.Load()}
	return &forwarderv1.GetCountersResponse{Received: 7, Services: []*forwarderv1.ServiceCounters{web}}, nil
}

func (p *peer) GetConnections(context.Context, *forwarderv1.GetConnectionsRequest) (*forwarderv1.GetConnectionsResponse, error) {
	return &forwarderv1.GetConnectionsResponse{ConnectionsMax: 4096}, nil
}

func (p *peer) GetDropSamples(context.Context, *forwarderv1.GetDropSamplesRequest) (*forwarderv1.GetDropSamplesResponse, error) {
	return &forwarderv1.GetDropSamplesResponse{}, nil
}

// remoteHarness has an API over TCP; ada is an admin there, oscar operates.
type remoteHarness struct {
	*harness
	authority *looptest.Authority
	address   string
}

func (h *remoteHarness) config(extra string) string {
	return h.harness.config(extra) + fmt.Sprintf("api: {listen: %q, tls: {cert_file: api.crt, key_file: api.key, ca_file: ca.crt}, roles: {operate: [oscar], admin: [ada]}}\n", h.address)
}

func (h *remoteHarness) as(name string) controllerv1.ControllerClient {
	h.t.Helper()
	conn, err := grpc.NewClient(h.address, grpc.WithTransportCredentials(credentials.NewTLS(h.authority.Client(looptest.Named(name)))))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return controllerv1.NewControllerClient(conn)
}

func servedRemotely(t *testing.T) *remoteHarness {
	t.Helper()
	h := &remoteHarness{harness: newHarness(t), authority: looptest.NewAuthority(t), address: looptest.FreeAddress(t)}
	h.authority.WriteFiles(h.dir, looptest.Named("lb-1"))
	h.write(h.config(""))
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	if _, err := h.as("ada").GetState(h.deadline(), &controllerv1.GetStateRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	return h
}

// apply from another machine: the client writes nothing.
func (h *remoteHarness) apply(name, config string) (*controllerv1.ApplyConfigResponse, error) {
	h.t.Helper()
	return h.as(name).ReplaceConfig(h.deadline(), &controllerv1.ReplaceConfigRequest{
		Files: oneFile(config), Order: &controllerv1.ApplyOrder{Number: h.numberInUse(), Message: "from afar"},
	})
}

func (h *remoteHarness) holds(config string) {
	h.t.Helper()
	if data, err := os.ReadFile(h.configFile()); err != nil || string(data) != config {
		h.t.Errorf("the file holds %s, %v", data, err)
	}
}

func TestAdminsOfOtherMachinesApplyAndTheControllerWrites(t *testing.T) {
	h := servedRemotely(t)
	if _, err := h.apply("oscar", h.config(secondBackend)); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "needs admin") {
		t.Errorf("an operator's: %v", err)
	}
	h.holds(h.config(""))
	if done, err := h.apply("ada", h.config(secondBackend)); err != nil || done.Number != 2 {
		t.Fatalf("%v %v", done, err)
	}
	h.holds(h.config(secondBackend))
	isActive := backendState("web-2", "active")
	h.until("in use, by the forwarder too", func(s *controllerv1.GetStateResponse) bool {
		return isActive(s) && s.Forwarder.GetGenerationWanted() == s.Forwarder.GetGenerationRunning()
	})
	if latest := h.history().Records[0]; latest.User != "ada" || latest.Message != "from afar" || latest.How != "apply" {
		t.Errorf("history %v", latest)
	}

	// Not the former config's plan, which may come before the answer does.
	h.peer.backendsMin.Store(2)
	_, err := h.apply("ada", h.config(""))
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the forwarder refuses the plan") || !strings.Contains(err.Error(), "holds the former config again") {
		t.Errorf("refused: %v", err)
	}
	h.holds(h.config(secondBackend))
	h.until("the former config is in order", func(s *controllerv1.GetStateResponse) bool { return !s.Config.Stale && announced(s) })

	_, page := h.get("/metrics")
	if !strings.Contains(page, `guideway_api_certificate_days_left{file="cert_file"} 0.99`) {
		t.Error("metrics lack the days left")
	}
	h.stop()
	if conn, err := tls.Dial("tcp", h.address, &tls.Config{InsecureSkipVerify: true}); err == nil {
		conn.Close()
		t.Error("it is served after the end")
	}
}

func TestTheForwardersAnswersAreHandedOn(t *testing.T) {
	h := newHarness(t)
	forwarder := h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	if counters, err := h.client.GetCounters(h.deadline(), &forwarderv1.GetCountersRequest{}); err != nil || counters.Received != 7 {
		t.Errorf("%v %v", counters, err)
	}
	forwarder.Stop()
	if _, err := h.client.GetCounters(h.deadline(), &forwarderv1.GetCountersRequest{}); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "the forwarder: ") {
		t.Errorf("without a forwarder: %v", err)
	}
	h.stop()
}
