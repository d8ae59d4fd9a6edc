package run

// Configs that all machines check before any runs them, and that one runs before
// the others.

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/sinks/fleet"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// twoRegistered machines of one cluster.
func twoRegistered(t *testing.T) (f *fleetOf, one, two *harness) {
	t.Helper()
	f = newFleet(t, 2)
	f.start()
	one, two = f.machines[0], f.machines[1]
	f.untilRegistered(2)
	return f, one, two
}

func (f *fleetOf) untilRegistered(machines int) {
	f.t.Helper()
	f.machines[0].until("the machines are registered", func(*controllerv1.GetStateResponse) bool {
		found, err := f.store.Machines(f.t.Context())
		return err == nil && len(found) == machines
	})
}

func (f *fleetOf) seen() fleet.Seen {
	f.t.Helper()
	seen, err := f.store.See(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	return seen
}

// orderNow for what runs on the machine.
func (h *harness) orderNow() *controllerv1.ApplyOrder {
	return &controllerv1.ApplyOrder{Number: h.numberInUse(), From: "/new.yaml"}
}

func TestOneMachineThatRefusesAConfigRefusesItForAll(t *testing.T) {
	f, one, two := twoRegistered(t)
	refused := func(text, says string) {
		t.Helper()
		_, err := one.applyShared(text, one.orderNow())
		if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "applied nowhere: lb-2 refuses it: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
		if seen := f.seen(); seen.Current.GetGeneration() != 1 || seen.Candidate != nil {
			t.Errorf("etcd has %v", seen)
		}
		if keys := f.etcd.Ctl("get", "--prefix", "/guideway/c1/config/2/", "--keys-only"); strings.TrimSpace(keys) != "" {
			t.Errorf("of the refused one stay %s", keys)
		}
	}
	// Its forwarder refuses the plan.
	two.peer.refuse.Store(true)
	refused(f.shared(secondBackend), "would refuse the plan")
	two.peer.refuse.Store(false)
	// A file that the config names is on one machine alone.
	withCA := strings.Replace(f.shared(""), "health_checks: [{", "health_checks: [{name: tls, via: direct, https: {port: 443, tls: {ca_file: ca.pem}}}, {", 1)
	if withCA == f.shared("") {
		t.Fatal("the config has another form")
	}
	authority := looptest.NewAuthority(t).Certificate
	if err := os.WriteFile(filepath.Join(one.dir, "ca.pem"), authority, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(withCA, "ca.pem")
	// Once it is there, too, the same text is taken.
	if err := os.WriteFile(filepath.Join(two.dir, "ca.pem"), authority, 0o600); err != nil {
		t.Fatal(err)
	}
	done, err := one.applyShared(withCA, one.orderNow())
	if err != nil || done.Number != 2 || len(done.NotChecked) > 0 {
		t.Fatalf("%v: %v", done, err)
	}
	two.until("both run it", runs(2))
}

func TestMachinesThatCannotCheckAreNamedAndBlockNothing(t *testing.T) {
	f, one, two := twoRegistered(t)
	two.stop()
	f.untilRegistered(1)
	f.etcd.Ctl("put", "/guideway/c1/machines/lb-3", `{"name": "lb-3", "version": "0.8"}`)
	done, err := one.applyShared(f.shared(secondBackend), one.orderNow())
	if err != nil || done.Number != 2 {
		t.Fatalf("%v: %v", done, err)
	}
	if named := strings.Join(done.NotChecked, "\n"); !strings.Contains(named, "lb-2: its controller is not registered") || !strings.Contains(named, "lb-3: its version (0.8)") || len(done.NotChecked) != 2 {
		t.Errorf("not checked: %q", done.NotChecked)
	}
}

func TestWhileOneConfigIsCheckedAnotherIsRefused(t *testing.T) {
	f, one, _ := twoRegistered(t)
	seen := f.seen()
	stored, err := f.store.StoreText(t.Context(), seen, 0, []byte(f.shared("")))
	if err != nil {
		t.Fatal(err)
	}
	offered, err := f.store.Offer(t.Context(), seen, stored, "lb-9", "alice")
	if err != nil {
		t.Fatal(err)
	}
	if notChecked, err := f.store.AwaitChecks(t.Context(), offered, "lb-9"); err != nil || len(notChecked) > 0 {
		t.Errorf("%v: %v", notChecked, err)
	}
	_, err = one.applyShared(f.shared(secondBackend), one.orderNow())
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "another config is being checked, applied by alice on lb-9") {
		t.Errorf("meanwhile: %v", err)
	}
	if err := f.store.Withdraw(t.Context(), offered); err != nil {
		t.Fatal(err)
	}
	// What was seen before the candidate came is no longer what there is.
	if err := f.store.Commit(t.Context(), seen, stored, &fleetv1.ConfigRecord{}); err == nil || !strings.Contains(err.Error(), "another config was applied") {
		t.Errorf("a commit past it: %v", err)
	}
	// Of the refused one nothing is left: the next has its number.
	if done, err := one.applyShared(f.shared(secondBackend), one.orderNow()); err != nil || done.Number != stored.GetGeneration()+1 {
		t.Errorf("%v: %v", done, err)
	}
}

func TestOneMachineRunsAConfigBeforeTheOthers(t *testing.T) {
	f, one, two := twoRegistered(t)
	order := one.orderNow()
	order.Canary = "lb-9"
	if _, err := one.applyShared(f.shared(secondBackend), order); err == nil || !strings.Contains(err.Error(), "no machine lb-9 is registered") {
		t.Errorf("an unknown machine: %v", err)
	}
	if _, err := one.client.EndCanary(one.deadline(), &controllerv1.EndCanaryRequest{Promote: true}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("promoted is nothing: %v", err)
	}
	order.Canary = "lb-2"
	done, err := one.applyShared(f.shared(secondBackend), order)
	if err != nil {
		t.Fatal(err)
	}
	canary := done.Number
	if !runs(canary)(two.state()) || !runs(1)(one.state()) {
		t.Errorf("lb-2 runs %v, lb-1 %v", two.state().Config.Etcd, one.state().Config.Etcd)
	}
	two.until("two backends on the one", hasBackends(2))
	if !hasBackends(1)(one.state()) {
		t.Error("the other has them, too")
	}
	seen, err := one.client.GetFleet(one.deadline(), &controllerv1.GetFleetRequest{})
	if err != nil || seen.Canary.GetMachine() != "lb-2" || seen.Canary.GetConfig().GetGeneration() != canary || len(seen.Alarms) > 0 {
		t.Errorf("the fleet: %v: %v", seen, err)
	}
	if _, err := one.applyShared(f.shared(""), one.orderNow()); err == nil || !strings.Contains(err.Error(), "lb-2 alone runs config") {
		t.Errorf("applied meanwhile: %v", err)
	}
	two.until("it is kept", func(s *controllerv1.GetStateResponse) bool { return s.Config.NotKept == "" })
	two.stop()
	two.start()
	two.until("it runs it after a restart, too", runs(canary))
	two.until("it shows it", func(s *controllerv1.GetStateResponse) bool { return s.Config.Etcd.Canary.GetMachine() == "lb-2" })

	ended, err := one.client.EndCanary(one.deadline(), &controllerv1.EndCanaryRequest{Message: "too slow"})
	if err != nil || ended.Number <= canary {
		t.Fatalf("cancelled: %v: %v", ended, err)
	}
	two.until("it has returned", runs(ended.Number))
	one.until("the others run the same", runs(ended.Number))
	two.until("one backend", hasBackends(1))
	if record := one.history().Records[0]; record.How != "rollback" || record.RollbackTo != 1 || record.Message != "too slow" {
		t.Errorf("record %v", record)
	}
	if how := one.history().Records[1].How; how != "canary" {
		t.Errorf("the one before came by %s", how)
	}
}

func TestACanaryIsPromoted(t *testing.T) {
	f, one, two := twoRegistered(t)
	order := two.orderNow()
	order.Canary = "lb-2" // the machine itself
	done, err := two.applyShared(f.shared(secondBackend), order)
	if err != nil {
		t.Fatal(err)
	}
	// Promoted where it does not run, which has to accept it now.
	one.peer.refuse.Store(true)
	if _, err := one.client.EndCanary(one.deadline(), &controllerv1.EndCanaryRequest{Promote: true}); err == nil || !strings.Contains(err.Error(), "refused here") {
		t.Errorf("promoted: %v", err)
	}
	if _, err := two.client.EndCanary(two.deadline(), &controllerv1.EndCanaryRequest{Promote: true}); err == nil || !strings.Contains(err.Error(), "lb-1 refuses it") {
		t.Errorf("promoted on the other: %v", err)
	}
	if f.seen().Canary == nil {
		t.Error("a refusal ended it")
	}
	one.peer.refuse.Store(false)
	ended, err := one.client.EndCanary(one.deadline(), &controllerv1.EndCanaryRequest{Promote: true})
	if err != nil || ended.Number != done.Number {
		t.Fatalf("promoted: %v: %v", ended, err)
	}
	one.until("all run it", runs(done.Number))
	one.until("two backends", hasBackends(2))
	if seen := f.seen(); seen.Canary != nil || seen.Candidate != nil || seen.Current.GetGeneration() != done.Number {
		t.Errorf("etcd has %v", seen)
	}
}
