package scenarios_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// A flow of UDP that is asked again and again.
type askedFlow struct {
	net.Conn
	backend string
}

// Buckets of a stateless UDP service move away from a backend and back: each flow stays
// where it began, and new ones go to the backend in charge. Agents are well meanwhile.
func TestDatagramsStayWhileBucketsMove(t *testing.T) {
	o := options(t, "datagrams")
	o.LoadBalancers, o.Encap, o.Stateless = 1, "geneve", true
	running := up(t, o)
	m := &movesLab{Lab: running, t: t, name: running.LoadBalancers()[0]}
	drained := "be-1-v6"
	before := openFlows(t, running, 60)
	m.drain(drained)
	waitBuckets(t, m, drained, false)
	during := openFlows(t, running, 60)
	for _, flow := range during {
		if flow.backend == "be-1" {
			t.Fatalf("a new flow, from %s, went to the drained backend", flow.LocalAddr())
		}
	}
	for range 3 {
		askAll(t, before, during)
	}
	m.undrain(drained)
	waitBuckets(t, m, drained, true)
	askAll(t, before, during)
	passed := 0.0
	for at := range running.Backends() {
		if running.Backends()[at] == "be-1" || running.Backends()[at] == "be-2" {
			passed += agentMetricsOf(t, running, at)[`guideway_agent_forwarded_packets_total{reason="no_flow"}`]
		}
	}
	if passed == 0 {
		t.Error("no datagram was sent on: nothing was shown")
	}
	checkAtRest(t, running)
}

// openFlows of both families, half of them at either backend.
func openFlows(t *testing.T, running *hosts.Lab, count int) []*askedFlow {
	t.Helper()
	var flows []*askedFlow
	for range count {
		for _, vip := range topology.EchoVIPs {
			connection, err := dial(t, running, "udp", running.Network.Client.Address(family(vip.Is6())), vip)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = connection.Close() })
			flow := &askedFlow{Conn: connection}
			if flow.backend, err = flow.ask(); err != nil {
				t.Fatalf("the first datagram to %s: %v", vip, err)
			}
			flows = append(flows, flow)
		}
	}
	return flows
}

func family(is6 bool) int {
	if is6 {
		return 1
	}
	return 0
}

func askAll(t *testing.T, lists ...[]*askedFlow) {
	t.Helper()
	for _, list := range lists {
		for _, flow := range list {
			backend, err := flow.ask()
			if err != nil || backend != flow.backend {
				t.Fatalf("the flow from %s to %s began at %s, and went to %q: %v", flow.LocalAddr(), flow.RemoteAddr(), flow.backend, backend, err)
			}
		}
	}
}

// ask sends one datagram, and returns who answers it.
func (f *askedFlow) ask() (backend string, err error) {
	if err := f.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
		return "", err
	}
	if _, err := f.Write([]byte("datagram")); err != nil {
		return "", err
	}
	answer := make([]byte, 1<<11)
	n, err := f.Read(answer)
	if err != nil {
		return "", err
	}
	backend, echoed := backendOf(answer[:n])
	if string(echoed) != "datagram" {
		return "", fmt.Errorf("%s returned %q", backend, echoed)
	}
	return backend, nil
}

// waitBuckets until a backend has buckets of the UDP service, or none, by a map that the
// forwarder has.
func waitBuckets(t *testing.T, m *movesLab, backend string, has bool) {
	t.Helper()
	eventually(t, 20*time.Second, fmt.Sprintf("%s has buckets: %v", backend, has), func() error {
		shown, err := m.bucketsAt(m.name)
		if err != nil {
			return err
		}
		seen := false
		for _, s := range shown {
			if s.Name != "echo-udp" {
				continue
			}
			for _, use := range s.Buckets.Backends {
				if use.Next > 0 || s.Buckets.Generation != s.Buckets.GenerationAcknowledged {
					return fmt.Errorf("%v", s)
				}
				seen = seen || use.Backend == backend && use.Owned > 0
			}
		}
		if seen != has {
			return fmt.Errorf("%+v", shown)
		}
		return nil
	})
}

