package diagnose

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/forwarder"
	"github.com/guideway/guideway/controller/tracer"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/looptest"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

const (
	traceVIP4 = "203.0.113.10"
	traceVIP6 = "2001:db8:a::10"
)

// traceNet is a client, two load balancers and a backend on one bridge.
type traceNet struct {
	prefix string
	dir    string
}

var traceHosts = map[string]int{"client": 1, "lb-1": 11, "lb-2": 12, "be": 21}

// newTraceNet builds it with running forwarders, or skips.
func newTraceNet(t *testing.T) traceNet {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	program := looptest.Program(t, "guideway-forwarder")
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("needs ip: tools/install-deps.sh lab installs it")
	}
	n := traceNet{prefix: fmt.Sprintf("gw-trace-%d-", os.Getpid()), dir: t.TempDir()}
	n.build(t)
	n.write(t, "cluster.key", "0123456789abcdef0123456789abcdef\n", 0o640)
	n.write(t, "other.key", "another secret of enough bytes\n", 0o640)
	for name, peer := range map[string]string{"lb-1": "lb-2", "lb-2": "lb-1"} {
		n.startForwarder(t, program, name, n.config(t, name, peer))
	}
	return n
}

func (n traceNet) write(t *testing.T, name, content string, mode os.FileMode) string {
	t.Helper()
	file := filepath.Join(n.dir, name)
	if err := os.WriteFile(file, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return file
}

func (n traceNet) build(t *testing.T) {
	t.Helper()
	bridge := n.prefix + "net"
	t.Cleanup(func() {
		for name := range traceHosts {
			_ = exec.Command("ip", "netns", "del", n.prefix+name).Run()
		}
		_ = exec.Command("ip", "netns", "del", bridge).Run()
	})
	lines := []string{"netns add " + bridge, "-n " + bridge + " link add br0 mtu 1600 type bridge", "-n " + bridge + " link set br0 up"}
	for name, host := range traceHosts {
		inside := "-n " + n.prefix + name + " "
		lines = append(lines,
			"netns add "+n.prefix+name,
			fmt.Sprintf("%slink add eth0 mtu 1600 type veth peer name %s mtu 1600 netns %s", inside, name, bridge),
			fmt.Sprintf("-n %s link set %s master br0 up", bridge, name),
			inside+"link set eth0 up",
			fmt.Sprintf("%saddr add 10.0.0.%d/24 dev eth0", inside, host),
			fmt.Sprintf("%saddr add 2001:db8:0::%d/64 dev eth0 nodad", inside, host))
	}
	client := "-n " + n.prefix + "client "
	lines = append(lines, client+"route add "+traceVIP4+" via 10.0.0.11", client+"-6 route add "+traceVIP6+" via 2001:db8:0::11")
	// A report goes to the link address that the packet came from: after a
	// redirection on one link that is the other load balancer, whose kernel
	// passes it on.
	for _, name := range []string{"lb-1", "lb-2"} {
		lines = append(lines, "netns exec "+n.prefix+name+" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
	}
	for _, line := range lines {
		if out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", line, err, out)
		}
	}
}

func (n traceNet) config(t *testing.T, name, peer string) string {
	t.Helper()
	return n.write(t, name+".yaml", fmt.Sprintf(`
cluster: {name: trace, secret_file: cluster.key}
machine: {name: %s, addresses: [10.0.0.%[2]d, "2001:db8:0::%[2]d"]}
peers: [{name: %[3]s, addresses: [10.0.0.%[4]d, "2001:db8:0::%[4]d"]}]
services:
- name: web
  vips: [{address: %[5]s, ports: [80], protocol: tcp}, {address: "%[6]s", ports: [80], protocol: tcp}]
  pools: [web]
  fragments: true
pools: [{name: web, backends: [{name: web-1, address: 10.0.0.21}]}]
forwarder: {interfaces: [{name: eth0, driver: af_packet}], connections_max: 10000}
`, name, traceHosts[name], peer, traceHosts[peer], traceVIP4, traceVIP6), 0o644)
}

// startForwarder with the config's plan, and wait until it knows its next hops.
func (n traceNet) startForwarder(t *testing.T, program, name, file string) {
	t.Helper()
	run := filepath.Join(n.dir, name)
	log, err := os.Create(run + ".log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	command := exec.Command("ip", "netns", "exec", n.prefix+name, program, "run", "--no-pin",
		"--run-dir", run, "--state-dir", run, "--secret-file", filepath.Join(n.dir, "cluster.key"))
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if text, _ := os.ReadFile(run + ".log"); t.Failed() {
			t.Logf("%s: %s", name, text)
		}
	})
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := forwarder.Dial(filepath.Join(run, "forwarder.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := forwarderv1.NewForwarderClient(conn)
	within(t, "the plan of "+name, func(ctx context.Context) error {
		_, err := client.SetPlan(ctx, &forwarderv1.SetPlanRequest{Plan: compile.Compile(c, compile.States{}, 1)})
		return err
	})
	within(t, "next hops of "+name, func(ctx context.Context) error {
		status, err := client.GetStatus(ctx, &forwarderv1.GetStatusRequest{})
		if err == nil && len(status.Unresolved) > 0 {
			err = fmt.Errorf("unresolved: %v", status.Unresolved)
		}
		return err
	})
}

// within ten seconds, or the last error; a real program has its own clock.
func within(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// trace as the client; args with blanks between.
func (n traceNet) trace(t *testing.T, args string) (stdout, stderr string, err error) {
	t.Helper()
	inside := topology.Inside(n.prefix+"client", func() error {
		stdout, stderr, err = guideway(t, append([]string{"trace"}, strings.Fields(args)...)...)
		return nil
	})
	if inside != nil {
		t.Fatal(inside)
	}
	return stdout, stderr, err
}

func (n traceNet) result(t *testing.T, args string) tracer.Result {
	t.Helper()
	stdout, stderr, err := n.trace(t, "-o json --secret-file "+filepath.Join(n.dir, "cluster.key")+" "+args)
	if err != nil {
		t.Fatalf("%s: %v: %s", args, err, stderr)
	}
	var result tracer.Result
	if err := json.Unmarshal([]byte(stdout), &result); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	return result
}

func Test_a_trace_shows_what_real_load_balancers_do(t *testing.T) {
	n := newTraceNet(t)
	for _, vip := range []string{traceVIP4, traceVIP6} {
		for _, packet := range n.result(t, "--count 3 --vip "+vip).Packets {
			if len(packet.Hops) != 1 {
				t.Fatalf("%s: hops %+v", vip, packet.Hops)
			}
			hop := packet.Hops[0]
			if hop.Machine != "lb-1" || hop.Service != "web" || hop.Backend != "web-1" || hop.Verdict != "sent" ||
				hop.Table != "miss" || hop.Slot == nil || hop.Generation != 1 || hop.Budget != 7 || !strings.HasPrefix(hop.Matched, vip) {
				t.Errorf("%s: %+v", vip, hop)
			}
		}
		n.fragmentsAreRedirected(t, vip)
	}
	// Another machine's address: the reports come here nevertheless.
	if hops := n.result(t, "--src 198.51.100.7 --sport 1234 --vip "+traceVIP4).Packets[0].Hops; len(hops) != 1 || hops[0].Backend != "web-1" {
		t.Errorf("from another's address: %+v", hops)
	}
	if hops := n.result(t, "--port 81 --vip "+traceVIP4).Packets[0].Hops; len(hops) != 1 || hops[0].Verdict != "dropped" || hops[0].Reason == "" {
		t.Errorf("to a port without service: %+v", hops)
	}
	n.otherSecretsShowNothing(t)
	stdout, _, err := n.trace(t, "--config "+filepath.Join(n.dir, "lb-1.yaml")+" --vip "+traceVIP4)
	if err != nil || !strings.Contains(stdout, "lb-1") || !strings.Contains(stdout, "203.0.113.10 tcp 80") || !strings.Contains(stdout, "miss, slot") {
		t.Errorf("%v: %s", err, stdout)
	}
}

// fragmentsAreRedirected: some sources' to lb-2, where they are reported on
// again; the others stay.
func (n traceNet) fragmentsAreRedirected(t *testing.T, vip string) {
	t.Helper()
	seen := map[string]int{}
	for host := range 12 {
		source := fmt.Sprintf("198.51.100.%d", host+1)
		if strings.Contains(vip, ":") {
			source = fmt.Sprintf("2001:db8:c::%d", host+1)
		}
		var hops []string
		for _, hop := range n.result(t, "--fragment --src "+source+" --vip "+vip).Packets[0].Hops {
			hops = append(hops, hop.Machine+" "+hop.Verdict)
			if hop.Verdict == "sent" && hop.Backend != "web-1" {
				t.Errorf("%s: %+v", source, hop)
			}
		}
		seen[strings.Join(hops, ", ")]++
	}
	if len(seen) != 2 || seen["lb-1 slow, lb-1 sent"] == 0 || seen["lb-1 redirected, lb-2 slow, lb-2 sent"] == 0 {
		t.Errorf("%s: ways of first fragments: %v", vip, seen)
	}
}

func (n traceNet) otherSecretsShowNothing(t *testing.T) {
	t.Helper()
	stdout, stderr, err := n.trace(t, "--timeout 500ms --secret-file "+filepath.Join(n.dir, "other.key")+" --vip "+traceVIP4)
	if !errors.Is(err, commandline.ErrReported) || stdout != "no load balancer reported\n" || !strings.Contains(stderr, "another secret") {
		t.Errorf("%v: %s%s", err, stdout, stderr)
	}
}

func Test_trace_names_what_is_wrong_and_its_cure(t *testing.T) {
	dir := t.TempDir()
	n := traceNet{dir: dir}
	good := n.write(t, "good.key", "0123456789abcdef", 0o640)
	short := n.write(t, "short.key", "short \n", 0o640)
	for _, one := range []struct{ line, says string }{
		{"", `"vip" not set`},
		{"--vip web.example", `--vip "web.example": give an IPv4 or IPv6 address`},
		{"--vip 203.0.113.10 --protocol sctp", `protocol "sctp": use tcp or udp`},
		{"--vip 203.0.113.10 --port 0", "--port 0"},
		{"--vip 203.0.113.10 -o xml", `invalid argument "xml"`},
		{"--vip 203.0.113.10 --secret-file " + short, short + ": the secret has 5 bytes"},
		{"--vip 203.0.113.10 --secret-file no.key", "no.key: no such file"},
		{"--vip 203.0.113.10 --config no.yaml", "give --secret-file"},
		{"--vip 203.0.113.10 --config ../../controller/compile/testdata/golden/a-first-try/config.yaml", "has no cluster.secret_file"},
		{"--vip 203.0.113.10 --config ../../controller/config/testdata/bad/ports.yaml", "is bad; give --secret-file"},
		{"--vip 203.0.113.10 --src 2001:db8::1 --receiver 192.0.2.1 --secret-file " + good, "different families"},
		{"--vip 203.0.113.10 --receiver 192.0.2.1:x --secret-file " + good, `--receiver "192.0.2.1:x"`},
		{"--vip 203.0.113.10 --count 0 --src 192.0.2.1 --receiver 192.0.2.1 --secret-file " + good, "count 0: give 1 to 1000"},
	} {
		_, _, err := guideway(t, append([]string{"trace"}, strings.Fields(one.line)...)...)
		if err == nil || !strings.Contains(err.Error(), one.says) {
			t.Errorf("%s: error is %v, wanted %q", one.line, err, one.says)
		}
	}
}
