package scenarios_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/load"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// What scenarios have in common. Each file of scenarios builds one lab, and
// each scenario is a subtest of it that leaves the lab as it found it: any of
// them runs alone.

// Numbers of protocols.
const tcp, udp = 6, 17

// backendOf an answer of the echo service, and what it echoed.
func backendOf(answer []byte) (backend string, echoed []byte) {
	name, rest, _ := bytes.Cut(answer, []byte("\n"))
	return string(name), rest
}

// dial from the client, from one of its addresses (or any, if not valid).
func dial(t *testing.T, running *hosts.Lab, network string, source, vip netip.Addr) (net.Conn, error) {
	t.Helper()
	return dialIn(t, running.Network.Client.Namespace, network, source, vip)
}

// dialIn the namespace of a client.
func dialIn(t *testing.T, namespace, network string, source, to netip.Addr) (net.Conn, error) {
	t.Helper()
	dialer := net.Dialer{Timeout: 5 * time.Second}
	if source.IsValid() {
		dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
		if network == "tcp" {
			dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
		}
	}
	return topology.DialInside(t.Context(), namespace, dialer, network, netip.AddrPortFrom(to, topology.EchoPort).String())
}

// askDatagram sends one of `size` bytes, and returns which backend sent it back
// whole.
func askDatagram(t *testing.T, running *hosts.Lab, source, vip netip.Addr, size int) (backend string, err error) {
	t.Helper()
	return askDatagramIn(t, running.Network.Client.Namespace, source, vip, size, 3*time.Second)
}

// askDatagramIn the namespace of a client, with a limit for the answer.
func askDatagramIn(t *testing.T, namespace string, source, to netip.Addr, size int, limit time.Duration) (backend string, err error) {
	t.Helper()
	connection, err := dialIn(t, namespace, "udp", source, to)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	text := randomBytes(size)
	if _, err := connection.Write(text); err != nil {
		return "", err
	}
	answer := make([]byte, 1<<16)
	n, err := connection.Read(answer)
	if err != nil {
		return "", err
	}
	backend, echoed := backendOf(answer[:n])
	if !bytes.Equal(echoed, text) {
		return backend, fmt.Errorf("%s returned %d bytes that are not the %d sent", backend, len(echoed), size)
	}
	return backend, nil
}

func randomBytes(size int) []byte {
	list := make([]byte, size)
	for i := range list {
		list[i] = byte(rand.Uint32())
	}
	return list
}

// conversation is a TCP connection to the echo service.
type conversation struct {
	net.Conn
	backend string
}

// converse with the echo service; the connection is closed after the test.
func converse(t *testing.T, running *hosts.Lab, vip netip.Addr) conversation {
	t.Helper()
	return converseFrom(t, running, netip.Addr{}, vip)
}

func converseFrom(t *testing.T, running *hosts.Lab, source, vip netip.Addr) conversation {
	t.Helper()
	connection, err := dial(t, running, "tcp", source, vip)
	if err != nil {
		t.Fatalf("connect to %s: %v", vip, err)
	}
	return greeted(t, connection)
}

