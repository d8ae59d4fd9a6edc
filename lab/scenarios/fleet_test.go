package scenarios_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// What operators do to a fleet as a whole, under load: a config that one machine
// cannot run is applied nowhere, one machine runs a config before the others, all
// are restarted one after the other.
// No request fails and no connection breaks.
func TestFleet(t *testing.T) {
	for _, name := range []string{"etcd", "etcdctl"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("a lab needs %s: tools/install-deps.sh lab installs it", name)
		}
	}
	o := options(t, "fleet")
	o.BinDir = ownPrograms(t, o) // where the test replaces them
	running := up(t, o)
	weights := running.Weights()
	weights[running.Backends()[2]] = 0
	if err := running.SetWeights(t.Context(), weights); err != nil {
		t.Fatal(err)
	}
	e := startEtcd(t, running)
	e.own = e.serveAPI(t, running)
	e.takeOverConfigs(t)
	inStepsUnderLoad(t, running, []step{
		{"every_machine_is_shown", e.fleetIsShown},
		{"one_machine_refuses_for_all", e.oneRefuses},
		{"one_machine_runs_it_first", e.canary},
		{"restarted_one_at_a_time_while_backends_change", e.restartFleet},
	})()
	t.Run("a_restart_stops_at_the_first_that_is_not_well", e.restartStops)
}

// operator runs guideway as one who is at no machine, through lb-1's API.
func (e *etcds) operator(t *testing.T, args ...string) (string, error) {
	t.Helper()
	first := e.running.Network.LoadBalancers[0]
	args = append(args, "--server", fmt.Sprintf("%s:%d", first.Address(0), apiPort))
	return guideway(t, e.running, e.members[0].host.Namespace(), append(args, e.operatorFlags()...)...)
}

func (e *etcds) fleetNow(t *testing.T) (*controllerv1.GetFleetResponse, error) {
	t.Helper()
	out, err := e.operator(t, "fleet", "-o", "json")
	if err != nil {
		return nil, err
	}
	shown := &controllerv1.GetFleetResponse{}
	return shown, protojson.Unmarshal([]byte(out), shown)
}

func (e *etcds) untilFleet(t *testing.T, what string, holds func(*controllerv1.GetFleetResponse) bool) {
	t.Helper()
	eventually(t, time.Minute, what, func() error {
		shown, err := e.fleetNow(t)
		if err == nil && !holds(shown) {
			err = fmt.Errorf("it shows %+v", shown)
		}
		return err
	})
}

// configsOf machines that run, in order of machine.
func configsOf(s *controllerv1.GetFleetResponse) (found []int) {
	for _, m := range s.GetMachines() {
		found = append(found, int(m.GetRegistered().GetConfig()))
	}
	return found
}

func (e *etcds) fleetIsShown(t *testing.T) {
	e.untilFleet(t, "two machines serve, and forward alike", func(s *controllerv1.GetFleetResponse) bool {
		if len(s.Machines) != 2 || len(s.Alarms) > 0 {
			return false
		}
		one, two := s.Machines[0].GetRegistered(), s.Machines[1].GetRegistered()
		return one.GetState() == "serving" && two.GetState() == "serving" && one.ConfiguredFingerprint != "" && one.ConfiguredFingerprint == two.ConfiguredFingerprint &&
			one.LiveFingerprint != "" && one.LiveFingerprint == two.LiveFingerprint && one.PacketsPerSecond+two.PacketsPerSecond > 0 && one.Api != ""
	})
}

