package run

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func (h *harness) plan(file, config string) (*controllerv1.PlanConfigResponse, error) {
	h.t.Helper()
	return h.client.PlanConfig(h.deadline(), &controllerv1.PlanConfigRequest{Files: []*controllerv1.ConfigFile{{Name: file, Data: []byte(config)}}})
}

const anotherVIP = "vips: [{address: 203.0.113.11, protocol: tcp}, "

func TestAConfigsChangesAreToldAndNothingChanges(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	before := h.peer.running()
	same, err := h.plan("/new.yaml", h.config(""))
	if err != nil {
		t.Fatal(err)
	}
	if same.Changed || len(same.Changes)+len(same.Services)+len(same.Routes) > 0 || same.Number != 1 {
		t.Errorf("the same config changes %v", same)
	}
	const silent = ", {name: web-2, address: 10.1.0.13}" // no server of this namespace has it
	changed := strings.Replace(h.config(silent), "vips: [", anotherVIP, 1)
	response, err := h.plan("/new.yaml", changed)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, c := range response.Changes {
		told = append(told, c.Kind+" "+c.Name+" "+c.What)
	}
	want := "vip 203.0.113.11 tcp of web added, pool web changed, backend web-2 added"
	if strings.Join(told, ", ") != want {
		t.Errorf("changes: %s", told)
	}
	if !response.Changed || len(response.Services) != 2 || response.Services[1].SharesAs != "web" || response.Services[0].Established.Breaking != 8 || response.Services[0].Backends[1].ShareBefore != 0.5 || response.Services[0].Backends[1].ShareAfter != 1 {
		t.Errorf("services: %v", response.Services)
	}
	if len(response.Routes) > 0 {
		t.Errorf("routes without BGP: %v", response.Routes)
	}
	if len(response.AssumedActive) != 1 || response.AssumedActive[0] != "web-2" {
		t.Errorf("assumed active: %v", response.AssumedActive)
	}
	if failed := response.NewProbes.Failed; len(failed) != 1 || failed[0].Backend != "web-2" || failed[0].HealthCheck != "ok" || failed[0].Via != "direct" || failed[0].Reason == "" || response.NewProbes.Passed != 0 {
		t.Errorf("probes tried: %v", response.NewProbes)
	}
	if len(h.peer.offered.Services[0].Vips) != 2 {
		t.Errorf("the forwarder compared %v", h.peer.offered)
	}
	if now := h.peer.running(); !proto.Equal(before, now) {
		t.Errorf("the forwarder runs %v", now)
	}
	h.stop()
}

func TestABadConfigIsToldOfTheClientsFile(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	h.start()
	h.until("announced", announced)
	_, err := h.plan("/elsewhere/new.yaml", h.config("")+"nonsense: 1\n")
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "/elsewhere/new.yaml:") || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("got %v", err)
	}
	// Paths begin where the config is, not where the client's file is.
	secret := filepath.Join(h.dir, "secret")
	if err := os.WriteFile(secret, []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = h.plan("/elsewhere/new.yaml", h.config("")+"cluster: {secret_file: secret}\n")
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "the secret changes") {
		t.Errorf("another secret: %v", err)
	}
	h.stop()
}

func TestWithoutAForwarderThereIsNothingToCompareWith(t *testing.T) {
	h := newHarness(t)
	h.start()
	h.state()
	if _, err := h.plan("/new.yaml", h.config("")); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "has not yet been reached") {
		t.Errorf("got %v", err)
	}
	process := h.peer.serve(t, h.runDir())
	h.until("announced", announced)
	process.Stop()
	if _, err := h.plan("/new.yaml", h.config("")); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "forwarder.sock") {
		t.Errorf("got %v", err)
	}
	h.stop()
}