// greeted by the echo service, which says where the connection is.
func greeted(t *testing.T, connection net.Conn) conversation {
	t.Helper()
	t.Cleanup(func() { _ = connection.Close() })
	c, err := greetedWithin(connection, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func greetedWithin(connection net.Conn, limit time.Duration) (conversation, error) {
	if err := connection.SetDeadline(time.Now().Add(limit)); err != nil {
		return conversation{}, err
	}
	var name []byte
	for one := make([]byte, 1); ; name = append(name, one[0]) {
		if _, err := connection.Read(one); err != nil {
			return conversation{}, fmt.Errorf("greeting of %s: %w", connection.RemoteAddr(), err)
		}
		if one[0] == '\n' {
			return conversation{Conn: connection, backend: string(name)}, nil
		}
	}
}

// transferUntil something is done, and some times after that; each is told how long one took.
func (c conversation) transferUntil(done <-chan struct{}, after, size int, limit time.Duration, each func(time.Duration)) error {
	for left := after; left > 0; {
		select {
		case <-done:
			left--
		default:
		}
		begun := time.Now()
		if err := c.transfer(size, limit); err != nil {
			return err
		}
		each(time.Since(begun))
	}
	return nil
}

// transfer a file there and back.
func (c conversation) transfer(size int, limit time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	file, wrote := randomBytes(size), make(chan error, 1)
	go func() {
		_, err := c.Write(file)
		wrote <- err
	}()
	back := make([]byte, size)
	n, err := io.ReadFull(c, back)
	if err != nil {
		return fmt.Errorf("%d of %d bytes came back: %w", n, size, err)
	}
	if !bytes.Equal(back, file) {
		return fmt.Errorf("%d bytes came back changed", size)
	}
	return <-wrote
}

// client's end of the connection, and the service's.
func (c conversation) client() netip.AddrPort {
	return netip.MustParseAddrPort(c.LocalAddr().String())
}

func (c conversation) server() netip.AddrPort {
	return netip.MustParseAddrPort(c.RemoteAddr().String())
}

// metrics of all load balancers that run, added up.
func metrics(t *testing.T, running *hosts.Lab) map[string]float64 {
	t.Helper()
	sums := map[string]float64{}
	for _, name := range running.Running() {
		for sample, value := range metricsOf(t, running, name) {
			sums[sample] += value
		}
	}
	return sums
}

func metricsOf(t *testing.T, running *hosts.Lab, name string) map[string]float64 {
	t.Helper()
	samples, err := running.Metrics(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return samples
}

// grew returns by how much a sample grew; one that is not there is a mistake of
// the test's.
func grew(t *testing.T, before, after map[string]float64, sample string) float64 {
	t.Helper()
	if _, known := after[sample]; !known {
		t.Fatalf("there is no metric %s", sample)
	}
	return after[sample] - before[sample]
}

// agents' metrics, added up.
func agentMetrics(t *testing.T, running *hosts.Lab) map[string]float64 {
	t.Helper()
	sums := map[string]float64{}
	for i := range running.Backends() {
		samples, err := running.AgentMetrics(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		for sample, value := range samples {
			sums[sample] += value
		}
	}
	return sums
}

// kernelCounter of a node.
func kernelCounter(t *testing.T, running *hosts.Lab, node, counter string) uint64 {
	t.Helper()
	counters, err := running.Network.KernelCounters(node)
	if err != nil {
		t.Fatal(err)
	}
	value, known := counters[counter]
	if !known {
		t.Fatalf("the kernel of %s does not count %s", node, counter)
	}
	return value
}

// eventually a condition holds; the last reason why not is the failure.
func eventually(t *testing.T, limit time.Duration, what string, condition func() error) {
	t.Helper()
	for end := time.Now().Add(limit); ; time.Sleep(50 * time.Millisecond) {
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s, not within %v: %v", what, limit, err)
		}
	}
}

// waitPeers until each load balancer that runs takes exactly the others that
// run for healthy.
func waitPeers(t *testing.T, running *hosts.Lab) {
	t.Helper()
	eventually(t, 20*time.Second, "peers know each other", func() error {
		alive := running.Running()
		for _, name := range alive {
			plan, err := running.Plan(t.Context(), name)
			if err != nil {
				return err
			}
			for _, peer := range plan.GetPeers() {
				if peer.GetHealthy() != slices.Contains(alive, peer.GetName()) {
					return fmt.Errorf("%s takes %s for healthy: %v", name, peer.GetName(), peer.GetHealthy())
				}
			}
		}
		return nil
	})
}

// waitState of a backend in a service of every plan.
func waitState(t *testing.T, running *hosts.Lab, machine, service, backend string, want planv1.BackendState) {
	t.Helper()
	eventually(t, 20*time.Second, fmt.Sprintf("%s of %s is %v", backend, service, want), func() error {
		plan, err := running.Plan(t.Context(), machine)
		if err != nil {
			return err
		}
		if got := hosts.StateOf(plan, service, backend); got != want {
			return fmt.Errorf("on %s it is %v", machine, got)
		}
		return nil
	})
}

// editConfig of a load balancer beyond what the lab's settings have, and reload.
func editConfig(t *testing.T, running *hosts.Lab, machine string, edit func(text string) string) {
	t.Helper()
	file := filepath.Join(running.Options().RunDir, machine, "config.yaml")
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(edit(string(content))), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := on(t, running, machine, "reload"); err != nil {
		t.Fatalf("reload: %v\n%s", err, out)
	}
}

func replaceOnce(t *testing.T, text, old, replacement string) string {
	t.Helper()
	if strings.Count(text, old) != 1 {
		t.Fatalf("not once there: %q in\n%s", old, text)
	}
	return strings.Replace(text, old, replacement, 1)
}

// restore the lab after a scenario that took something away.
func restore(t *testing.T, running *hosts.Lab) {
	t.Helper()
	ctx := cleanUp(t)
	if err := running.Network.FilterRouter(ctx, ""); err != nil {
		t.Error(err)
	}
	if err := running.Restore(ctx); err != nil {
		t.Error(err)
	}
}

// cleanUp has a context of its own: the test's has ended by then.
func cleanUp(t *testing.T) context.Context {
	return context.WithoutCancel(t.Context())
}

// startLoad of long-lived connections alone, from a block of addresses that
// no other load of this lab has.
func startLoad(t *testing.T, running *hosts.Lab, block, connections int) *load.Remote {
	t.Helper()
	addresses, err := running.Network.AddClientAddresses(t.Context(), block, 4)
	if err != nil {
		t.Fatal(err)
	}
	var echo []netip.AddrPort
	for _, vip := range topology.EchoVIPs {
		echo = append(echo, netip.AddrPortFrom(vip, topology.EchoPort))
	}
	remote, err := load.StartRemote(running.LoadCommand(t.Context()), load.Spec{
		Seed: 1, Sources: addresses, Echo: echo, Connections: connections, MessageRate: 0.7, TimeLimit: 15 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = remote.Abandon() }) // of one that was stopped: nothing to do
	eventually(t, time.Minute, "the load is under way", func() error {
		report, err := remote.Progress()
		if err != nil {
			return err
		}
		if report.Broken > 0 || report.Open < connections {
			return fmt.Errorf("%d of %d connections are open, %d broke", report.Open, connections, report.Broken)
		}
		return nil
	})
	return remote
}

// A step of a scenario begins where the one before has ended.
type step struct {
	name string
	run  func(*testing.T)
}

// inStepsUnderLoad runs them while clients talk and routes are watched. To be called at the
// end: no request has failed and no connection is broken.
func inStepsUnderLoad(t *testing.T, running *hosts.Lab, steps []step) (end func()) {
	t.Helper()
	remote := loadForTakeOver(t, running, 1, 50)
	t.Cleanup(func() { _ = remote.Abandon() }) // of one that was stopped: nothing to do
	stopWatch := keepEyeOnRoutes(t, running)
	for _, s := range steps {
		if !t.Run(s.name, s.run) {
			t.FailNow()
		}
	}
	stopWatch()
	return func() {
		t.Helper()
		stopUnbroken(t, remote)
	}
}

// stopUnbroken: there was a load, no connection of it broke, no request failed.
func stopUnbroken(t *testing.T, remote *load.Remote) {
	t.Helper()
	report, err := remote.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if report.Broken > 0 || report.Failed > 0 || report.Messages == 0 || report.Requests == 0 {
		t.Errorf("%d of %d connections broken, %d of %d requests failed, %d messages: %+v",
			report.Broken, report.Connections, report.Failed, report.Requests, report.Messages, report.Failures)
	}
	t.Logf("%d messages and %d requests; the longest pause of a message was %v", report.Messages, report.Requests, report.LongestPause)
}

// guideway runs the CLI inside a namespace.
func guideway(t *testing.T, running *hosts.Lab, namespace string, args ...string) (stdout string, err error) {
	t.Helper()
	program := filepath.Join(running.Options().BinDir, "guideway")
	command := exec.CommandContext(t.Context(), "ip", append([]string{"netns", "exec", namespace, program}, args...)...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Run(); err != nil {
		return out.String(), fmt.Errorf("guideway %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// waitQuiet until the load balancers forward nothing any more: what was on its
// way has arrived. Only peers' probes go on, twelve a second, which are replied.
func waitQuiet(t *testing.T, running *hosts.Lab) {
	t.Helper()
	moved := func() (sum float64) {
		for sample, value := range metrics(t, running) {
			if strings.HasPrefix(sample, "guideway_frames_total") && !strings.Contains(sample, `verdict="replied"`) {
				sum += value
			}
		}
		return sum
	}
	eventually(t, 10*time.Second, "all is quiet", func() error {
		before := moved()
		time.Sleep(300 * time.Millisecond)
		if after := moved(); after != before {
			return fmt.Errorf("%v packets in 300 ms", after-before)
		}
		return nil
	})
}

// checkAtRest: no checksum is wrong, and every packet is accounted for.
func checkAtRest(t *testing.T, running *hosts.Lab) {
	t.Helper()
	if sums, err := running.Network.ChecksumErrors(); err != nil || sums != 0 {
		t.Errorf("%d wrong checksums, %v", sums, err)
	}
	checkAccounted(t, running)
}

// checkAccounted on the machines that run. Where marked packets were sent,
// checksums are wrong on purpose.
func checkAccounted(t *testing.T, running *hosts.Lab) {
	t.Helper()
	names := running.Running()
	if len(names) == 0 {
		t.Error("no load balancer runs")
	}
	for _, name := range names {
		eventually(t, 5*time.Second, "every packet is accounted for", func() error {
			counters, err := running.Counters(t.Context(), name)
			if err != nil {
				return err
			}
			if counters.GetUnaccounted() != 0 || counters.GetReceived() == 0 {
				return fmt.Errorf("%s received %d, unaccounted %d", name, counters.GetReceived(), counters.GetUnaccounted())
			}
			return nil
		})
	}
}

// tellLosses after a failure: what was dropped or lost since then, and where.
func tellLosses(t *testing.T, running *hosts.Lab, before map[string]float64) {
	t.Helper()
	if !t.Failed() {
		return
	}
	for sample, value := range metrics(t, running) {
		if value != before[sample] && (strings.Contains(sample, "drop") || strings.Contains(sample, "lost") || strings.Contains(sample, "fragments")) {
			t.Logf("%s grew by %v", sample, value-before[sample])
		}
	}
	for _, name := range append(running.Backends(), "client") {
		for _, counter := range []string{"Udp.RcvbufErrors", "Udp6RcvbufErrors", "Ip.ReasmFails", "Ip6ReasmFails"} {
			if value := kernelCounter(t, running, name, counter); value > 0 {
				t.Logf("%s of %s is %d", counter, name, value)
			}
		}
	}
}
