package scenarios_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/events"
	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/report"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/load"
)

// readyMax is how long load balancers may take to be ready again: a speaker that was short of
// processor time keeps its routes worse for 30 s.
const readyMax = 90 * time.Second

// up builds a lab that is gone after the test.
func up(t *testing.T, o topology.Options) *hosts.Lab {
	t.Helper()
	running, err := hosts.Up(t.Context(), o, true)
	if err != nil {
		showLogs(t, o.RunDir)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, o.RunDir)
		}
		if err := hosts.Down(o.Name, o.RunDir); err != nil {
			t.Error(err)
		}
		if left := leftovers(t, o.Name); len(left) > 0 {
			t.Errorf("namespaces left: %v", left)
		}
	})
	return running
}

// showLogs of all programs, their ends.
func showLogs(t *testing.T, runDir string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(runDir, "*", "*.log"))
	var ends strings.Builder
	for _, file := range files {
		content, _ := os.ReadFile(file)
		fmt.Fprintf(&ends, "\n%s: …%s", file, content[max(0, len(content)-1500):])
	}
	t.Log("logs:", ends.String())
}

// leftovers of a lab: namespaces by name.
func leftovers(t *testing.T, name string) []string {
	t.Helper()
	entries, err := os.ReadDir("/run/netns")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "gw-"+name+".") {
			found = append(found, entry.Name())
		}
	}
	return found
}

// get a page as a client of the lab; the backend's name.
func get(t *testing.T, running *hosts.Lab, vip netip.Addr) (backend string, err error) {
	t.Helper()
	err = topology.Inside(running.Network.Client.Namespace, func() error {
		// One connection, made on this thread: it is in the namespace.
		connection, err := net.DialTimeout("tcp", netip.AddrPortFrom(vip, topology.HTTPPort).String(), 5*time.Second)
		if err != nil {
			return err
		}
		defer connection.Close()
		client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
			DialContext: func(context.Context, string, string) (net.Conn, error) { return connection, nil },
		}}
		response, err := client.Get("http://web.example/")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		backend = strings.TrimSpace(string(body))
		return err
	})
	return backend, err
}

// askUDP sends one datagram to the echo service and returns what came back.
func askUDP(running *hosts.Lab, vip netip.Addr, text string) (answer string, err error) {
	err = topology.Inside(running.Network.Client.Namespace, func() error {
		connection, err := net.Dial("udp", netip.AddrPortFrom(vip, topology.EchoPort).String())
		if err != nil {
			return err
		}
		defer connection.Close()
		if err := connection.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		if _, err := connection.Write([]byte(text)); err != nil {
			return err
		}
		buffer := make([]byte, 2000)
		n, err := connection.Read(buffer)
		answer = string(buffer[:n])
		return err
	})
	return answer, err
}

func TestALabServesBothFamiliesAndIsRemovedWhole(t *testing.T) {
	o := optionsAlone(t, "serves")
	running := up(t, o)
	for _, vip := range topology.WebVIPs {
		backends := map[string]int{}
		for range 40 {
			backend, err := get(t, running, vip)
			if err != nil {
				t.Fatalf("http://%s: %v", vip, err)
			}
			backends[backend]++
		}
		// 2 × 2⁻⁴⁰ is the chance of this to fail without a fault.
		if backends["be-1"] == 0 || backends["be-2"] == 0 || len(backends) != 2 {
			t.Errorf("http://%s was served by %v", vip, backends)
		}
	}
	for _, vip := range topology.EchoVIPs {
		// The second is as large as fits the client's MTU without fragments.
		for _, size := range []int{5, 1452 - 7} {
			text := strings.Repeat("u", size)
			answer, err := askUDP(running, vip, text)
			name, rest, _ := strings.Cut(answer, "\n")
			if err != nil || rest != text || !strings.HasPrefix(name, "be-") {
				t.Errorf("UDP echo of %d bytes by %s: %q, %v", size, vip, answer, err)
			}
		}
	}
	checkWellAndTidy(t, running)
	if _, err := hosts.Up(t.Context(), o, true); err == nil || !strings.Contains(err.Error(), "there already") {
		t.Errorf("the same lab again: %v", err)
	}
	checkRemoved(t, o, running.Status(), func() error { return running.Down() })
}

