package scenarios_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

const (
	fileBytes = 3 << 20
	// fileLimit is far from what a transfer takes, and far below what it would
	// with every large packet lost.
	fileLimit = 20 * time.Second
	// narrowFabric is what a path in the fabric carries, and tunnel.mtu says so.
	narrowFabric = 1400
)

// No link carries more than 1500 bytes, so no full packet fits a tunnel; and
// paths that are narrower still, on either side of the load balancers.
func TestSmallMTUs(t *testing.T) {
	o := options(t, "mtu")
	o.FabricMTU = 1500
	running := up(t, o)
	if err := running.Network.RouteByMark(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, tunnels := range []struct {
		name     string
		overIPv6 bool
		mtu      int
	}{
		{"IPv4", false, 1500 - 24},
		{"IPv6", true, 1500 - 44},
	} {
		t.Run("over tunnels in "+tunnels.name, func(t *testing.T) {
			t.Cleanup(func() { restore(t, running) })
			if err := running.Reconfigure(t.Context(), func(s *topology.Settings) { s.TCPOverIPv6 = tunnels.overIPv6 }); err != nil {
				t.Fatal(err)
			}
			for _, vip := range topology.EchoVIPs {
				t.Run("a file fits the fabric to "+vip.String(), func(t *testing.T) {
					fileThroughFabric(t, running, vip, 0, tunnels.mtu)
				})
			}
			if err := running.Reconfigure(t.Context(), func(s *topology.Settings) { s.TunnelMTU = narrowFabric }); err != nil {
				t.Fatal(err)
			}
			for _, vip := range topology.EchoVIPs {
				t.Run("a file fits a narrower one to "+vip.String(), func(t *testing.T) {
					fileThroughFabric(t, running, vip, narrowFabric, tunnels.mtu-100)
				})
			}
		})
	}
	for family, vip := range topology.EchoVIPs {
		t.Run("a file passes a narrow path to the client from "+vip.String(), func(t *testing.T) {
			fileThroughNarrowClient(t, running, vip, family)
		})
		t.Run("an error at the wrong machine reaches the right backend of "+vip.String(), func(t *testing.T) {
			errorAtTheWrongMachine(t, running, vip, family)
		})
	}
	checkAtRest(t, running)
}

// fileThroughFabric with a path of that MTU to the backends (0: the links'),
// which leaves so much for what is in the tunnel.
func fileThroughFabric(t *testing.T, running *hosts.Lab, vip netip.Addr, narrow, inner int) {
	t.Helper()
	forgetPaths(t, running)
	narrowBackends(t, running, narrow)
	before := metrics(t, running)
	c := converse(t, running, vip)
	if err := c.transfer(fileBytes, fileLimit); err != nil {
		t.Errorf("by %s: %v", c.backend, err)
	}
	after := metrics(t, running)
	if answers := grew(t, before, after, `guideway_icmp_too_big_total{direction="sent"}`); answers == 0 {
		t.Error("no load balancer said that a packet was too big")
	}
	if errors := grew(t, before, after, `guideway_icmp_too_big_total{direction="received"}`); errors != 0 {
		t.Errorf("%v packets in tunnels were too big for the fabric", errors)
	}
	if mtu, err := running.Network.PathMTU(t.Context(), "client", vip, c.client().Addr()); err != nil || mtu != inner {
		t.Errorf("the client was told of %d bytes, not %d (%v)", mtu, inner, err)
	}
}

// narrowBackends' paths until the end of the test.
func narrowBackends(t *testing.T, running *hosts.Lab, mtu int) {
	t.Helper()
	for _, name := range running.Backends() {
		narrowPath(t, running, name, mtu)
	}
}

func narrowPath(t *testing.T, running *hosts.Lab, name string, mtu int) {
	t.Helper()
	if mtu == 0 {
		return
	}
	if err := running.Network.NarrowPath(t.Context(), name, mtu); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := running.Network.NarrowPath(cleanUp(t), name, 0); err != nil {
			t.Error(err)
		}
	})
}

