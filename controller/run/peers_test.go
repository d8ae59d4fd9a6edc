package run

// Controllers that share nothing but a config in files, and send to each other.

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// newPeers are machines of one cluster with a secret; their controllers do not run yet.
func newPeers(t *testing.T, machines int) []*harness {
	t.Helper()
	var all []*harness
	for i := range machines {
		h := newHarness(t)
		h.machine = fmt.Sprintf("lb-%d", i+1)
		h.writeSecret("a secret of the cluster")
		all = append(all, h)
	}
	for _, h := range all {
		h.write(h.peersConfig(all[0], machines, ""))
	}
	return all
}

func (h *harness) writeSecret(secret string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.dir, "cluster.key"), []byte(secret), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// peersConfig is one for all, but for where metrics and secret are.
func (h *harness) peersConfig(first *harness, machines int, extra string) string {
	var entries []string
	for i, address := range machineAddresses[:machines] {
		entries = append(entries, fmt.Sprintf("{name: lb-%d, addresses: [%s]}", i+1, address))
	}
	return fmt.Sprintf(`
machines: [%s]
cluster: {name: c1, secret_file: %q}
services: [{name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}]
pools: [{name: web, health_checks: [ok], backends: [{name: web-1, address: 10.1.0.11}%s]}]
health_checks: [{name: ok, via: direct, http: {port: %d}, interval: 50ms, timeout: 50ms, rise: 1, fall: 20}]
metrics: {listen: %q}
`, strings.Join(entries, ", "), filepath.Join(h.dir, "cluster.key"), extra, first.backend.port, h.metrics)
}

func startAll(t *testing.T, machines []*harness) {
	t.Helper()
	for _, h := range machines {
		h.peer.serve(t, h.runDir())
		h.start()
	}
	for _, h := range machines {
		h.until("announced", announced)
	}
}

func (h *harness) fleet() *controllerv1.GetFleetResponse {
	h.t.Helper()
	response, err := h.client.GetFleet(h.deadline(), &controllerv1.GetFleetRequest{})
	if err != nil {
		h.t.Fatal(err)
	}
	return response
}

// untilFleet of machines in order of name, nil: it is absent.
func (h *harness) untilFleet(what string, holds func(machines []*fleetv1.Machine) bool) {
	h.t.Helper()
	h.until(what, func(*controllerv1.GetStateResponse) bool {
		var machines []*fleetv1.Machine
		for _, m := range h.fleet().Machines {
			machines = append(machines, m.Registered)
		}
		return holds(machines)
	})
}

func allThere(machines []*fleetv1.Machine) bool { return !slices.Contains(machines, nil) }

func TestPeersWithoutEtcdSeeEachOther(t *testing.T) {
	machines := newPeers(t, 3)
	startAll(t, machines)
	for _, h := range machines {
		h.untilFleet("all are there, with their tables", func(machines []*fleetv1.Machine) bool {
			return len(machines) == 3 && allThere(machines) && !slices.ContainsFunc(machines, func(m *fleetv1.Machine) bool {
				return cmp.Or(m.LiveFingerprint, m.ForwarderVersion) == "" || m.State != "serving" || m.BackendsUp != 1
			})
		})
	}
	seen := machines[1].fleet()
	first, third := seen.Machines[0].Registered, seen.Machines[2].Registered
	if first.ConfigDigest == "" || first.ConfigDigest != third.ConfigDigest || first.ConfiguredFingerprint != third.ConfiguredFingerprint || first.LiveFingerprint != third.LiveFingerprint {
		t.Errorf("they differ: %v", seen)
	}
	if first.Name != "lb-1" || first.Config == 0 || seen.Cluster != "c1" || len(seen.Alarms) > 0 || seen.Away != "" {
		t.Errorf("seen %v", seen)
	}
	// A controller that restarts is heard again.
	machines[0].stop()
	machines[0].start()
	former := first.Time.AsTime()
	machines[1].untilFleet("the one that restarted", func(machines []*fleetv1.Machine) bool {
		return machines[0] != nil && machines[0].Time.AsTime().After(former) && machines[0].State == "serving"
	})
	machines[1].until("metrics", func(*controllerv1.GetStateResponse) bool {
		_, page := machines[1].get("/metrics")
		return strings.Contains(page, `guideway_fleet_machine_registered{machine="lb-1"} 1`) && !strings.Contains(page, `guideway_peer_messages_total{result="accepted"} 0`) &&
			strings.Contains(page, `guideway_fleet_fingerprints_differ{of="config"} 0`)
	})
}

func (h *harness) drainBackend(request *controllerv1.DrainBackendRequest) ([]string, error) {
	h.t.Helper()
	request.Backend = cmp.Or(request.Backend, "web-1")
	response, err := h.client.DrainBackend(h.deadline(), request)
	return response.GetWarnings(), err
}

