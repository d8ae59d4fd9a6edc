package scenarios_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Two load balancers whose pools have their backends from a file and from a DNS server. Under
// load a backend comes and another goes; then both sources die, and come back.
// No request fails and no connection breaks.
func TestMembers(t *testing.T) {
	needServers(t)
	o := options(t, "members")
	// As in TestPeers.
	o.Encap, o.SecondChance = "geneve", true
	running := up(t, o)
	s := startSources(t, running)
	inStepsUnderLoad(t, running, []step{
		{"one_comes", s.oneComes},
		{"one_goes", s.oneGoes},
		{"the_sources_die_and_nothing_changes", s.die},
		{"the_sources_come_back", s.comeBack},
	})()
}

// sources of the pools web, a file, and echo, a DNS server.
type sources struct {
	running *hosts.Lab
	file    string
	names   *server
}

// Which services have backends from a source.
var sourced = []string{"web", "echo"}

func startSources(t *testing.T, running *hosts.Lab) *sources {
	t.Helper()
	host, err := running.Network.AddHost(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	directory := filepath.Join(running.Options().RunDir, "sources")
	if err := os.Mkdir(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	s := &sources{running, filepath.Join(directory, "web.json"), &server{host: host, dir: directory}}
	t.Cleanup(s.names.stopAll)
	s.write(t, 0, 1)
	s.startDNS(t)
	for _, n := range running.Network.LoadBalancers {
		if err := topology.SetResolver(n.Namespace, host.Addresses()[0]); err != nil {
			t.Fatal(err)
		}
		s.configure(t, n)
		if err := running.RestartController(n.Name); err != nil {
			t.Fatal(err)
		}
	}
	s.untilActive(t, 0, 1)
	return s
}

// configure the sources in place of the lists of backends.
func (s *sources) configure(t *testing.T, n topology.Node) {
	t.Helper()
	file := filepath.Join(s.running.Options().RunDir, n.Name, "config.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for pool, check := range map[string]string{"web": "http-ok", "echo": "tcp-echo"} {
		listed := fmt.Sprintf("- name: %s\n  health_checks: [%s]\n  backends:\n", pool, check)
		for _, backend := range s.running.Network.Backends[:2] {
			listed += fmt.Sprintf("  - {name: %s, address: \"%s\", weight: 1}\n", backend.Name, backend.Address(0))
		}
		from := fmt.Sprintf("{file: %q}", s.file)
		if pool == "echo" {
			from = "{dns: echo.internal, ttl_min: 1s, ttl_max: 1s}"
		}
		text = replaceOnce(t, text, listed, fmt.Sprintf("- {name: %s, health_checks: [%s], from: %s}\n", pool, check, from))
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (s *sources) startDNS(t *testing.T) {
	t.Helper()
	if err := s.names.start("dnsmasq", "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--local=/internal/",
		"--user=root", "--pid-file=", "--log-facility=-", "--local-ttl=1", "--addn-hosts="+s.names.path("hosts")); err != nil {
		t.Fatal(err)
	}
}

func (s *sources) address(backend int) string {
	return s.running.Network.Backends[backend].Address(0).String()
}

// write which backends both sources list.
func (s *sources) write(t *testing.T, backends ...int) {
	t.Helper()
	var names strings.Builder
	group := struct {
		Targets []string `json:"targets"`
	}{}
	for _, backend := range backends {
		group.Targets = append(group.Targets, s.address(backend))
		fmt.Fprintf(&names, "%s echo.internal\n", s.address(backend))
	}
	content, err := json.Marshal([]any{group})
	if err != nil {
		t.Fatal(err)
	}
	looptest.WriteFile(t, s.file, content)
	looptest.WriteFile(t, s.names.path("hosts"), []byte(names.String()))
}

// change which backends both sources list. A DNS server that was just started would die of
// the signal.
func (s *sources) change(t *testing.T, backends ...int) {
	t.Helper()
	s.write(t, backends...)
	if err := s.names.signal("dnsmasq", syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
}

// states of the backends of a service, by address.
func states(plan *planv1.Plan, name string) map[string]planv1.BackendState {
	found := map[string]planv1.BackendState{}
	for _, service := range plan.GetServices() {
		for _, member := range plan.Members()[service.GetGroup()] {
			if service.GetName() == name {
				found[member.GetBackend()] = member.GetState()
			}
		}
	}
	return found
}

// untilActive: exactly these take new connections by the plans of both, and others are
// draining at most.
func (s *sources) untilActive(t *testing.T, backends ...int) {
	t.Helper()
	var want []string
	for _, backend := range backends {
		want = append(want, s.address(backend))
	}
	for _, machine := range s.running.LoadBalancers() {
		eventually(t, 20*time.Second, fmt.Sprintf("%s has %v", machine, want), func() error {
			plan, err := s.running.Plan(t.Context(), machine)
			if err != nil {
				return err
			}
			for _, service := range sourced {
				var active []string
				found := states(plan, service)
				for backend, state := range found {
					if state == planv1.BackendState_BACKEND_STATE_ACTIVE {
						active = append(active, backend)
					} else if slices.Contains(want, backend) || state != planv1.BackendState_BACKEND_STATE_DRAINING {
						return fmt.Errorf("%s: %v", service, found)
					}
				}
				if slices.Sort(active); !slices.Equal(active, want) {
					return fmt.Errorf("%s: %v", service, found)
				}
			}
			return nil
		})
	}
}

func (s *sources) oneComes(t *testing.T) {
	s.change(t, 0, 1, 2)
	s.untilActive(t, 0, 1, 2)
}

// It drains: its connections stay, and it gets no new ones.
func (s *sources) oneGoes(t *testing.T) {
	s.change(t, 1, 2)
	s.untilActive(t, 1, 2)
	for _, machine := range s.running.LoadBalancers() {
		out, err := on(t, s.running, machine, "show", "backends")
		if err != nil || !strings.Contains(out, "no longer in file "+s.file) || !strings.Contains(out, "no longer in dns echo.internal") {
			t.Errorf("%s: %v\n%s", machine, err, out)
		}
	}
}

// shownPools of a machine, by name.
func (s *sources) shownPools(t *testing.T, machine string) (pools map[string]*controllerv1.MemberSource, err error) {
	t.Helper()
	out, err := on(t, s.running, machine, "show", "pools", "-o", "json")
	if err != nil {
		return nil, err
	}
	state, err := shownState(out, "member_sources")
	pools = map[string]*controllerv1.MemberSource{}
	for _, pool := range state.MemberSources {
		pools[pool.Name] = pool
	}
	return pools, err
}

// untilUp, or not, by the metric of each pool at both.
func (s *sources) untilUp(t *testing.T, want float64) {
	t.Helper()
	for _, machine := range s.running.LoadBalancers() {
		eventually(t, 20*time.Second, fmt.Sprintf("%s: the sources' metric is %v", machine, want), func() error {
			samples, err := s.running.ControllerMetrics(t.Context(), machine)
			for _, pool := range sourced {
				up, known := samples[fmt.Sprintf("guideway_pool_source_up{pool=%q}", pool)]
				if err == nil && (!known || up != want) {
					err = fmt.Errorf("that of %s is %v", pool, up)
				}
			}
			return err
		})
	}
}

// A controller that restarts meanwhile has the backends from its state directory.
func (s *sources) die(t *testing.T) {
	const restarted = "lb-1"
	before := map[string]*planv1.Plan{}
	for _, machine := range s.running.LoadBalancers() {
		plan, err := s.running.Plan(t.Context(), machine)
		if err != nil {
			t.Fatal(err)
		}
		before[machine] = plan
	}
	if err := errors.Join(os.Remove(s.file), s.names.end("dnsmasq")); err != nil {
		t.Fatal(err)
	}
	s.untilUp(t, 0)
	if err := s.running.RestartController(restarted); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the plan of the controller that restarted is in use", func() error {
		plan, err := s.running.Plan(t.Context(), restarted)
		if err == nil && plan.GetGeneration() == before[restarted].GetGeneration() {
			err = errors.New("it is the former one")
		}
		return err
	})
	s.untilUp(t, 0)
	s.untilActive(t, 1, 2)
	for _, machine := range s.running.LoadBalancers() {
		pools, err := s.shownPools(t, machine)
		if err != nil || pools["web"].Problem == "" || pools["echo"].Problem == "" || pools["web"].Backends != 2 || pools["web"].Leaving != 1 {
			t.Errorf("%s shows %+v: %v", machine, pools, err)
		}
		if out, _ := on(t, s.running, machine, "doctor"); !strings.Contains(out, pools["echo"].Problem) {
			t.Errorf("doctor of %s does not say %q:\n%s", machine, pools["echo"].Problem, out)
		}
		plan, err := s.running.Plan(t.Context(), machine)
		if err != nil {
			t.Fatal(err)
		}
		for _, service := range sourced {
			if was, is := states(before[machine], service), states(plan, service); !maps.Equal(was, is) {
				t.Errorf("%s: backends of %s were %v, and are %v", machine, service, was, is)
			}
		}
	}
}

func (s *sources) comeBack(t *testing.T) {
	s.write(t, 0, 1, 2)
	s.startDNS(t)
	s.untilUp(t, 1)
	s.untilActive(t, 0, 1, 2)
}