func forgetPaths(t *testing.T, running *hosts.Lab) {
	t.Helper()
	if err := running.Network.ForgetPaths(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// tooBig is the kernel's counter of such errors, by family.
var tooBig = [...]string{"Icmp.InDestUnreachs", "Icmp6InPktTooBigs"}

const narrowClient = 1300

// fileThroughNarrowClient: backends learn it by errors to the VIP.
func fileThroughNarrowClient(t *testing.T, running *hosts.Lab, vip netip.Addr, family int) {
	t.Helper()
	forgetPaths(t, running)
	narrowPath(t, running, "client", narrowClient)
	c := converse(t, running, vip)
	before := kernelCounter(t, running, c.backend, tooBig[family])
	if err := c.transfer(fileBytes, fileLimit); err != nil {
		t.Errorf("by %s: %v", c.backend, err)
	}
	if kernelCounter(t, running, c.backend, tooBig[family]) == before {
		t.Errorf("%s heard of no packet that was too big", c.backend)
	}
	if mtu, err := running.Network.PathMTU(t.Context(), c.backend, c.client().Addr(), vip); err != nil || mtu != narrowClient {
		t.Errorf("%s knows of %d bytes (%v)", c.backend, mtu, err)
	}
}

// errorAtTheWrongMachine: the flow's backend drains, so only the table of the
// machine that has the flow knows it; the router hands the errors about it to
// the other one.
func errorAtTheWrongMachine(t *testing.T, running *hosts.Lab, vip netip.Addr, family int) {
	t.Helper()
	t.Cleanup(func() { restore(t, running) })
	forgetPaths(t, running)
	waitPeers(t, running)
	c := converse(t, running, vip)
	if err := c.transfer(100, fileLimit); err != nil {
		t.Fatal(err)
	}
	right, wrong := machinesOf(t, running, c)
	weights := running.Weights()
	weights[c.backend] = 0
	if err := running.SetWeights(t.Context(), weights); err != nil {
		t.Fatal(err)
	}
	waitState(t, running, wrong, "echo", c.backend, planv1.BackendState_BACKEND_STATE_DRAINING)

	errorsTo(t, running, wrong)
	narrowPath(t, running, "client", narrowClient)
	before, heard := metricsOf(t, running, wrong), kernelCounter(t, running, c.backend, tooBig[family])
	if err := c.transfer(fileBytes, fileLimit); err != nil {
		t.Errorf("by %s: %v", c.backend, err)
	}
	counts, err := running.Network.RouterCounters(t.Context())
	if err != nil || counts["errors"] == 0 {
		t.Errorf("the router sent no error: %v, %v", counts, err)
	}
	after := metricsOf(t, running, wrong)
	if copies := grew(t, before, after, `guideway_originated_packets_total{kind="copy"}`); copies == 0 {
		t.Errorf("%s, which does not know the flow, copied no error to %s", wrong, right)
	}
	if kernelCounter(t, running, c.backend, tooBig[family]) == heard {
		t.Errorf("%s heard of no packet that was too big", c.backend)
	}
}

// machinesOf a connection: the one whose table has it, and the other.
func machinesOf(t *testing.T, running *hosts.Lab, c conversation) (right, wrong string) {
	t.Helper()
	eventually(t, 5*time.Second, "a table has the connection", func() error {
		for _, name := range running.LoadBalancers() {
			entries, err := running.Tracked(t.Context(), name, tcp, c.client(), c.server())
			if err != nil {
				return err
			}
			if len(entries) > 0 {
				right = name
			} else {
				wrong = name
			}
		}
		if right == "" || wrong == "" {
			return fmt.Errorf("it is at %q, and not at %q", right, wrong)
		}
		return nil
	})
	return right, wrong
}

// errorsTo makes the router send its ICMP errors about VIPs' packets to that
// machine, and count them.
func errorsTo(t *testing.T, running *hosts.Lab, machine string) {
	t.Helper()
	mark, err := running.Network.Mark(machine)
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Network.FilterRouter(t.Context(), fmt.Sprintf(`counter errors {}
chain output {
	type route hook output priority mangle;
	ip daddr %[1]s icmp type destination-unreachable counter name errors meta mark set %[3]d;
	ip6 daddr %[2]s icmpv6 type packet-too-big counter name errors meta mark set %[3]d;
}`, topology.VIPPrefix4, topology.VIPPrefix6, mark)); err != nil {
		t.Fatal(err)
	}
}
