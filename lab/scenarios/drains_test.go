package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// Things are taken out and come back, with a router that prefers other paths to
// those with GRACEFUL_SHUTDOWN.
func TestDrains(t *testing.T) {
	running := up(t, options(t, "drains"))
	waitPeers(t, running)
	// First: connections of a load that moved to the other machine stay in a table
	// until they have been idle for long.
	t.Run("a backend", func(t *testing.T) { drainedBackend(t, running) })
	t.Run("a machine under load", func(t *testing.T) { drainedMachine(t, running) })
	t.Run("a service", func(t *testing.T) { drainedService(t, running) })
	t.Run("a prefix in place of addresses", func(t *testing.T) { aggregateAnnounced(t, running) })
	t.Run("the last machine", func(t *testing.T) { lastMachine(t, running) })
}

// hopsOf a load balancer.
func hopsOf(running *hosts.Lab, name string) []netip.Addr {
	n, err := running.Network.LoadBalancer(name)
	if err != nil {
		return nil
	}
	return []netip.Addr{n.Address(0), n.Address(1)}
}

// watchUnserved counts changes of routes after which a VIP has no next hop.
func watchUnserved(t *testing.T, running *hosts.Lab) (stop func() int) {
	t.Helper()
	router, err := running.Network.OpenRouter()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	var unserved atomic.Int64
	go func() {
		defer close(ended)
		_, _ = router.Watch(ctx, func(routes topology.Routes) bool {
			for _, vip := range slices.Concat(topology.WebVIPs, topology.EchoVIPs) {
				if len(routes[vip]) == 0 {
					unserved.Add(1)
				}
			}
			return false
		})
	}()
	return func() int { cancel(); <-ended; router.Close(); return int(unserved.Load()) }
}

// waitHops until each of the VIPs is routed by just these load balancers.
func waitHops(t *testing.T, running *hosts.Lab, vips []netip.Addr, machines ...string) {
	t.Helper()
	router, err := running.Network.OpenRouter()
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	eventually(t, 20*time.Second, fmt.Sprintf("%v are routed by %v", vips, machines), func() error {
		routes, err := router.Routes()
		if err != nil {
			return err
		}
		if err := routes.Complete(vips, len(machines)); err != nil {
			return err
		}
		for _, name := range running.LoadBalancers() {
			if via := routes.Of(vips).Via(hopsOf(running, name)); via != slices.Contains(machines, name) {
				return fmt.Errorf("via %s: %v", name, via)
			}
		}
		return nil
	})
}

// The command returns when the other machine has the traffic; no connection
// notices, the drain outlives the controller, and the undrain ends it.
func drainedMachine(t *testing.T, running *hosts.Lab) {
	remote := loadForTakeOver(t, running, 1, 200)
	time.Sleep(time.Second)
	stopWatch := watchUnserved(t, running)
	began := time.Now()
	out, err := on(t, running, "lb-1", "drain", "machine", "--wait", "--timeout", "60s")
	if err != nil || !strings.Contains(out, "traffic has moved away") || !strings.Contains(out, "the machine may be stopped") {
		t.Fatalf("%v\n%s", err, out)
	}
	took := time.Since(began)
	if took < 2*time.Second || took > 50*time.Second {
		t.Errorf("it took %v", took)
	}
	t.Logf("%v: %s", took, strings.TrimSpace(out))
	all := slices.Concat(topology.WebVIPs, topology.EchoVIPs)
	waitHops(t, running, all, "lb-2")
	before := metricsOf(t, running, "lb-1")
	if err := running.RestartController("lb-1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the restarted controller is drained", func() error {
		out, err := on(t, running, "lb-1", "show", "services", "-o", "wide")
		if err == nil && !strings.Contains(out, "the machine is drained") {
			err = errors.New(out)
		}
		return err
	})
	time.Sleep(3 * time.Second) // its probes pass by then, and would have it announce
	waitHops(t, running, all, "lb-2")
	if n := sent(metricsOf(t, running, "lb-1")) - sent(before); n > 0 {
		t.Errorf("the drained machine forwarded %v packets", n)
	}
	if _, err := on(t, running, "lb-1", "undrain", "machine"); err != nil {
		t.Fatal(err)
	}
	waitHops(t, running, all, "lb-1", "lb-2")
	time.Sleep(time.Second)
	if n := stopWatch(); n > 0 {
		t.Errorf("at %d changes of routes a VIP had no next hop", n)
	}
	stopUnbroken(t, remote)
}

// sent packets of all VIPs.
func sent(samples map[string]float64) float64 {
	var n float64
	for sample, value := range samples {
		if strings.HasPrefix(sample, "guideway_vip_packets_total") {
			n += value
		}
	}
	return n
}

