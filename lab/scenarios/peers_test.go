package scenarios_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/guideway/guideway/lab/hosts"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Three load balancers without etcd, each with a config in a file, which compare what they
// run by datagrams under the cluster's secret. Under load, one has another config, a backend
// is drained on all of them, and all are restarted one after the other.
// No request fails and no connection breaks.
func TestPeers(t *testing.T) {
	o := options(t, "peers")
	o.LoadBalancers = 3
	// Where the router leaves a machine that gets no processor time, its connections to the
	// backend that drains are found again.
	o.Encap, o.SecondChance = "geneve", true
	running := up(t, o)
	p := &peerMachines{running: running, certificates: newCertificates(t, filepath.Join(o.RunDir, "api")), texts: map[string]string{}}
	p.configure(t)
	inStepsUnderLoad(t, running, []step{
		{"each_shows_all_and_which_config_is_another", p.allAreShown},
		{"a_drain_reaches_all", p.drain},
		{"each_says_that_configs_differ_for_long", p.differ},
		{"the_config_is_put_right", p.putRight},
		{"restarted_one_at_a_time_and_drained_still", p.restart},
		{"undrained_from_another_machine", p.undrain},
	})()
}

type peerMachines struct {
	running *hosts.Lab
	certificates
	// Of each machine's config, as it is to be.
	texts map[string]string
}

// configure the API of each machine, by which it is restarted, and another config on lb-3.
func (p *peerMachines) configure(t *testing.T) {
	t.Helper()
	own := p.certificates.serveAPI(t, p.running)
	for _, n := range p.running.Network.LoadBalancers {
		text, err := os.ReadFile(p.configFile(n.Name))
		if err != nil {
			t.Fatal(err)
		}
		p.texts[n.Name] = string(text) + own(n)
		if n.Name != "lb-3" {
			p.reload(t, n.Name, p.texts[n.Name])
		}
	}
	p.reload(t, "lb-3", replaceOnce(t, p.texts["lb-3"], "\nhealth_checks:\n", "\nhealth_checks:\n- {name: unused, tcp: {port: 81}}\n"))
}

func (p *peerMachines) configFile(machine string) string {
	return filepath.Join(p.running.Options().RunDir, machine, "config.yaml")
}

