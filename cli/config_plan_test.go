package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// PlanConfig finds changes by the words in the config.
func (f *fakeController) PlanConfig(stream grpc.ClientStreamingServer[controllerv1.PlanConfigRequest, controllerv1.PlanConfigResponse]) error {
	f.offered = ""
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		f.offered += string(request.Part.Data)
	}
	response := &controllerv1.PlanConfigResponse{Generation: 42, Services: []*controllerv1.ServiceChange{
		{Service: "idle", Entries: 65537, Established: &controllerv1.ConnectionChange{Staying: 3}},
	}}
	switch {
	case strings.HasPrefix(f.offered, "bad"):
		return status.Error(codes.InvalidArgument, "new.yaml:1: unknown field")
	case strings.HasPrefix(f.offered, "same"):
		return stream.SendAndClose(response)
	}
	response.Changes = []*controllerv1.ConfigChange{
		{Kind: "service", Name: "web", What: "changed", Fields: []*controllerv1.FieldChange{{Field: "encap", Before: "gre", After: "gue"}, {Field: "dscp", After: "46"}}},
		{Kind: "backend", Name: "web-3", What: "added"},
	}
	response.Services = append(response.Services, &controllerv1.ServiceChange{
		Service: "web", Entries: 1000, EntriesChanged: 334, EntriesMoved: 1,
		Backends:         []*controllerv1.ShareChange{{Backend: "web-1", Before: 1, After: 0.666}, {Backend: "web-3", After: 0.334}},
		Established:      &controllerv1.ConnectionChange{Staying: 700, Breaking: 40, Moving: 3, Unknown: 2},
		OpeningOrClosing: &controllerv1.ConnectionChange{Staying: 9, Breaking: 4}, QuotaReached: true,
	})
	response.Routes = []*controllerv1.RouteChange{{Prefix: "203.0.113.11/32", Announced: true, Reason: "its services have backends", Services: []string{"web"}}}
	response.Warnings = []string{"new.yaml:2: careful"}
	response.AssumedActive = []string{"web-3"}
	response.UntrackedQuota = 5
	response.RestartRequired = "other devices"
	return stream.SendAndClose(response)
}

func configFileOf(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "new.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestConfigPlanShowsWhatWouldChange(t *testing.T) {
	c := &fakeController{}
	runDir := both(t, c, nil)
	large := "different" + strings.Repeat("# comment\n", 10_000)
	stdout, stderr, err := guideway(t, "config", "plan", configFileOf(t, large), "--run-dir", runDir)
	if !errors.Is(err, errChanges) || c.offered != large {
		t.Errorf("%v: the controller got %d bytes", err, len(c.offered))
	}
	for _, want := range []string{
		"changes to what runs (generation 42):",
		"service web encap: gre to gue", "service web dscp: - to 46", "backend web-3 added",
		"idle 0.0 % 3 3 0 0 0", "web 33.4 % 745 700 40 3 2",
		"web web-1 100.0 % 66.6 %", "web web-3 0.0 % 33.4 %",
		"203.0.113.11/32 announced its services have backends",
		"note: the forwarder refuses this until it is restarted: other devices",
		"note: not yet probed, and taken for active: web-3",
		"note: web: of connections that open or close, 4 would break, 0 move, 0 are not known",
		"note: web holds its connections_quota:", "note: 5 new flows since the forwarder started are not tracked",
	} {
		if !strings.Contains(fields(stdout), want) {
			t.Errorf("%q is missing in\n%s", want, stdout)
		}
	}
	if stderr != "warning: new.yaml:2: careful\n" {
		t.Errorf("stderr %q", stderr)
	}
}

func TestConfigPlanForPrograms(t *testing.T) {
	runDir := both(t, &fakeController{}, nil)
	stdout, _, err := guideway(t, "config", "plan", "-o", "json", configFileOf(t, "different"), "--run-dir", runDir)
	var shown shownPlan
	if decoded := json.Unmarshal([]byte(stdout), &shown); decoded != nil || !errors.Is(err, errChanges) {
		t.Fatal(decoded, err)
	}
	if !shown.Changed || shown.Services[1].Established.Breaking != 40 || shown.Changes[0].Fields[0].After != "gue" || !shown.Routes[0].Announced || shown.Untracked.Quota != 5 {
		t.Errorf("%+v", shown)
	}
}

func TestConfigPlanWithoutAChange(t *testing.T) {
	runDir := both(t, &fakeController{}, nil)
	stdout, _, err := guideway(t, "config", "plan", configFileOf(t, "same"), "--run-dir", runDir)
	if err != nil || stdout != "no change: the config means what runs (generation 42)\n" {
		t.Errorf("%q %v", stdout, err)
	}
}

func TestConfigPlanOfABadConfig(t *testing.T) {
	runDir := both(t, &fakeController{}, nil)
	_, _, err := guideway(t, "config", "plan", configFileOf(t, "bad"), "--run-dir", runDir)
	if err == nil || !strings.Contains(err.Error(), "new.yaml:1: unknown field") || exitCode(err) != exitFailed {
		t.Errorf("got %v", err)
	}
}