// The routes of one service go, and what it shares with another one stays.
func drainedService(t *testing.T, running *hosts.Lab) {
	if out, err := on(t, running, "lb-1", "drain", "service", "web", "--wait"); err != nil || !strings.Contains(out, "traffic has moved away") {
		t.Fatalf("%v\n%s", err, out)
	}
	waitHops(t, running, topology.WebVIPs, "lb-2")
	waitHops(t, running, topology.EchoVIPs, "lb-1", "lb-2")
	if _, err := on(t, running, "lb-1", "drain", "service", "echo"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	waitHops(t, running, topology.EchoVIPs, "lb-1", "lb-2")
	if out, err := on(t, running, "lb-1", "show", "services", "-o", "wide"); err != nil || !strings.Contains(out, "stays announced: service echo-udp has it too") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, service := range []string{"web", "echo"} {
		if _, err := on(t, running, "lb-1", "undrain", "service", service); err != nil {
			t.Fatal(err)
		}
	}
	waitHops(t, running, topology.WebVIPs, "lb-1", "lb-2")
}

// A backend's connections are waited for where they are tracked.
func drainedBackend(t *testing.T, running *hosts.Lab) {
	c := converse(t, running, topology.EchoVIPs[0])
	machine := ""
	eventually(t, 5*time.Second, "a load balancer tracks the connection", func() error {
		for _, name := range running.LoadBalancers() {
			if len(tracked(t, running, name, []conversation{c})) > 0 {
				machine = name
				return nil
			}
		}
		return errors.New("none does")
	})
	if err := c.transfer(100_000, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	out, err := on(t, running, machine, "drain", "backend", c.backend, "--wait", "--timeout", "2s")
	if exited(err) != 3 || !strings.Contains(out, "the time was up before the connections of "+c.backend+" had ended") {
		t.Errorf("with a connection: %v\n%s", err, out)
	}
	if err := c.transfer(100_000, 5*time.Second); err != nil {
		t.Errorf("the connection of the drained backend: %v", err)
	}
	_ = c.Close()
	out, err = on(t, running, machine, "drain", "backend", c.backend, "--wait", "--timeout", "60s")
	if err != nil || !strings.Contains(out, "has no connection through this machine any more") {
		t.Errorf("without one: %v\n%s", err, out)
	}
	for _, other := range running.Backends()[:2] {
		if other == c.backend {
			continue
		}
		if _, err := on(t, running, machine, "drain", "backend", other); exited(err) != 1 || !strings.Contains(err.Error(), "no backend to spare but "+other+" ("+c.backend+" is draining") {
			t.Errorf("the last backend: %v", err)
		}
	}
	if _, err := on(t, running, machine, "undrain", "backend", c.backend); err != nil {
		t.Fatal(err)
	}
}

// exited is a program's exit code; 0 if it ended well, or did not run.
func exited(err error) int {
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// The router has the cluster's prefixes in place of addresses, from both machines.
func aggregateAnnounced(t *testing.T, running *hosts.Lab) {
	announce := func(how string) {
		t.Helper()
		if err := running.Reconfigure(t.Context(), func(s *topology.Settings) { s.Announce = how }); err != nil {
			t.Fatal(err)
		}
	}
	announce("aggregate")
	router, err := running.Network.OpenRouter()
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	eventually(t, 20*time.Second, "the router has the prefixes alone", func() error {
		routes, err := router.Routes()
		if err != nil {
			return err
		}
		if len(routes) > 0 {
			return fmt.Errorf("it has host routes: %v", routes)
		}
		for _, prefix := range running.Network.VIPPrefixes() {
			if hops, err := router.HopsOf(prefix); err != nil || len(hops) != 2 {
				return fmt.Errorf("it has %v for %s: %w", hops, prefix, err)
			}
		}
		return nil
	})
	for _, vip := range topology.EchoVIPs {
		c := converse(t, running, vip)
		if err := c.transfer(100_000, 5*time.Second); err != nil {
			t.Errorf("%s: %v", vip, err)
		}
	}
	announce("")
	waitHops(t, running, slices.Concat(topology.WebVIPs, topology.EchoVIPs), "lb-1", "lb-2")
}

// Without another machine's forwarder a drain is refused; forced, traffic cannot
// move away, and the time is up.
func lastMachine(t *testing.T, running *hosts.Lab) {
	if _, err := running.KillLoadBalancer("lb-2"); err != nil {
		t.Fatal(err)
	}
	waitPeers(t, running)
	all := slices.Concat(topology.WebVIPs, topology.EchoVIPs)
	waitHops(t, running, all, "lb-1")
	for _, what := range [][]string{{"machine"}, {"service", "web"}} {
		if _, err := on(t, running, "lb-1", append([]string{"drain"}, what...)...); exited(err) != 1 || !strings.Contains(err.Error(), "no answer through the tunnel from lb-2") || !strings.Contains(err.Error(), "--force") {
			t.Errorf("drain %v: %v", what, err)
		}
	}
	waitHops(t, running, all, "lb-1")
	remote := loadForTakeOver(t, running, 2, 20)
	out, err := on(t, running, "lb-1", "drain", "machine", "--force", "--wait", "--timeout", "4s")
	if exited(err) != 3 || !strings.Contains(out, "the time was up before traffic had moved away; the routes are withdrawn") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", strings.TrimSpace(out))
	router, err := running.Network.OpenRouter()
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	if routes, err := router.Routes(); err != nil || len(routes) > 0 {
		t.Errorf("after the withdrawal the router has %v, %v", routes, err)
	}
	if err := remote.Abandon(); err != nil {
		t.Logf("the load: %v", err)
	}
	if _, err := on(t, running, "lb-1", "undrain", "machine"); err != nil {
		t.Fatal(err)
	}
	if err := running.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
}
