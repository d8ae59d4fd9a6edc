package run

// Controllers that share their config by etcd's own server.

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/etcdtest"
	"github.com/guideway/guideway/controller/sinks/fleet"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// fleetOf controllers of one cluster and their etcd.
type fleetOf struct {
	t        *testing.T
	etcd     *etcdtest.Server
	store    *fleet.Store
	machines []*harness
}

// newFleet has a config of one backend in etcd; its controllers do not run yet.
func newFleet(t *testing.T, machines int) *fleetOf {
	t.Helper()
	f := &fleetOf{t: t}
	for range machines {
		f.machines = append(f.machines, newHarness(t))
	}
	f.etcd = etcdtest.Start(t)
	f.store = fleet.NewStore(config.Etcd{Cluster: "c1", Endpoints: []string{f.etcd.URL()}})
	t.Cleanup(f.store.Close)
	f.publish("")
	for i, h := range f.machines {
		h.write(fmt.Sprintf("machine: {name: lb-%d, addresses: [10.0.0.%d]}\nmetrics: {listen: %q}\netcd: {cluster: c1, endpoints: [%q]}\n", i+1, i+1, h.metrics, f.etcd.URL()))
	}
	return f
}

func (f *fleetOf) start() {
	f.t.Helper()
	for _, h := range f.machines {
		h.peer.serve(f.t, h.runDir())
		h.start()
		h.until("announced", announced)
	}
}

// shared is what all machines have in common.
func (f *fleetOf) shared(extra string) string {
	return fmt.Sprintf(`
cluster: {name: c1}
peers: [{name: lb-1, addresses: [10.0.0.1]}, {name: lb-2, addresses: [10.0.0.2]}]
services: [{name: web, vips: [{address: 203.0.113.10, ports: [80], protocol: tcp}], pools: [web]}]
pools: [{name: web, health_checks: [ok], backends: [{name: web-1, address: 10.1.0.11}%s]}]
health_checks: [{name: ok, via: direct, http: {port: %d}, interval: 50ms, timeout: 50ms, rise: 1, fall: 20}]
`, extra, f.machines[0].backend.port)
}

