package scenarios_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/flood"
)

// Agents of the lab know one another: packets that come to a backend without
// their connection go on to the one that the route option names, at once, and
// no kernel answers them with an RST.
func TestAgentsPassOnWhatBelongsToAnother(t *testing.T) {
	o := options(t, "agents")
	o.LoadBalancers, o.Encap = 1, "geneve"
	running := up(t, o)
	for _, vip := range topology.EchoVIPs {
		c := converseWith(t, running, vip, "be-2")
		for family, outer := range []string{"IPv4", "IPv6"} {
			t.Run(fmt.Sprintf("%s over %s", vip, outer), func(t *testing.T) {
				passesOn(t, running, c, family)
			})
		}
		if err := c.transfer(1000, 5*time.Second); err != nil {
			t.Errorf("the connection to %s: %v", vip, err)
		}
	}
	checkAtRest(t, running)
}

// converseWith a backend by name: half of the connections are its.
func converseWith(t *testing.T, running *hosts.Lab, vip netip.Addr, backend string) conversation {
	t.Helper()
	for range 60 {
		if c := converse(t, running, vip); c.backend == backend {
			return c
		}
	}
	t.Fatalf("none of 60 connections to %s is %s's", vip, backend)
	return conversation{}
}

func passesOn(t *testing.T, running *hosts.Lab, c conversation, family int) {
	const packets = 50
	const sentFrames = `guideway_frames_total{verdict="sent"}`
	forwarder := metricsOfSilence(t, running, sentFrames)
	first, second, resets := agentMetricsOf(t, running, 0), agentMetricsOf(t, running, 1), countVIPResets(t, running)
	to, other := running.Network.Backends[0].Address(family), running.Network.Backends[1].Address(family)
	segment := flood.Packet(flood.ACK, c.client(), c.server())
	tunnelled := inGeneve(segment, other)
	lb := running.Network.LoadBalancers[0]
	socket, err := topology.DialInside(t.Context(), lb.Namespace, net.Dialer{}, "udp", netip.AddrPortFrom(to, 6081).String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	for range packets {
		if _, err := socket.Write(tunnelled); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 5*time.Second, "the packets are passed on", func() error {
		passed := grew(t, first, agentMetricsOf(t, running, 0), `guideway_agent_forwarded_packets_total{reason="no_socket"}`)
		taken := grew(t, second, agentMetricsOf(t, running, 1), `guideway_agent_decapsulated_packets_total{encap="geneve"}`)
		// The client answers to what be-2 says about them, by the load balancer.
		sent := grew(t, forwarder, metrics(t, running), sentFrames)
		if passed != packets || taken != packets+sent {
			return fmt.Errorf("of %d packets, be-1 passed %v on; be-2 took %v, and the load balancer sent %v", packets, passed, taken, sent)
		}
		return nil
	})
	resets.check(nil)
}

// metricsOfSilence are read when a counter has stood still for longer than a client delays an
// ACK: what is counted from then on has another cause.
func metricsOfSilence(t *testing.T, running *hosts.Lab, counter string) map[string]float64 {
	t.Helper()
	samples := metrics(t, running)
	eventually(t, 10*time.Second, counter+" stands still", func() error {
		time.Sleep(200 * time.Millisecond)
		before := samples
		samples = metrics(t, running)
		if more := grew(t, before, samples, counter); more != 0 {
			return fmt.Errorf("it grew by %v", more)
		}
		return nil
	})
	return samples
}

func agentMetricsOf(t *testing.T, running *hosts.Lab, backend int) map[string]float64 {
	t.Helper()
	samples, err := running.AgentMetrics(t.Context(), backend)
	if err != nil {
		t.Fatal(err)
	}
	return samples
}

// inGeneve a packet, with a route option of one address (docs/formats.md).
func inGeneve(packet []byte, next netip.Addr) []byte {
	etherType, flags := uint16(0x0800), byte(1)
	if packet[0]>>4 == 6 {
		etherType = 0x86dd
	}
	if next.Is6() {
		flags |= 0x80
	}
	body := append([]byte{flags, 4, 0xff, 0xff, 0, 0, 0, 1}, next.AsSlice()...)
	option := append([]byte{0xff, 0x47, 0x81, byte(len(body) / 4)}, body...)
	header := []byte{byte(len(option) / 4), 0x40, 0, 0, 0, 0, 0, 0}
	binary.BigEndian.PutUint16(header[2:], etherType)
	return append(append(header, option...), packet...)
}
