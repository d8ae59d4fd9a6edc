package scenarios_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Health checks through the tunnels see what clients would: a VIP that is missing
// on a backend, a tunnel without an end. The same checks to the backend's own
// address pass all the while.
func TestProbesThroughTunnels(t *testing.T) {
	o := options(t, "probes")
	o.LoadBalancers, o.Backends, o.Spares = 1, 2, 0
	o.TunnelChecks = true
	running := up(t, o)
	encaps := []string{"gre", "gue"}
	if !nightly {
		encaps = encaps[:1]
	}
	for _, encap := range encaps {
		t.Run(encap, func(t *testing.T) {
			if err := running.Reconfigure(t.Context(), func(s *topology.Settings) { s.Encap = encap }); err != nil {
				t.Fatal(err)
			}
			for _, vip := range topology.WebVIPs {
				t.Run("without "+vip.String()+" on lo", func(t *testing.T) { missingVIP(t, running, vip) })
			}
			t.Run("without a tunnel's end", func(t *testing.T) { missingTunnelEnd(t, running) })
			t.Run("answers come whatever rp_filter and routes", func(t *testing.T) { answersCome(t, running) })
			t.Run("a forwarder that stands still takes no backend down", func(t *testing.T) { forwarderStandsStill(t, running) })
			t.Run("a thread that hangs takes no backend down", func(t *testing.T) { probesHang(t, running) })
			t.Run("a forwarder's end is no backend's", func(t *testing.T) { forwarderEnds(t, running) })
		})
	}
	t.Run("a plan says which new probes fail", func(t *testing.T) { planTriesProbes(t, running) })
	t.Run("a firewall here is found", func(t *testing.T) { firewallIsFound(t, running) })
	// Without a tunnel's end the kernel gets GUE over IPv6, whose UDP checksum is
	// zero (RFC 6935), and counts it as wrong: no check of checksums here.
	// Probes are no traffic: the last forwarder has seen none yet.
	if err := running.WaitReady(t.Context(), readyMax); err != nil {
		t.Fatal(err)
	}
	for _, vip := range topology.EchoVIPs {
		if err := converse(t, running, vip).transfer(1000, 5*time.Second); err != nil {
			t.Errorf("a client of %s: %v", vip, err)
		}
	}
	checkAccounted(t, running)
}

