package scenarios_test

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/events"
	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// A client with two links, and the kernels' own Multipath TCP: without join ports
// most joins reach a backend that does not have the connection; with them each does,
// and connections outlive the link on which they began.
func TestJoinPorts(t *testing.T) {
	const connections = 10 // of each family
	bin := needLab(t)
	shareMachineButMultipath(t)
	running := up(t, smallLab(t, "join-ports", bin))
	useBothLinks(t, running)
	holdATransfer(t, running.Network)

	before := joins(t, running)
	var former []conversation // open until they have been joined
	for range connections {
		for _, vip := range topology.EchoVIPs {
			former = append(former, converseByMPTCP(t, running, vip))
		}
	}
	// All of them, or some would be taken for those of the connections below.
	eventually(t, 10*time.Second, "joins are answered, some by a backend that does not have the connection", func() error {
		now := joins(t, running)
		done, unknown := now.done-before.done, now.unknown-before.unknown
		if done+unknown < uint64(len(former)) || unknown == 0 {
			return fmt.Errorf("of %d connections' joins %d succeeded, and %d reached another backend", len(former), done, unknown)
		}
		return nil
	})
	for _, c := range former {
		_ = c.Close()
	}

	if err := running.Reconfigure(t.Context(), func(s *topology.Settings) { s.JoinPorts = 20000 }); err != nil {
		t.Fatal(err)
	}
	signalJoinPorts(t, running)
	before = joins(t, running)
	var conversations []conversation
	for range connections {
		for _, vip := range topology.EchoVIPs {
			conversations = append(conversations, converseByMPTCP(t, running, vip))
		}
	}
	eventually(t, 10*time.Second, "every connection is joined", func() error {
		now := joins(t, running)
		if now.unknown != before.unknown || now.forged != before.forged {
			return fmt.Errorf("%d joins reached another backend, %d had a wrong HMAC", now.unknown-before.unknown, now.forged-before.forged)
		}
		// From the second link's address; the kernel also joins from the first.
		if done := now.done - before.done; done < uint64(len(conversations)) {
			return fmt.Errorf("%d joins of %d connections", done, len(conversations))
		}
		return nil
	})

	checkExplained(t, running, conversations[0].backend)
	transferWhile(t, conversations, func() {
		if err := running.Network.SetLink(t.Context(), running.Network.Client, "down"); err != nil {
			t.Error(err)
		}
	})
	if err := running.Network.SetLink(t.Context(), running.Network.Client, "up"); err != nil {
		t.Fatal(err)
	}
	checkAtRest(t, running)
}

// transferWhile something is done a second after all conversations have begun to
// transfer; each goes on until some transfers of its own have begun after that.
func transferWhile(t *testing.T, conversations []conversation, do func()) {
	t.Helper()
	const size, after = 100_000, 3
	done := make(chan struct{})
	var all sync.WaitGroup
	for _, c := range conversations {
		all.Go(func() {
			if err := c.transferUntil(done, after, size, 40*time.Second, func(time.Duration) {}); err != nil {
				t.Errorf("%s at %s: %v", c.client(), c.backend, err)
			}
		})
	}
	time.Sleep(time.Second)
	do()
	close(done)
	all.Wait()
}

// checkExplained: a packet to a backend's port is said to go there, and why.
func checkExplained(t *testing.T, running *hosts.Lab, backend string) {
	t.Helper()
	machine := running.LoadBalancers()[0]
	plan, err := running.Plan(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}
	flow := &forwarderv1.FlowKey{
		Protocol: tcp, Source: "10.11.0.1", SourcePort: 40000,
		Destination: topology.EchoVIPs[0].String(), DestinationPort: portOf(plan, backend),
	}
	client, connection, err := running.Forwarder(machine)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	told, err := client.Explain(t.Context(), &forwarderv1.ExplainRequest{Flow: flow})
	if err != nil {
		t.Fatal(err)
	}
	if told.Mode != "join_port" || told.Backend != backend || told.Tracked != nil || told.Slot != nil {
		t.Errorf("a packet to the port of %s: %v", backend, told)
	}
}

// portOf a backend; 0: it has none.
func portOf(plan *planv1.Plan, backend string) uint32 {
	for _, service := range plan.GetServices() {
		for _, join := range service.GetJoinPorts() {
			if join.GetBackend() == backend {
				return join.GetPort()
			}
		}
	}
	return 0
}

