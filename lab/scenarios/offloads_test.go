package scenarios_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// Clients, router, load balancers and backends whose interfaces have their offloads on, as they
// come: clients are answered, load balancers send on segments that were joined as they are, and
// agents take them out of tunnels so. In each encapsulation, by tunnels of both families.
func TestOffloadsAreKept(t *testing.T) {
	o := optionsAlone(t, "offloads") // its uploads take all processors
	o.LoadBalancers, o.Driver = 1, "af_packet"
	running := up(t, o)
	for _, encap := range encaps {
		for _, isOverIPv6 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, over IPv6: %v", encap, isOverIPv6), func(t *testing.T) {
				err := running.Reconfigure(t.Context(), func(s *topology.Settings) {
					s.Encap, s.TCPOverIPv6 = encap, isOverIPv6
				})
				if err != nil {
					t.Fatal(err)
				}
				uploadsStayJoined(t, running)
			})
		}
	}
	checkAtRest(t, running)
}

func uploadsStayJoined(t *testing.T, running *hosts.Lab) {
	t.Helper()
	const bytes, mss = 10_000_000, 1448
	for _, vip := range topology.EchoVIPs {
		c := converse(t, running, vip)
		waitCached(t, running, c)
		before, opened := metrics(t, running), decapsulated(t, running)
		if err := c.transfer(bytes, fileLimit); err != nil {
			t.Errorf("a file to %s: %v", vip, err)
		}
		after := metrics(t, running)
		opened = decapsulated(t, running) - opened
		_ = c.Close()
		if _, err := askDatagram(t, running, netip.Addr{}, vip, 1200); err != nil {
			t.Errorf("a datagram to %s: %v", vip, err)
		}
		sent := grew(t, before, after, `guideway_frames_total{verdict="sent"}`)
		t.Logf("%s: %d bytes in %.0f packets, out of tunnels in %.0f", vip, bytes, sent, opened)
		// With the client's acknowledgements of what comes back, which are half as many as
		// that has segments.
		if sent == 0 || opened < sent || opened > bytes/mss {
			t.Errorf("%s: %.0f packets had %d bytes, and came out of tunnels as %.0f: segments were cut", vip, sent, bytes, opened)
		}
	}
	for _, vip := range topology.EchoVIPs {
		joinedDatagramsAreCut(t, running, vip)
	}
	for _, vip := range topology.WebVIPs {
		if _, err := get(t, running, vip); err != nil {
			t.Error(err)
		}
	}
}

// decapsulated by all agents.
func decapsulated(t *testing.T, running *hosts.Lab) (sum float64) {
	t.Helper()
	for sample, value := range agentMetrics(t, running) {
		if strings.HasPrefix(sample, "guideway_agent_decapsulated_packets_total") {
			sum += value
		}
	}
	return sum
}

// waitCached until the kernel sends what the connection's client sends.
func waitCached(t *testing.T, running *hosts.Lab, c conversation) {
	t.Helper()
	const sample = "guideway_kernel_cache_packets_total"
	eventually(t, 10*time.Second, "the kernel flow cache has the connection", func() error {
		before := metrics(t, running)
		if err := c.transfer(100, fileLimit); err != nil {
			return err
		}
		if grew(t, before, metrics(t, running), sample) == 0 {
			return errors.New("workers had all of its packets")
		}
		return nil
	})
}

// joinedDatagramsAreCut: of one write the client's kernel makes three, which its device would
// take apart.
func joinedDatagramsAreCut(t *testing.T, running *hosts.Lab, vip netip.Addr) {
	t.Helper()
	const size, bytes = 1000, 2500
	c, err := dial(t, running, "udp", netip.Addr{}, vip)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var refused error
	if err := raw.Control(func(fd uintptr) {
		refused = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size)
	}); err != nil || refused != nil {
		t.Fatal(err, refused)
	}
	sent := randomBytes(bytes)
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	answers, answer := map[string]bool{}, make([]byte, 2*size)
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	for range (bytes + size - 1) / size {
		n, err := c.Read(answer)
		if err != nil {
			t.Errorf("%s: after %d answers: %v", vip, len(answers), err)
			return
		}
		_, echoed := backendOf(answer[:n])
		answers[string(echoed)] = true
	}
	for datagram := range slices.Chunk(sent, size) {
		if !answers[string(datagram)] {
			t.Errorf("%s: a datagram of %d bytes was not answered", vip, len(datagram))
		}
	}
}