// planTriesProbes: of a check that no backend passes, through the tunnels that there are, and of
// a backend whose tunnel comes with the plan.
func planTriesProbes(t *testing.T, running *hosts.Lab) {
	content, err := os.ReadFile(filepath.Join(running.Options().RunDir, "lb-1", "config.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.ReplaceAll(string(content), "http: {port: 80", "http: {port: 81")
	changed = strings.Replace(changed, "- {name: be-1, address:", "- {name: be-9, address: \"10.30.9.1\"}\n  - {name: be-1, address:", 1)
	file := filepath.Join(t.TempDir(), "new.yaml")
	if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := on(t, running, "lb-1", "config", "plan", file)
	for _, want := range []string{`be-1 .*tunnel +.*refused`, `be-2 .*tunnel +.*refused`, `[1-9]\d* could not be tried`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in: %v\n%s", want, err, out)
		}
	}
}

// shownBackends as people see them.
func shownBackends(t *testing.T, running *hosts.Lab) ([]*controllerv1.Backend, error) {
	t.Helper()
	out, err := on(t, running, "lb-1", "show", "backends", "-o", "json")
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	state, err := shownState(out, "backends")
	return state.Backends, err
}

// waitBackends until exactly those are down that `isDown` names, for that reason.
func waitBackends(t *testing.T, running *hosts.Lab, reason string, isDown func(*controllerv1.Backend) bool) {
	t.Helper()
	eventually(t, 20*time.Second, "the right backends are down", func() error {
		shown, err := shownBackends(t, running)
		if err != nil {
			return err
		}
		downs := 0
		for _, b := range shown {
			down := isDown(b)
			if down {
				downs++
			}
			if down != (b.State == "down") || down && !strings.Contains(b.Reason, reason) || len(shown) != 6 {
				return fmt.Errorf("%s of %s%s is %s: %s", b.Name, b.Service, b.Group, b.State, b.Reason)
			}
		}
		if reason != "" && downs == 0 {
			return fmt.Errorf("none of them is there: %v", shown)
		}
		return nil
	})
}

func waitAllActive(t *testing.T, running *hosts.Lab) {
	t.Helper()
	waitBackends(t, running, "", func(*controllerv1.Backend) bool { return false })
}

func missingVIP(t *testing.T, running *hosts.Lab, vip netip.Addr) {
	waitAllActive(t, running)
	namespace := running.Network.Backends[0].Namespace
	if err := topology.IPBatch(t.Context(), namespace, []string{fmt.Sprintf("addr del %s/%d dev lo", vip, vip.BitLen())}); err != nil {
		t.Fatal(err)
	}
	words := fmt.Sprintf("answers directly, not through the tunnel: no tunnel end, or the VIP %s is not on lo", vip)
	waitBackends(t, running, words, func(b *controllerv1.Backend) bool { return b.Name == running.Backends()[0] && b.Service == "web" })
	// No client meets it.
	for range 40 {
		backend, err := get(t, running, vip)
		if err != nil || backend != running.Backends()[1] {
			t.Fatalf("%s answered, %v", backend, err)
		}
	}
	if err := topology.IPBatch(t.Context(), namespace, []string{fmt.Sprintf("addr add %s/%d dev lo nodad", vip, vip.BitLen())}); err != nil {
		t.Fatal(err)
	}
	waitAllActive(t, running)
}

func missingTunnelEnd(t *testing.T, running *hosts.Lab) {
	waitAllActive(t, running)
	if err := running.DetachAgent(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	waitBackends(t, running, "answers directly, not through the tunnel: no tunnel end", func(b *controllerv1.Backend) bool {
		return strings.HasPrefix(b.Name, running.Backends()[1])
	})
	if err := running.StartAgent(1); err != nil {
		t.Fatal(err)
	}
	waitAllActive(t, running)
}

// healthChecks counts results.
func healthChecks(t *testing.T, running *hosts.Lab, result string) float64 {
	t.Helper()
	samples, err := running.ControllerMetrics(t.Context(), "lb-1")
	if err != nil {
		t.Fatal(err)
	}
	return samples[fmt.Sprintf("guideway_health_checks_total{result=%q}", result)]
}

// probesPass: many probes pass, and none fails.
func probesPass(t *testing.T, running *hosts.Lab, when string) {
	t.Helper()
	passed, failed := healthChecks(t, running, "pass"), healthChecks(t, running, "fail")
	eventually(t, 10*time.Second, "probes are sent", func() error {
		if now := healthChecks(t, running, "pass"); now < passed+40 {
			return fmt.Errorf("%v passed %s", now-passed, when)
		}
		return nil
	})
	if now := healthChecks(t, running, "fail"); now != failed {
		t.Errorf("%v probes failed %s", now-failed, when)
	}
}

func answersCome(t *testing.T, running *hosts.Lab) {
	waitAllActive(t, running)
	node, err := running.Network.LoadBalancer("lb-1")
	if err != nil {
		t.Fatal(err)
	}
	set := func(rpFilter int) {
		settings := []string{fmt.Sprintf("ipv4/conf/all/rp_filter=%d", rpFilter), fmt.Sprintf("ipv4/conf/eth0/rp_filter=%d", rpFilter)}
		if err := topology.SetSysctls(node.Namespace, settings); err != nil {
			t.Fatal(err)
		}
	}
	blackhole := func(verb string) {
		for _, prefix := range []netip.Prefix{topology.VIPPrefix4, topology.VIPPrefix6} {
			if err := topology.IPBatch(cleanUp(t), node.Namespace, []string{fmt.Sprintf("route %s blackhole %s", verb, prefix)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, isBlackhole := range []bool{false, true} {
		if isBlackhole {
			blackhole("add")
		}
		for rpFilter := range 3 {
			set(rpFilter)
			probesPass(t, running, fmt.Sprintf("with rp_filter %d, blackhole %v", rpFilter, isBlackhole))
		}
	}
	blackhole("del")
	set(0)
}

// firewallIsFound by doctor, where the kernel would take answers and nftables
// drops them.
func firewallIsFound(t *testing.T, running *hosts.Lab) {
	waitAllActive(t, running)
	node, err := running.Network.LoadBalancer("lb-1")
	if err != nil {
		t.Fatal(err)
	}
	nft := func(rules string) {
		if err := topology.Run(cleanUp(t), rules, "ip", "netns", "exec", node.Namespace, "nft", "-f", "-"); err != nil {
			t.Fatal(err)
		}
	}
	nft(fmt.Sprintf(`table inet guard {
		chain entrance { type filter hook input priority 0; jump vips; }
		chain vips { ip saddr %s drop; ip6 saddr %s drop; }
	}`, topology.VIPPrefix4, topology.VIPPrefix6))
	waitBackends(t, running, "answers directly, not through the tunnel", func(*controllerv1.Backend) bool { return true })
	out, err := on(t, running, "lb-1", "doctor")
	if err == nil || !strings.Contains(out, "a firewall of this machine may drop the answers (inet guard vips: a rule that drops)") {
		t.Errorf("doctor: %v\n%s", err, out)
	}
	nft("delete table inet guard")
	waitAllActive(t, running)
	if out, _ := on(t, running, "lb-1", "doctor"); strings.Contains(out, "firewall") {
		t.Errorf("doctor, without the firewall:\n%s", out)
	}
}

// forwarderStandsStill for as long as three probes take to fail. Those under way
// fail, the others are not sent once it is found to hang.
func forwarderStandsStill(t *testing.T, running *hosts.Lab) {
	waitAllActive(t, running)
	without := func() float64 { return healthChecks(t, running, "fail") + healthChecks(t, running, "unsent") }
	before := without()
	pid := pidOf(t, running, "lb-1", "forwarder")
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1400 * time.Millisecond)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if without() == before {
		t.Error("every probe was answered meanwhile, so there is nothing to show")
	}
	// One that went down would be down for two intervals.
	stayActive(t, running, 2*time.Second)
}

func stayActive(t *testing.T, running *hosts.Lab, duration time.Duration) {
	t.Helper()
	for end := time.Now().Add(duration); time.Now().Before(end); {
		shown, err := shownBackends(t, running)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range shown {
			if b.State != "active" {
				t.Fatalf("%s is %s: %s", b.Name, b.State, b.Reason)
			}
		}
	}
}

// probesHang: only the forwarder's thread for them does. Clients' packets go on, and
// so do changes of the config, also one that ends the thread.
func probesHang(t *testing.T, running *hosts.Lab) {
	waitAllActive(t, running)
	failed := healthChecks(t, running, "fail")
	resume := sync.OnceFunc(hang(t, running, "lb-1", "probes"))
	defer resume()
	stayActive(t, running, 4*time.Second) // three failures take 1.5 s
	if healthChecks(t, running, "fail") == failed {
		t.Error("no probe failed meanwhile, so there is nothing to show")
	}
	if out, err := on(t, running, "lb-1", "doctor"); err == nil || !strings.Contains(out, "thread `probes` hangs") {
		t.Errorf("doctor says %v\n%s", err, out)
	}
	if _, err := askDatagram(t, running, netip.Addr{}, topology.EchoVIPs[0], 100); err != nil {
		t.Error(err)
	}
	checkThroughTunnels := func(on bool) {
		if err := running.Reconfigure(t.Context(), func(s *topology.Settings) { s.TunnelChecks = on }); err != nil {
			t.Fatal(err)
		}
	}
	checkThroughTunnels(false)
	checkThroughTunnels(true) // the device is the hanging thread's still
	stayActive(t, running, 2*time.Second)
	resume()
	eventually(t, 10*time.Second, "the device is there", func() error {
		out, err := on(t, running, "lb-1", "doctor")
		if err != nil || !strings.Contains(out, "leave by gw-probe") {
			return fmt.Errorf("doctor says %v\n%s", err, out)
		}
		return nil
	})
	// What was sent before fails after 400 ms, and is counted a little later where the
	// machine is busy.
	time.Sleep(time.Second)
	probesPass(t, running, "after the thread had gone on")
}

// forwarderEnds: a take-over fails no probe; a kill leaves the verdicts as they
// are, and no probe goes another way.
func forwarderEnds(t *testing.T, running *hosts.Lab) {
	waitAllActive(t, running)
	failed := healthChecks(t, running, "fail")
	if _, err := running.TakeOverForwarder(t.Context(), "lb-1"); err != nil {
		t.Fatal(err)
	}
	probesPass(t, running, "after a take-over")
	if err := syscall.Kill(pidOf(t, running, "lb-1", "forwarder"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	unsent := healthChecks(t, running, "unsent")
	eventually(t, 10*time.Second, "probes are not sent", func() error {
		if now := healthChecks(t, running, "unsent"); now < unsent+20 {
			return fmt.Errorf("%v were not", now-unsent)
		}
		return nil
	})
	shown, err := shownBackends(t, running)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range shown {
		if b.State != "active" || !strings.Contains(b.Reason, "cannot be sent") {
			t.Errorf("%s is %s: %s", b.Name, b.State, b.Reason)
		}
	}
	if err := running.StartForwarder("lb-1"); err != nil {
		t.Fatal(err)
	}
	probesPass(t, running, "after a restart")
	if now := healthChecks(t, running, "fail"); now != failed {
		t.Errorf("%v probes failed", now-failed)
	}
	waitAllActive(t, running)
	if err := running.WaitReady(t.Context(), readyMax); err != nil {
		t.Fatal(err)
	}
}