// Answers pass by the load balancers: the agents measure them, through tunnels too.
func TestAgentsMeasureHowLongClientsWait(t *testing.T) {
	o := options(t, "answers")
	o.LoadBalancers, o.Encap, o.ResponseTimes = 1, "geneve", true
	running := up(t, o)
	eventually(t, 20*time.Second, "flows are measured", func() error {
		for index, backend := range running.Backends()[:o.Backends] {
			if agentMetricsOf(t, running, index)["guideway_agent_response_measured_one_in"] != 1 {
				return fmt.Errorf("%s measures none", backend)
			}
		}
		return nil
	})
	for _, vip := range topology.WebVIPs {
		answered, measured := map[string]int{}, map[string]int{}
		for range 30 {
			backend, err := get(t, running, vip)
			if err != nil {
				t.Fatal(err)
			}
			answered[backend]++
		}
		name := fmt.Sprintf("guideway_agent_response_seconds_count{service=%q}", netip.AddrPortFrom(vip, topology.HTTPPort))
		for index, backend := range running.Backends()[:o.Backends] {
			if count := int(agentMetricsOf(t, running, index)[name]); count > 0 {
				measured[backend] = count
			}
		}
		if !maps.Equal(measured, answered) {
			t.Errorf("%s: measured %v, answered %v", vip, measured, answered)
		}
	}
	eventually(t, 30*time.Second, "the controller has what agents measure", func() error {
		shown, err := shownBackends(t, running)
		if err != nil {
			return err
		}
		for _, b := range shown {
			if b.Answers.GetMeasured() == 0 || b.Answers.GetP99Seconds() <= 0 {
				return fmt.Errorf("%s of %s%s: %v", b.Name, b.Service, b.Group, b.Answers)
			}
		}
		return nil
	})
}

// The lab's backends are as backends should be: doctor finds nothing on any of them.
func TestDoctorFindsNothingOnHealthyBackends(t *testing.T) {
	o := options(t, "doctor")
	o.LoadBalancers, o.Encap, o.Stateless = 1, "geneve", true
	o.FabricMTU = 1650 // room for the tunnels' options, which it would miss
	running := up(t, o)
	agent := filepath.Join(running.Options().BinDir, "guideway-agent")
	for _, n := range running.Network.Backends {
		config := filepath.Join(running.Options().RunDir, n.Name, "agent.yaml")
		eventually(t, 20*time.Second, "no finding on "+n.Name, func() error {
			// What it finds is what it prints; that it ends with 1 says no more.
			script := fmt.Sprintf("%s --config %s doctor -o json || true", agent, config)
			out, err := topology.Output(t.Context(), "", "ip", "netns", "exec", n.Namespace, "sh", "-c", script)
			if err != nil {
				return err
			}
			var findings []struct{ Grade, What, Text string }
			if err := json.Unmarshal([]byte(out), &findings); err != nil {
				return err
			}
			for _, f := range findings {
				if f.Grade != "ok" {
					return fmt.Errorf("%s %s: %s", f.Grade, f.What, f.Text)
				}
			}
			return nil
		})
	}
	t.Run("backends that lack a VIP are named", func(t *testing.T) { lackingVIPsAreNamed(t, running) })
}

// lackingVIPsAreNamed by the load balancer's doctor, as long as its config has the VIP.
func lackingVIPsAreNamed(t *testing.T, running *hosts.Lab) {
	machine := running.LoadBalancers()[0]
	edit := strings.NewReplacer("prefixes: [", "prefixes: [198.51.100.0/24, ", `vips: [{address: "203.0.113.10"`, `vips: [{address: 198.51.100.10, ports: [80], protocol: tcp}, {address: "203.0.113.10"`)
	var before string
	named := func() error {
		out, err := on(t, running, machine, "doctor")
		if !strings.Contains(out, "behind on "+strings.Join(running.Backends()[:2], ", ")+": VIPs that services have here are lacking there") { // the third is spare
			return fmt.Errorf("they are not named: %v: %s", err, out)
		}
		return nil
	}
	editConfig(t, running, machine, func(text string) string { before = text; return edit.Replace(text) })
	eventually(t, 20*time.Second, "all backends are named", named)
	editConfig(t, running, machine, func(string) string { return before })
	eventually(t, 20*time.Second, "none is", func() error {
		if out, _ := on(t, running, machine, "doctor"); strings.Contains(out, "lacking there") {
			return errors.New(out)
		}
		return nil
	})
}