// A file that the config names is on lb-1 alone.
func (e *etcds) oneRefuses(t *testing.T) {
	first := filepath.Dir(e.configFile(e.running.Network.LoadBalancers[0]))
	looptest.WriteFile(t, filepath.Join(first, "checks-ca.pem"), e.authority.Certificate)
	text := replaceOnce(t, e.shared, "\nhealth_checks:\n", "\nhealth_checks:\n- {name: unused, https: {port: 443, tls: {ca_file: checks-ca.pem}}}\n")
	if out, err := e.operator(t, "config", "apply", e.write(t, text)); err == nil || !strings.Contains(err.Error(), "applied nowhere: lb-2 refuses it") || !strings.Contains(err.Error(), "checks-ca.pem") {
		t.Errorf("apply: %v\n%s", err, out)
	}
	shown, err := e.fleetNow(t)
	if err != nil || slices.Max(configsOf(shown)) != e.generation {
		t.Errorf("what runs now: %+v: %v", shown, err)
	}
	second := filepath.Dir(e.configFile(e.running.Network.LoadBalancers[1]))
	looptest.WriteFile(t, filepath.Join(second, "checks-ca.pem"), e.authority.Certificate)
	began := time.Now()
	if out, err := e.operator(t, "config", "apply", e.write(t, text)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	e.generation++
	t.Logf("checked by both and applied in %v", time.Since(began).Round(time.Millisecond))
	e.untilRun(t)
	if err := os.Remove(filepath.Join(second, "checks-ca.pem")); err != nil {
		t.Fatal(err)
	}
	e.apply(t, "lb-1", e.shared)
	e.untilRun(t)
}

func (e *etcds) canary(t *testing.T) {
	out, err := e.operator(t, "config", "apply", e.write(t, e.withSpare(t)), "--canary", "lb-2")
	if err != nil || !strings.Contains(out, "lb-2 alone runs it") {
		t.Fatalf("%v\n%s", err, out)
	}
	e.untilFleet(t, "lb-2 alone runs the next generation", func(s *controllerv1.GetFleetResponse) bool {
		return slices.Equal(configsOf(s), []int{e.generation, e.generation + 1}) && s.Canary != nil && s.Canary.Machine == "lb-2" && len(s.Alarms) == 0
	})
	if out, err := on(t, e.running, "lb-1", "config", "apply", e.write(t, e.shared)); err == nil || !strings.Contains(err.Error(), "config promote") {
		t.Errorf("applied meanwhile: %v\n%s", err, out)
	}
	if out, err := e.operator(t, "config", "cancel"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	e.generation += 2
	e.untilRun(t)
	e.untilBackends(t, "web", 2)
	if out, err := e.operator(t, "config", "apply", e.write(t, e.withSpare(t)), "--canary", "lb-1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := e.operator(t, "config", "promote"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	e.generation++
	e.untilRun(t)
	e.untilBackends(t, "web", 3)
	if shown, err := e.fleetNow(t); err != nil || shown.Canary != nil {
		t.Errorf("%+v: %v", shown, err)
	}
}

// forwarders' processes, by machine.
func forwarders(t *testing.T, running *hosts.Lab) map[string]uint32 {
	t.Helper()
	found := map[string]uint32{}
	for _, machine := range running.LoadBalancers() {
		status, err := running.ForwarderStatus(t.Context(), machine)
		if err != nil {
			t.Fatal(err)
		}
		found[machine] = status.GetPid()
	}
	return found
}

// Each forwarder is taken over from and each controller executed anew, through
// their API; meanwhile backends come and are drained.
func (e *etcds) restartFleet(t *testing.T) {
	before := forwarders(t, e.running)
	installNext(t, e.running)
	type outcome struct {
		out string
		err error
	}
	ended := make(chan outcome, 1)
	began := time.Now()
	go func() {
		out, err := e.operator(t, "fleet", "restart", "--one-at-a-time")
		ended <- outcome{out, err}
	}()
	var o outcome
	texts := []string{e.shared, e.withSpare(t)}
	changes := 0
	for waiting := true; waiting; {
		// Refused while a controller that is to check it is away.
		if _, err := on(t, e.running, e.running.LoadBalancers()[changes%2], "config", "apply", e.write(t, texts[changes%2])); err == nil {
			changes++
		}
		select {
		case o = <-ended:
			waiting = false
		case <-time.After(time.Second):
		}
	}
	if o.err != nil {
		t.Fatalf("%v\n%s", o.err, o.out)
	}
	t.Logf("in %v, with %d changes of backends meanwhile:\n%s", time.Since(began).Round(time.Millisecond), changes, o.out)
	if changes == 0 {
		t.Error("no backend changed meanwhile")
	}
	folder := e.running.Options().BinDir
	if forwarders, others := replaced(t, folder, "guideway-forwarder"), replaced(t, folder, "guideway"); forwarders != 0 || others != 2 {
		t.Errorf("%d forwarders and %d controllers and speakers run the former program, not the two speakers alone", forwarders, others)
	}
	nextForwarders(t, e.running, before, o.out)
	e.untilFleet(t, "both run the same", func(s *controllerv1.GetFleetResponse) bool {
		configs := configsOf(s)
		return configs[0] == configs[1] && s.Machines[0].GetRegistered().GetState() == "serving" && s.Machines[1].GetRegistered().GetState() == "serving" && len(s.Alarms) == 0
	})
}

// nextForwarders have taken over from those before, as the command has printed.
func nextForwarders(t *testing.T, running *hosts.Lab, before map[string]uint32, printed string) {
	t.Helper()
	for _, machine := range running.LoadBalancers() {
		if !strings.Contains(printed, machine+": forwarder ") {
			t.Errorf("nothing is said of %s", machine)
		}
		status, err := running.ForwarderStatus(t.Context(), machine)
		if err != nil || status.GetTakenOver().GetPredecessorPid() != before[machine] || len(status.GetTakenOver().GetEmptied()) > 0 {
			t.Errorf("%s: its forwarder was %d, and now %v: %v", machine, before[machine], status.GetTakenOver(), err)
		}
	}
}

// Without its speaker lb-1 is not well: neither it nor lb-2 is restarted.
func (e *etcds) restartStops(t *testing.T) {
	before := forwarders(t, e.running)
	if err := e.running.Kill("lb-1", "speaker"); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "lb-1 misses its speaker", func() error {
		out, err := e.operator(t, "fleet", "restart", "--one-at-a-time")
		if err == nil {
			return fmt.Errorf("it was restarted:\n%s", out)
		}
		if !strings.Contains(err.Error(), "lb-1: it is not restarted, as it is not well: its speaker does not answer") || !strings.Contains(err.Error(), "not restarted: lb-2") {
			return err
		}
		return nil
	})
	if after := forwarders(t, e.running); !maps.Equal(before, after) {
		t.Errorf("forwarders were %v and are %v", before, after)
	}
}

// installNext puts other programs in the place of those that run: the same with a
// byte more, which is another file with another digest.
func installNext(t *testing.T, running *hosts.Lab) {
	t.Helper()
	folder := running.Options().BinDir
	for _, program := range []string{"guideway", "guideway-forwarder"} {
		at := filepath.Join(folder, program)
		content, err := os.ReadFile(at)
		if err == nil {
			err = replaceProgram(at, append(content, 0))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if forwarders, others := replaced(t, folder, "guideway-forwarder"), replaced(t, folder, "guideway"); forwarders != 2 || others != 4 {
		t.Fatalf("%d forwarders and %d controllers and speakers run the former program, of two machines", forwarders, others)
	}
}