// publish past all controllers, as another machine's does.
func (f *fleetOf) publish(extra string) uint64 {
	f.t.Helper()
	seen, err := f.store.See(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	stored, err := f.store.Publish(f.t.Context(), seen, 0, &fleetv1.ConfigRecord{Machine: "lb-9", From: "/shared.yaml"}, []byte(f.shared(extra)))
	if err != nil {
		f.t.Fatal(err)
	}
	return stored.GetGeneration()
}

// applyShared as the CLI does.
func (h *harness) applyShared(config string, order *controllerv1.ApplyOrder) (*controllerv1.ApplyConfigResponse, error) {
	h.t.Helper()
	stream, err := h.client.ApplyConfig(h.deadline())
	if err != nil {
		h.t.Fatal(err)
	}
	if err := stream.Send(&controllerv1.ApplyConfigRequest{Files: oneFile(config), Order: order}); err != nil {
		h.t.Fatal(err)
	}
	target, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if target.Path != "" {
		h.t.Errorf("the client is to write %s", target.Path)
	}
	if err := stream.Send(&controllerv1.ApplyConfigRequest{Written: true}); err != nil {
		h.t.Fatal(err)
	}
	return stream.Recv()
}

func runs(generation uint64) func(*controllerv1.GetStateResponse) bool {
	return func(state *controllerv1.GetStateResponse) bool {
		return state.Config.Etcd.GetConfig() == generation && !state.Config.Stale
	}
}

func hasBackends(n int) func(*controllerv1.GetStateResponse) bool {
	return func(state *controllerv1.GetStateResponse) bool { return len(state.Backends) == n && announced(state) }
}

func TestAConfigThatIsAppliedOnOneMachineReachesAll(t *testing.T) {
	f := newFleet(t, 2)
	f.start()
	one, two := f.machines[0], f.machines[1]
	if peers := one.state().Peers; len(peers) != 1 || peers[0].Name != "lb-2" {
		t.Errorf("lb-1 has the peers %v", peers)
	}
	done, err := one.applyShared(f.shared(secondBackend), &controllerv1.ApplyOrder{Number: one.numberInUse(), Message: "more room", From: "/new.yaml"})
	if err != nil || done.Number != 2 {
		t.Fatalf("%v: %v", done, err)
	}
	two.until("the other machine runs it", runs(2))
	two.until("two backends", hasBackends(2))
	records := two.history().Records
	if len(records) != 2 || !records[0].InUse || records[0].Number != 2 || records[0].Message != "more room" || records[0].Machine != "lb-1" || records[1].Machine != "lb-9" {
		t.Errorf("history %v", records)
	}
	if _, err := one.applyShared(f.shared(""), &controllerv1.ApplyOrder{Number: 7}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "runs now, and the changes were seen against 7") {
		t.Errorf("seen against what ran before: %v", err)
	}
	former, err := two.client.GetConfig(two.deadline(), &controllerv1.GetConfigRequest{Number: 1})
	if err != nil || len(former.Files) != 1 || string(former.Files[0].Data) != f.shared("") {
		t.Fatalf("number 1: %v: %v", former, err)
	}
	done, err = two.applyShared(string(former.Files[0].Data), &controllerv1.ApplyOrder{Number: two.numberInUse(), RollbackTo: 1})
	if err != nil || done.Number != 3 {
		t.Fatalf("%v: %v", done, err)
	}
	one.until("it is taken back", runs(3))
	one.until("one backend", hasBackends(1))
	if record := one.history().Records[0]; record.How != "rollback" || record.RollbackTo != 1 || !record.InUse {
		t.Errorf("record %v", record)
	}
	if inUse, err := one.client.GetConfig(one.deadline(), &controllerv1.GetConfigRequest{}); err != nil || string(inUse.Files[0].Data) != f.shared("") || inUse.Record.Number != 3 {
		t.Errorf("in use: %v: %v", inUse, err)
	}
}

func TestWhatThisMachineCannotRunIsNotStoredForAll(t *testing.T) {
	f := newFleet(t, 1)
	f.start()
	h := f.machines[0]
	refused := func(says, text string, code codes.Code) {
		t.Helper()
		_, err := h.applyShared(text, &controllerv1.ApplyOrder{Number: h.numberInUse()})
		if status.Code(err) != code || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	refused("each machine's own", f.shared("")+"bgp: {asn: 64512}\n", codes.InvalidArgument)
	refused("etcd.cluster in this machine's files", strings.Replace(f.shared(""), "c1", "c2", 1), codes.InvalidArgument)
	refused("/nonexistent does not exist", strings.Replace(f.shared(""), "{name: c1}", "{name: c1, secret_file: /nonexistent}", 1), codes.InvalidArgument)
	h.peer.refuse.Store(true)
	refused("would refuse the plan", f.shared(secondBackend), codes.InvalidArgument)
	h.peer.refuse.Store(false)
	if seen, err := f.store.See(t.Context()); err != nil || seen.Current.GetGeneration() != 1 {
		t.Errorf("etcd has generation %d: %v", seen.Current.GetGeneration(), err)
	}
}

// What etcd holds and what runs are told apart where the forwarder refuses it.
func TestAConfigOfEtcdThatTheForwarderRefusesDoesNotRun(t *testing.T) {
	f := newFleet(t, 1)
	f.start()
	h := f.machines[0]
	h.peer.refuse.Store(true)
	f.publish(secondBackend)
	h.until("it is refused", func(s *controllerv1.GetStateResponse) bool { return s.Config.Stale && s.Forwarder.Refusal != "" })
	if etcd := h.state().Config.Etcd; etcd.Config != 1 || etcd.ConfigStored != 2 || h.numberInUse() != 1 {
		t.Errorf("config %d of %d is in use, by the history %d", etcd.Config, etcd.ConfigStored, h.numberInUse())
	}
	h.peer.refuse.Store(false)
	f.publish(secondBackend)
	h.until("the next one runs", runs(3))
}

func TestEachMachineIsRegisteredWithWhatItRuns(t *testing.T) {
	f := newFleet(t, 2)
	f.start()
	registered := func(what string, holds func(one, two *fleetv1.Machine) bool) (found []*fleetv1.Machine) {
		t.Helper()
		f.machines[0].until(what, func(*controllerv1.GetStateResponse) bool {
			var err error
			found, err = f.store.Machines(t.Context())
			return err == nil && len(found) == 2 && holds(found[0], found[1])
		})
		return found
	}
	found := registered("both are registered, and serve", func(one, two *fleetv1.Machine) bool { return one.State == "serving" && two.State == "serving" })
	one, two := found[0], found[1]
	if one.Name != "lb-1" || one.Addresses[0] != "10.0.0.1" || one.Version != "test" || one.Config != 1 || one.Shard != "default" || one.Drained {
		t.Errorf("lb-1 is registered as %v", one)
	}
	if one.ConfiguredFingerprint == "" || one.ConfiguredFingerprint != two.ConfiguredFingerprint {
		t.Errorf("configured fingerprints %q and %q", one.ConfiguredFingerprint, two.ConfiguredFingerprint)
	}
	if one.LiveFingerprint == "" || one.LiveFingerprint != two.LiveFingerprint {
		t.Errorf("live fingerprints %q and %q", one.LiveFingerprint, two.LiveFingerprint)
	}
	if _, err := f.machines[1].client.DrainMachine(f.machines[1].deadline(), &controllerv1.DrainMachineRequest{Drain: true, Force: true}); err != nil {
		t.Fatal(err)
	}
	registered("the drain is there", func(one, two *fleetv1.Machine) bool { return !one.Drained && two.Drained })
	former := one.ConfiguredFingerprint
	f.publish(secondBackend)
	registered("the next generation is there", func(one, two *fleetv1.Machine) bool {
		return one.Config == 2 && two.Config == 2 && one.ConfiguredFingerprint == two.ConfiguredFingerprint && one.ConfiguredFingerprint != former
	})
	f.machines[0].until("it says that it is registered", func(s *controllerv1.GetStateResponse) bool { return s.Config.Etcd.NotRegistered == "" })
	f.machines[1].stop()
	f.machines[0].until("gone with its controller", func(*controllerv1.GetStateResponse) bool {
		found, err := f.store.Machines(t.Context())
		return err == nil && len(found) == 1 && found[0].Name == "lb-1"
	})
}

// As `guideway fleet` shows it: also machines that only the config names, and
// what differs.
func TestTheFleetIsSeenFromEachMachine(t *testing.T) {
	f := newFleet(t, 1)
	f.start()
	h := f.machines[0]
	fleetNow := func() *controllerv1.GetFleetResponse {
		t.Helper()
		response, err := h.client.GetFleet(h.deadline(), &controllerv1.GetFleetRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	h.until("it is registered", func(*controllerv1.GetStateResponse) bool {
		machines := fleetNow().Machines
		return len(machines) == 2 && machines[0].Registered.GetConfiguredFingerprint() != ""
	})
	seen := fleetNow()
	if absent := seen.Machines[1]; absent.Name != "lb-2" || absent.Registered != nil || !strings.Contains(absent.Reason, "not registered in etcd; unreachable") || absent.Addresses[0] != "10.0.0.2" {
		t.Errorf("lb-2 is %v", absent)
	}
	if len(seen.Alarms) > 0 || seen.Away != "" {
		t.Errorf("alarms %q, away %q", seen.Alarms, seen.Away)
	}
	f.etcd.Ctl("put", "/guideway/c1/machines/lb-2", `{"name": "lb-2", "shard": "default", "generation": "1", "configuredFingerprint": "other"}`)
	if alarms := fleetNow().Alarms; len(alarms) != 1 || !strings.Contains(alarms[0], "other on lb-2") {
		t.Errorf("alarms %q", alarms)
	}
	h.until("the metrics say so", func(*controllerv1.GetStateResponse) bool {
		_, page := h.get("/metrics")
		return strings.Contains(page, `guideway_fleet_fingerprints_differ{of="configured"} 1`) && strings.Contains(page, `guideway_fleet_fingerprints_differ{of="live"} 0`) &&
			strings.Contains(page, `guideway_fleet_machine_registered{machine="lb-2"} 1`)
	})
	f.etcd.Ctl("del", "/guideway/c1/machines/lb-2")
	if alarms := fleetNow().Alarms; len(alarms) > 0 {
		t.Errorf("alarms %q", alarms)
	}
	f.etcd.Kill()
	if seen := fleetNow(); !strings.Contains(seen.Away, "connection refused") || len(seen.Machines) != 2 || seen.Machines[0].Registered == nil || seen.ReadAt == nil {
		t.Errorf("with etcd away: %v", seen)
	}
}

// What is lost in etcd changes nothing here.
func TestALostLeaseChangesNothing(t *testing.T) {
	f := newFleet(t, 1)
	f.start()
	h := f.machines[0]
	isRegistered := func(*controllerv1.GetStateResponse) bool {
		found, err := f.store.Machines(t.Context())
		return err == nil && len(found) == 1
	}
	h.until("registered", isRegistered)
	plan := h.running()
	leases := strings.Fields(f.etcd.Ctl("lease", "list"))
	f.etcd.Ctl("lease", "revoke", leases[len(leases)-1])
	if state := h.state(); !announced(state) || state.Machine.State != "serving" || h.running() != plan {
		t.Errorf("without its lease: %v", state.Machine)
	}
	h.until("registered anew", isRegistered)
	if !announced(h.state()) || h.running() != plan {
		t.Error("the lease has changed something")
	}
}

func TestWithEtcdAwayTheLastGoodConfigServesAlsoAfterARestart(t *testing.T) {
	f := newFleet(t, 1)
	f.start()
	h := f.machines[0]
	f.publish(secondBackend)
	h.until("two backends", hasBackends(2))
	h.until("it is kept", func(s *controllerv1.GetStateResponse) bool { return s.Config.NotKept == "" })
	f.etcd.Kill()
	h.stop()
	h.start()
	h.until("two backends after a restart", hasBackends(2))
	if state := h.state(); state.Config.Etcd.Config != 2 || state.Config.Stale {
		t.Errorf("config %v", state.Config)
	}
	_, err := h.applyShared(f.shared(""), &controllerv1.ApplyOrder{Number: 2})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "etcd does not answer") {
		t.Errorf("applied while etcd is away: %v", err)
	}
	h.until("it is told that etcd is away", func(s *controllerv1.GetStateResponse) bool {
		_, page := h.get("/metrics")
		return strings.Contains(s.Config.Etcd.Away, "connection refused") && strings.Contains(page, "guideway_etcd_up 0")
	})
	f.etcd.Run()
	f.publish("")
	h.until("what was stored since is taken", runs(3))
	h.until("etcd answers", func(s *controllerv1.GetStateResponse) bool { return s.Config.Etcd.Away == "" })
}

func TestABackendIsDrainedOnAllMachines(t *testing.T) {
	f := newFleet(t, 2)
	f.publish(secondBackend)
	f.start()
	first, second := f.machines[0], f.machines[1]
	drain := func(h *harness, request *controllerv1.DrainBackendRequest) error {
		t.Helper()
		request.Backend = cmp.Or(request.Backend, "web-1")
		_, err := h.client.DrainBackend(h.deadline(), request)
		return err
	}
	drained := func(want bool) func(*controllerv1.GetStateResponse) bool {
		return func(s *controllerv1.GetStateResponse) bool {
			return slices.Equal(s.Machine.DrainedBackends, []string{"web-1"}) == want
		}
	}
	if err := drain(first, &controllerv1.DrainBackendRequest{Drain: true, Fleet: true}); err != nil {
		t.Fatal(err)
	}
	second.until("the other machine drains it, too", drained(true))
	if err := drain(first, &controllerv1.DrainBackendRequest{Backend: "web-2", Drain: true, Fleet: true}); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("the last backend that takes connections: %v", err)
	}

	// Kept where etcd is away, and by what comes back empty.
	f.etcd.Kill()
	second.stop()
	second.start()
	second.until("still drained after a restart without etcd", drained(true))
	if err := drain(second, &controllerv1.DrainBackendRequest{}); err == nil || !strings.Contains(err.Error(), "etcd does not answer") {
		t.Errorf("undrained while etcd is away: %v", err)
	}
	if err := drain(first, &controllerv1.DrainBackendRequest{Drain: true, Fleet: true, Force: true}); err == nil || !strings.Contains(err.Error(), "on this machine alone") {
		t.Errorf("drained while etcd is away: %v", err)
	}
	f.etcd.Run()
	for _, h := range f.machines {
		h.until("etcd answers", func(s *controllerv1.GetStateResponse) bool { return s.Config.Etcd.Away == "" && drained(true)(s) })
	}

	// Undrained from the other one.
	if err := drain(second, &controllerv1.DrainBackendRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, h := range f.machines {
		h.until("undrained", drained(false))
	}
	// One machine's own drain stays its own.
	if err := drain(first, &controllerv1.DrainBackendRequest{Drain: true, Force: true}); err != nil {
		t.Fatal(err)
	}
	if err := drain(second, &controllerv1.DrainBackendRequest{}); err != nil {
		t.Fatal(err)
	}
	if !drained(true)(first.state()) || !drained(false)(second.state()) {
		t.Error("a machine's own drain is not its own")
	}
}

func TestAServiceIsDrainedOnAllMachines(t *testing.T) {
	f := newFleet(t, 2)
	f.start()
	first, second := f.machines[0], f.machines[1]
	drain := func(h *harness, request *controllerv1.DrainServiceRequest) error {
		t.Helper()
		request.Service = "web"
		_, err := h.client.DrainService(h.deadline(), request)
		return err
	}
	withdrawn := func(s *controllerv1.GetStateResponse) bool {
		return s.Services[0].GetDrain().GetWithdrawn() && !announced(s)
	}
	if err := drain(first, &controllerv1.DrainServiceRequest{Drain: true, Fleet: true}); err == nil || !strings.Contains(err.Error(), "no machine would announce web") {
		t.Errorf("a drain that leaves no machine: %v", err)
	}
	if err := drain(first, &controllerv1.DrainServiceRequest{Drain: true, Fleet: true, Force: true}); err != nil {
		t.Fatal(err)
	}
	for _, h := range f.machines {
		h.until("withdrawn", withdrawn)
	}
	second.stop()
	second.start()
	second.until("still withdrawn after a restart", withdrawn)
	if err := drain(second, &controllerv1.DrainServiceRequest{}); err != nil {
		t.Fatal(err)
	}
	for _, h := range f.machines {
		h.until("announced", announced)
	}
}

func TestAnEtcdRestoredWithoutDrainsUndrainsNothing(t *testing.T) {
	f := newFleet(t, 1)
	f.publish(secondBackend)
	f.start()
	h := f.machines[0]
	h.until("etcd was read", runs(2))
	snapshot := f.etcd.Snapshot()
	if _, err := h.client.DrainBackend(h.deadline(), &controllerv1.DrainBackendRequest{Backend: "web-1", Drain: true, Fleet: true, Force: true}); err != nil {
		t.Fatal(err)
	}
	f.publish("")
	h.until("a later config", runs(3))
	f.etcd.Restore(snapshot)
	h.until("it is told", func(s *controllerv1.GetStateResponse) bool { return s.Config.Stale })
	if got := h.state().Machine.DrainedBackends; !slices.Equal(got, []string{"web-1"}) {
		t.Errorf("drained %v", got)
	}
}

func TestAnEtcdRestoredFromAnOldSnapshotTakesNothingBack(t *testing.T) {
	f := newFleet(t, 1)
	f.start()
	h := f.machines[0]
	h.until("etcd was read", runs(1))
	snapshot := f.etcd.Snapshot()
	f.publish(secondBackend)
	h.until("two backends", hasBackends(2))
	f.etcd.Restore(snapshot)
	h.until("it is told", func(s *controllerv1.GetStateResponse) bool {
		return s.Config.Stale && strings.Contains(s.Config.Problem, "etcd holds config 1, and 2 runs here")
	})
	if !hasBackends(2)(h.state()) {
		t.Error("the older config is in use")
	}
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "--accept-older") {
		t.Errorf("a reload: %v", err)
	}
	// Another config under the generation that runs is refused as well.
	f.publish(", {name: web-3, address: 10.1.0.12}")
	h.until("the other one of generation 2 is told", func(s *controllerv1.GetStateResponse) bool {
		return s.Config.Stale && strings.Contains(s.Config.Problem, "another config under the number 2")
	})
	done, err := h.applyShared(f.shared(secondBackend), &controllerv1.ApplyOrder{Number: h.numberInUse()})
	if err != nil || done.Number != 3 {
		t.Fatalf("applied again: %v: %v", done, err)
	}
	h.until("all is well", runs(3))
}

func TestAGenerationThatJumpsIsRefusedAndTheNextConfigIsTaken(t *testing.T) {
	f := newFleet(t, 2)
	f.start()
	one, two := f.machines[0], f.machines[1]
	one.until("etcd was read", runs(1))
	two.until("etcd was read", runs(1))
	f.etcd.Ctl("put", "/guideway/c1/current", `{"generation": "18446744073709551615", "digest": "d", "parts": 1}`)
	one.until("it is told", func(s *controllerv1.GetStateResponse) bool {
		return strings.Contains(s.Config.Etcd.GetUnusable()+s.Config.Problem, "was not made by Guideway")
	})
	done, err := one.applyShared(f.shared(secondBackend), &controllerv1.ApplyOrder{Number: one.numberInUse()})
	if err != nil || done.Number != 2 {
		t.Fatalf("%v: %v", done, err)
	}
	two.until("the other machine runs it", runs(2))
}

func TestAnOlderGenerationIsTakenByOrder(t *testing.T) {
	f := newFleet(t, 1)
	f.start()
	h := f.machines[0]
	h.until("etcd was read", runs(1))
	snapshot := f.etcd.Snapshot()
	f.publish(secondBackend)
	h.until("two backends", hasBackends(2))
	f.etcd.Restore(snapshot)
	h.until("it is told", func(s *controllerv1.GetStateResponse) bool { return s.Config.Stale })
	if _, err := h.client.Reload(h.deadline(), &controllerv1.ReloadRequest{AcceptOlder: true}); err != nil {
		t.Fatal(err)
	}
	h.until("generation 1 runs", runs(1))
	h.until("one backend", hasBackends(1))
}

func TestWithoutAConfigInEtcdAStartSaysHowToStoreOne(t *testing.T) {
	h := newHarness(t)
	server := etcdtest.Start(t)
	h.write(fmt.Sprintf("machine: {addresses: [10.0.0.1]}\netcd: {endpoints: [%q]}\n", server.URL()))
	err := Run(context.Background(), Options{Config: []string{h.configFile()}, RunDir: h.runDir(), StateDir: h.stateDir(), Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "guideway config seed") {
		t.Errorf("it ended with %v", err)
	}
	if err := os.RemoveAll(h.stateDir()); err != nil {
		t.Fatal(err)
	}
}