// checkWellAndTidy: all processes live, no checksum is wrong, every packet is
// accounted for.
func checkWellAndTidy(t *testing.T, running *hosts.Lab) {
	t.Helper()
	for _, node := range running.Status() {
		for _, process := range node.Processes {
			if !process.Alive {
				t.Errorf("%s/%s is dead", node.Node, process.Name)
			}
		}
	}
	checkAtRest(t, running)
}

func pidOf(t *testing.T, running *hosts.Lab, nodeName, what string) int {
	t.Helper()
	for _, node := range running.Status() {
		for _, process := range node.Processes {
			if node.Node == nodeName && process.Name == what {
				return process.Pid
			}
		}
	}
	t.Fatalf("no process %s/%s", nodeName, what)
	return 0
}

// checkRemoved that nothing of a lab is left after remove.
func checkRemoved(t *testing.T, o topology.Options, status []hosts.NodeStatus, remove func() error) {
	t.Helper()
	if len(leftovers(t, o.Name)) == 0 {
		t.Fatal("there was nothing to remove")
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
	if left := leftovers(t, o.Name); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
	if _, err := os.Stat(o.RunDir); err == nil && filepath.Base(o.RunDir) == "lab" {
		t.Errorf("%s is left", o.RunDir)
	}
	for _, node := range status {
		for _, process := range node.Processes {
			if stillRuns(process.Pid, o.Name, o.RunDir) {
				t.Errorf("%s/%s (pid %d) still runs", node.Node, process.Name, process.Pid)
			}
		}
	}
}

// stillRuns: a pid with the lab's files on its command line.
func stillRuns(pid int, marks ...string) bool {
	for range 50 {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !slices.ContainsFunc(marks, func(mark string) bool { return strings.Contains(string(line), mark) }) {
			return false
		}
		time.Sleep(20 * time.Millisecond) // killed, and about to go
	}
	return true
}

func TestACrashedLabIsRemovedByItsNameAlone(t *testing.T) {
	o := options(t, "crashed")
	running := up(t, o)
	status := running.Status()
	if err := os.Remove(filepath.Join(o.RunDir, "lab.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := hosts.Up(t.Context(), o, true); err == nil || !strings.Contains(err.Error(), "there already") {
		t.Errorf("a lab over the remains of another: %v", err)
	}
	o.RunDir = hosts.DefaultRunDir(o.Name) // the real one is forgotten too
	checkRemoved(t, o, status, func() error { return hosts.Down(o.Name, "") })
}

func TestALabThatCannotBeBuiltLeavesNothing(t *testing.T) {
	o := options(t, "broken")
	// A forwarder that ends at once.
	bin := t.TempDir()
	for _, name := range []string{"guideway", "guideway-agent", "guideway-lab"} {
		if err := os.Symlink(filepath.Join(o.BinDir, name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bin, "guideway-forwarder"), []byte("#!/bin/sh\necho starting\necho cannot start: tried\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	o.BinDir = bin
	// The first may still end while the second is started, and is not missed before.
	if _, err := hosts.Up(t.Context(), o, true); err == nil || !regexp.MustCompile(`lb-[12]/forwarder: it does not run: cannot start: tried \(.*/forwarder.log\)`).MatchString(err.Error()) {
		t.Errorf("error %v", err)
	}
	if left := leftovers(t, o.Name); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
	if err := hosts.Down(o.Name, o.RunDir); err != nil {
		t.Error(err)
	}
}

// runDemo and check the report's promises that hold for every event.
func runDemo(t *testing.T, what string, o events.Options) (report report.Report, screen string) {
	t.Helper()
	o.BinDir = needLab(t)
	shareMachine(t)
	o.Name = labName("demo-"+what, "")
	built.Store(o.Name+"-stateless", "") // of the second lab, if there is one
	o.Report = filepath.Join(t.TempDir(), "report.json")
	var output strings.Builder
	o.Output = &output
	err := events.Run(t.Context(), o)
	t.Log(output.String())
	if err != nil {
		t.Fatal(err)
	}
	if left := leftovers(t, o.Name); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
	content, err := os.ReadFile(o.Report)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Events) != len(o.Events) || report.UnaccountedPackets != 0 {
		t.Fatalf("report %s", content)
	}
	for i, e := range report.Events {
		if e.Name != o.Events[i] || e.Requests == 0 || e.Connections != o.Connections ||
			e.Failed > e.FailedAllowed || e.Broken > e.BrokenAllowed {
			t.Errorf("event %+v", e)
		}
	}
	return report, output.String()
}

func TestEventsInAnotherOrderBreakOnlyWhatTheyMay(t *testing.T) {
	o := events.Defaults()
	o.Seed, o.Backends, o.Connections = 4242, 3, 150
	o.Events = []string{"kill_load_balancer_after_change", "kill_backend", "restore_load_balancer", "drain_backend"}
	report, _ := runDemo(t, "order", o)
	if !report.Agents {
		t.Error("the report says nothing of agents")
	}
	if e := report.Events[1]; e.Broken == 0 || e.BrokenAllowed < e.Broken {
		t.Errorf("a backend died, and %+v", e)
	}
	for _, e := range slices.Delete(report.Events, 1, 2) {
		if e.FailedAllowed != 0 || e.BrokenAllowed != 0 {
			t.Errorf("nothing is allowed to break, but %+v", e)
		}
	}
	if report.WithdrawMS == nil || *report.WithdrawMS <= 0 || *report.WithdrawMS > 2_000 {
		t.Errorf("withdrawn after %v ms", report.WithdrawMS)
	}
}

func TestWithoutAgentsOnlyWhatADeadLoadBalancerKnewBreaks(t *testing.T) {
	o := events.Defaults()
	o.Seed, o.Backends, o.Connections, o.Agents = 4242, 3, 150, false
	o.Events = []string{"kill_load_balancer_after_change"}
	report, _ := runDemo(t, "no-agents", o)
	// 150 connections, half of them on the dying machine, a third of these on
	// the drained backend: some must be at risk, and some must break, or the
	// computation says nothing.
	if e := report.Events[0]; report.Agents || e.BrokenAllowed == 0 || e.Broken == 0 || e.BrokenAllowed > 120 {
		t.Errorf("after a change %+v", e)
	}
}

func TestWithoutARouterAnotherLoadBalancerOwnsTheVIPsOfADeadOne(t *testing.T) {
	o := events.Defaults()
	o.Seed, o.Backends, o.Connections, o.Router = 4242, 3, 150, topology.NoRouter
	o.Events = []string{"kill_load_balancer_after_change"}
	report, _ := runDemo(t, "no-router", o)
	if e := report.Events[0]; e.FailedAllowed != 0 || e.BrokenAllowed != 0 {
		t.Errorf("nothing is allowed to break, but %+v", e)
	}
	if report.WithdrawMS == nil || *report.WithdrawMS <= 0 || *report.WithdrawMS > 2_000 {
		t.Errorf("traffic left after %v ms", report.WithdrawMS)
	}
}

// The demo judges shares and where flows are tracked itself; this is that it did.
func TestOfThreeLoadBalancersEachFlowIsOnOneWorkerBackendsShareEvenlyAndOneMayDie(t *testing.T) {
	o := events.Defaults()
	o.Seed, o.LoadBalancers, o.Backends, o.Connections = 11, 3, 4, 150
	o.Events = []string{"steady", "kill_load_balancer", "add_backend"}
	report, screen := runDemo(t, "three", o)
	if len(report.Shares) != o.Backends {
		t.Errorf("shares of %d backends: %+v", o.Backends, report.Shares)
	}
	sum := 0.0
	for _, share := range report.Shares {
		sum += share.Share
		if deviation := math.Abs(share.Share/share.Ideal - 1); deviation > max(0.05, 4*share.Sigma) {
			t.Errorf("share %+v is off by %.1f %%", share, 100*deviation)
		}
	}
	if math.Abs(sum-1) > 1e-9 {
		t.Errorf("shares add up to %v", sum)
	}
	// Each lasting connection is looked up; those that have ended besides.
	counts := regexp.MustCompile(`of (\d+) flows that were looked up (\d+) were on more than one machine or worker`).FindStringSubmatch(screen)
	if counts == nil {
		t.Fatal("the demo does not say where flows were tracked")
	}
	looked, err := strconv.Atoi(counts[1])
	if err != nil || looked < o.Connections || counts[2] != "0" {
		t.Errorf("%s", counts[0])
	}
}

func TestACancelledDemoLeavesNothing(t *testing.T) {
	o := events.Defaults()
	o.BinDir, o.Output = needLab(t), io.Discard
	shareMachine(t)
	o.Name = labName("cancel", "")
	o.Events = []string{"steady"}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- events.Run(ctx, o) }()
	for range 100 {
		if len(leftovers(t, o.Name)) > 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	time.Sleep(time.Second)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if left := leftovers(t, o.Name); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
}

func TestAKilledDemoIsRemovedByTheNext(t *testing.T) {
	bin := needLab(t)
	shareMachine(t)
	killed := exec.Command(filepath.Join(bin, "guideway-lab"), "demo", "--events", "drain_backend")
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("demo-%d", killed.Process.Pid)
	for deadline := time.Now().Add(20 * time.Second); len(leftovers(t, name)) < 5; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the demo built nothing")
		}
	}
	directory := filepath.Dir(hosts.DefaultRunDir(name))
	if err := hosts.RemoveLeftovers(directory); err != nil {
		t.Error(err)
	}
	if len(leftovers(t, name)) == 0 {
		t.Error("a lab whose owner lives was removed")
	}
	if err := killed.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = killed.Wait() // it was killed
	if err := hosts.RemoveLeftovers(directory); err != nil {
		t.Error(err)
	}
	if left := leftovers(t, name); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
}

// A broken load balancer must be noticed: this is the test of the testers.
func TestTheDemoFailsWhenConnectionsBreak(t *testing.T) {
	o := options(t, "unwell")
	running := up(t, o)
	addresses, err := running.Network.AddClientAddresses(t.Context(), 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	var echo []netip.AddrPort
	for _, vip := range topology.EchoVIPs {
		echo = append(echo, netip.AddrPortFrom(vip, topology.EchoPort))
	}
	remote, err := load.StartRemote(running.LoadCommand(t.Context()), load.Spec{
		Seed: 1, Sources: addresses, Echo: echo, Connections: 40, MessageRate: 5, TimeLimit: 5 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	for open := 0; open < 40; time.Sleep(20 * time.Millisecond) {
		report, err := remote.Progress()
		if err != nil || report.Broken > 0 {
			t.Fatalf("%+v, %v", report, err)
		}
		open = report.Open
	}
	// Disabled, not drained: its connections have to move, so they break.
	weights := running.Weights()
	delete(weights, "be-1")
	if err := running.SetWeights(t.Context(), weights); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	report, err := remote.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if report.Broken == 0 || report.Broken == 40 {
		t.Errorf("%d of 40 connections broke when their backend was removed", report.Broken)
	}
	for _, failure := range report.Failures {
		if failure.Backend != "be-1" {
			t.Errorf("broke without reason: %+v", failure)
		}
	}
}