func (p *peerMachines) reload(t *testing.T, machine, text string) {
	t.Helper()
	if err := os.WriteFile(p.configFile(machine), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := on(t, p.running, machine, "reload"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// fleetAt a machine; an alarm is the error that the command ends with.
func (p *peerMachines) fleetAt(t *testing.T, machine string) (shown *controllerv1.GetFleetResponse, ended error) {
	t.Helper()
	out, ended := on(t, p.running, machine, "fleet", "-o", "json")
	shown = &controllerv1.GetFleetResponse{}
	if err := protojson.Unmarshal([]byte(out), shown); err != nil {
		return shown, fmt.Errorf("%w: %w", ended, err)
	}
	return shown, ended
}

// untilShown by each machine.
func (p *peerMachines) untilShown(t *testing.T, limit time.Duration, what string, holds func(*controllerv1.GetFleetResponse, error) bool) {
	t.Helper()
	for _, machine := range p.running.LoadBalancers() {
		eventually(t, limit, machine+" shows that "+what, func() error {
			shown, ended := p.fleetAt(t, machine)
			if holds(shown, ended) {
				return nil
			}
			return fmt.Errorf("it shows %+v, and ends with %w", shown, ended)
		})
	}
}

// allServe by the same tables.
func allServe(s *controllerv1.GetFleetResponse) bool {
	return len(s.Machines) == 3 && !slices.ContainsFunc(s.Machines, func(m *controllerv1.FleetMachine) bool {
		first, r := s.Machines[0].GetRegistered(), m.GetRegistered()
		return r.GetState() != "serving" || r.Api == "" || r.ConfigDigest == "" || r.ConfiguredFingerprint != first.GetConfiguredFingerprint() ||
			r.LiveFingerprint == "" || r.LiveFingerprint != first.LiveFingerprint
	})
}

// allAlike: they serve by one config, and nothing is wrong.
func allAlike(s *controllerv1.GetFleetResponse, ended error) bool {
	return ended == nil && allServe(s) && digestOf(s, 1) == digestOf(s, 0) && digestOf(s, 2) == digestOf(s, 0)
}

func digestOf(s *controllerv1.GetFleetResponse, machine int) string {
	return s.Machines[machine].GetRegistered().GetConfigDigest()
}

func (p *peerMachines) allAreShown(t *testing.T) {
	p.untilShown(t, 20*time.Second, "all serve, lb-3 by another config, which is no alarm yet", func(s *controllerv1.GetFleetResponse, ended error) bool {
		return ended == nil && allServe(s) && digestOf(s, 1) == digestOf(s, 0) && digestOf(s, 2) != digestOf(s, 0)
	})
}

// untilState of the first backend in the plans of all machines.
func (p *peerMachines) untilState(t *testing.T, state planv1.BackendState) {
	t.Helper()
	backend := p.running.Backends()[0]
	for _, machine := range p.running.LoadBalancers() {
		eventually(t, 10*time.Second, fmt.Sprintf("%s at %s is %v", backend, machine, state), func() error {
			plan, err := p.running.Plan(t.Context(), machine)
			if err == nil && hosts.StateOf(plan, "web", backend) != state {
				err = fmt.Errorf("it is %v", hosts.StateOf(plan, "web", backend))
			}
			return err
		})
	}
}

func (p *peerMachines) drain(t *testing.T) {
	if out, err := on(t, p.running, "lb-2", "drain", "backend", p.running.Backends()[0], "--fleet"); err != nil || strings.Contains(out, "heard") {
		t.Fatalf("%v\n%s", err, out)
	}
	p.untilState(t, planv1.BackendState_BACKEND_STATE_DRAINING)
}

// configsDiffer by a machine's metrics.
func (p *peerMachines) configsDiffer(t *testing.T, machine string, want float64) {
	t.Helper()
	eventually(t, 10*time.Second, fmt.Sprintf("the metric of %s is %v", machine, want), func() error {
		samples, err := p.running.ControllerMetrics(t.Context(), machine)
		if differ := samples[`guideway_fleet_fingerprints_differ{of="config"}`]; err == nil && differ != want {
			err = fmt.Errorf("it is %v", differ)
		}
		return err
	})
}

func (p *peerMachines) differ(t *testing.T) {
	p.untilShown(t, 40*time.Second, "configs differ", func(s *controllerv1.GetFleetResponse, ended error) bool {
		return ended != nil && len(s.Alarms) == 1 && strings.Contains(s.Alarms[0], "different configs") && strings.Contains(s.Alarms[0], "on lb-1, lb-2") && strings.Contains(s.Alarms[0], "on lb-3")
	})
	for _, machine := range p.running.LoadBalancers() {
		p.configsDiffer(t, machine, 1)
		if out, err := on(t, p.running, machine, "doctor"); err == nil || !strings.Contains(out, "fail  fleet       the machines have run different configs") {
			t.Errorf("doctor of %s: %v\n%s", machine, err, out)
		}
	}
	if out, err := p.restartAll(t); err == nil || !strings.Contains(err.Error(), "no machine is restarted: the machines have run different configs") {
		t.Errorf("restarted nevertheless: %v\n%s", err, out)
	}
}

func (p *peerMachines) putRight(t *testing.T) {
	p.reload(t, "lb-3", p.texts["lb-3"])
	p.untilShown(t, 10*time.Second, "all are alike", allAlike)
	for _, machine := range p.running.LoadBalancers() {
		p.configsDiffer(t, machine, 0)
	}
}

// restartAll machines, from one of them, by their API.
func (p *peerMachines) restartAll(t *testing.T) (string, error) {
	t.Helper()
	return on(t, p.running, "lb-2", append([]string{"fleet", "restart", "--one-at-a-time"}, p.operatorFlags()...)...)
}

func (p *peerMachines) restart(t *testing.T) {
	before := forwarders(t, p.running)
	began := time.Now()
	out, err := p.restartAll(t)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("in %v:\n%s", time.Since(began).Round(time.Millisecond), out)
	nextForwarders(t, p.running, before, out)
	p.untilShown(t, 10*time.Second, "all are alike", allAlike)
	p.untilState(t, planv1.BackendState_BACKEND_STATE_DRAINING)
}

func (p *peerMachines) undrain(t *testing.T) {
	if out, err := on(t, p.running, "lb-3", "undrain", "backend", p.running.Backends()[0]); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	p.untilState(t, planv1.BackendState_BACKEND_STATE_ACTIVE)
}