func TestABackendIsDrainedOnAllPeers(t *testing.T) {
	machines := newPeers(t, 3)
	for _, h := range machines {
		h.write(h.peersConfig(machines[0], 3, secondBackend))
	}
	first, second, third := machines[0], machines[1], machines[2]
	startAll(t, machines[:2])
	first.untilFleet("the second is there", func(machines []*fleetv1.Machine) bool { return machines[1] != nil })
	drained := func(names ...string) func(*controllerv1.GetStateResponse) bool {
		return func(s *controllerv1.GetStateResponse) bool { return slices.Equal(s.Machine.DrainedBackends, names) }
	}
	warnings, err := first.drainBackend(&controllerv1.DrainBackendRequest{Drain: true, Fleet: true})
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "lb-3 has not been heard for 10s: it drains web-1 when") {
		t.Fatalf("%v %v", warnings, err)
	}
	second.until("the other machine drains it, too", drained("web-1"))
	if _, err := second.drainBackend(&controllerv1.DrainBackendRequest{Backend: "web-2", Drain: true, Fleet: true}); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("the last backend that takes connections: %v", err)
	}
	// Kept over a restart without the others, and told to one that comes later.
	first.stop()
	second.stop()
	second.start()
	second.until("still drained after a restart", drained("web-1"))
	startAll(t, []*harness{third})
	third.until("one that joins drains it", drained("web-1"))

	// Undrained on one that did not drain it, while the one that did is away.
	if _, err := third.drainBackend(&controllerv1.DrainBackendRequest{}); err != nil {
		t.Fatal(err)
	}
	second.until("undrained", drained())
	first.start()
	first.until("undrained on the one that was away", drained())
	// One machine's own drain stays its own.
	if _, err := first.drainBackend(&controllerv1.DrainBackendRequest{Drain: true}); err != nil {
		t.Fatal(err)
	}
	second.untilFleet("its own drain is heard of", func(machines []*fleetv1.Machine) bool {
		return allThere(machines) && slices.Equal(machines[0].DrainedBackends, []string{"web-1"}) && len(machines[1].DrainedBackends) == 0
	})
	if !drained("web-1")(first.state()) || !drained()(second.state()) {
		t.Error("a machine's own drain is not its own")
	}
	// One of all machines is none of a machine's own.
	if _, err := second.drainBackend(&controllerv1.DrainBackendRequest{Drain: true, Fleet: true, Force: true}); err != nil {
		t.Fatal(err)
	}
	third.until("drained on all", drained("web-1"))
	second.untilFleet("no machine has own drains", func(machines []*fleetv1.Machine) bool {
		return allThere(machines) && !slices.ContainsFunc(machines, func(m *fleetv1.Machine) bool { return len(m.DrainedBackends) > 0 })
	})
}

func TestAServiceIsDrainedOnAllPeers(t *testing.T) {
	machines := newPeers(t, 2)
	startAll(t, machines)
	withdrawn := func(s *controllerv1.GetStateResponse) bool {
		return s.Services[0].GetDrain().GetWithdrawn() && !announced(s)
	}
	request := &controllerv1.DrainServiceRequest{Service: "web", Drain: true, Fleet: true, Force: true}
	if _, err := machines[0].client.DrainService(machines[0].deadline(), request); err != nil {
		t.Fatal(err)
	}
	for _, h := range machines {
		h.until("withdrawn", withdrawn)
	}
	if _, err := machines[1].client.DrainService(machines[1].deadline(), &controllerv1.DrainServiceRequest{Service: "web"}); err != nil {
		t.Fatal(err)
	}
	for _, h := range machines {
		h.until("announced", announced)
	}
}

func TestAPeerWithAnotherSecretIsAbsent(t *testing.T) {
	machines := newPeers(t, 2)
	machines[1].writeSecret("another secret, of nobody")
	startAll(t, machines)
	machines[0].until("its datagrams are refused", func(*controllerv1.GetStateResponse) bool {
		_, page := machines[0].get("/metrics")
		return strings.Contains(page, `guideway_peer_messages_total{result="other_key"}`) && !strings.Contains(page, `guideway_peer_messages_total{result="other_key"} 0`)
	})
	seen := machines[0].fleet()
	if seen.Machines[0].Registered == nil || seen.Machines[1].Registered != nil || !strings.Contains(seen.Machines[1].Reason, "has not been heard for 10s (UDP port 9477)") {
		t.Errorf("seen %v", seen.Machines)
	}
}

func TestWithoutASecretPeersAreNotHeard(t *testing.T) {
	machines := newPeers(t, 2)
	for _, h := range machines {
		h.write(strings.Replace(h.peersConfig(machines[0], 2, ""), ", secret_file:", " } #", 1))
	}
	startAll(t, machines)
	if _, err := machines[0].drainBackend(&controllerv1.DrainBackendRequest{Drain: true, Fleet: true, Force: true}); err == nil || !strings.Contains(err.Error(), "they would not hear of it: ") {
		t.Errorf("drained on all: %v", err)
	}
	seen := machines[0].fleet()
	if !strings.Contains(seen.Away, "write `cluster: {secret_file:") || len(seen.Machines) != 2 || seen.Machines[1].Registered != nil {
		t.Errorf("seen %v", seen)
	}
}

func TestAMachineWithoutPeersKnowsNoFleet(t *testing.T) {
	h := newHarness(t)
	h.peer.serve(t, h.runDir())
	h.start()
	_, err := h.client.GetFleet(h.deadline(), &controllerv1.GetFleetRequest{})
	if status.Code(err) == codes.Unavailable {
		h.until("it answers", announced)
		_, err = h.client.GetFleet(h.deadline(), &controllerv1.GetFleetRequest{})
	}
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "write them under `peers`") {
		t.Errorf("%v", err)
	}
}