// useBothLinks of the client for each connection.
func useBothLinks(t *testing.T, running *hosts.Lab) {
	t.Helper()
	second, err := running.Network.AddClientLink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lines := []string{"mptcp limits set subflows 8 add_addr_accepted 8"}
	for family := range second.Addresses {
		lines = append(lines, fmt.Sprintf("mptcp endpoint add %s dev eth1 subflow fullmesh", second.Address(family)))
	}
	if err := topology.IPBatch(t.Context(), running.Network.Client.Namespace, lines); err != nil {
		t.Fatal(err)
	}
}

// holdATransfer has room at each end for all that one of the transfers' bytes in both
// directions take, in whatever order they come. Trap: Linux 6.18 stops a connection for good
// whose receive buffer is full of later data when the next in order comes (docs/mptcp.md):
// with the usual 128 KiB 56 KB of them filled it, in packets with one page each.
func holdATransfer(t *testing.T, network topology.Network) {
	t.Helper()
	for _, n := range append([]topology.Node{network.Client}, network.Backends...) {
		if err := topology.SetSysctls(n.Namespace, []string{"ipv4/tcp_rmem=4096 1048576 33554432"}); err != nil {
			t.Fatal(err)
		}
	}
}

// signalJoinPorts on every backend, by what `guideway config backend` prints for it.
func signalJoinPorts(t *testing.T, running *hosts.Lab) {
	t.Helper()
	machine := filepath.Join(running.Options().RunDir, running.LoadBalancers()[0])
	for _, n := range running.Network.Backends[:len(running.Weights())] {
		command := exec.Command(filepath.Join(running.Options().BinDir, "guideway"), "config", "backend", n.Name, "config.yaml")
		command.Dir = machine
		text, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("config backend %s: %v\n%s", n.Name, err, text)
		}
		var script bytes.Buffer
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "mptcp") && !strings.HasPrefix(line, "#") {
				script.WriteString(line)
			}
		}
		if !strings.Contains(script.String(), "endpoint add") {
			t.Fatalf("config backend %s prints no endpoint:\n%s", n.Name, text)
		}
		if _, err := topology.Output(t.Context(), script.String(), "ip", "netns", "exec", n.Namespace, "sh", "-e"); err != nil {
			t.Fatal(err)
		}
	}
}

// converseByMPTCP as converse, by Multipath TCP.
func converseByMPTCP(t *testing.T, running *hosts.Lab, vip netip.Addr) conversation {
	t.Helper()
	dialer := net.Dialer{Timeout: 5 * time.Second}
	dialer.SetMultipathTCP(true)
	connection, err := topology.DialInside(t.Context(), running.Network.Client.Namespace, dialer, "tcp", netip.AddrPortFrom(vip, topology.EchoPort).String())
	if err != nil {
		t.Fatal(err)
	}
	if is, err := connection.(*net.TCPConn).MultipathTCP(); err != nil || !is {
		t.Fatalf("the connection to %s is one of Multipath TCP: %v, %v", vip, is, err)
	}
	return greeted(t, connection)
}

// joinCounts of all backends' kernels.
type joinCounts struct{ done, unknown, forged uint64 }

func joins(t *testing.T, running *hosts.Lab) (sum joinCounts) {
	t.Helper()
	for _, n := range running.Network.Backends {
		sum.done += kernelCounter(t, running, n.Name, "MPTcpExt.MPJoinAckRx")
		sum.unknown += kernelCounter(t, running, n.Name, "MPTcpExt.MPJoinNoTokenFound")
		sum.forged += kernelCounter(t, running, n.Name, "MPTcpExt.MPJoinAckHMacFailure")
	}
	return sum
}

// The demo's transfers by keys, tokens and timestamps: what moves buckets, what depends on
// the same maps everywhere after that, and the loss of a link.
func TestTransfersByMultipathTCP(t *testing.T) {
	o := events.MultipathDefaults()
	o.BinDir, o.Name = needLab(t), labName("demo-mptcp", "")
	shareMachineButMultipath(t)
	o.Events = []string{"drain_backend", "add_load_balancer", "cut_link"}
	o.Output = t.Output()
	if err := events.RunMultipath(t.Context(), o); err != nil {
		t.Error(err)
	}
	if left := leftovers(t, o.Name); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
}
