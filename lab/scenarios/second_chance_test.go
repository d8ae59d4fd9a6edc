package scenarios_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/flood"
)

// Services with a second chance: connections that no load balancer that lives has
// an entry for go on, and what packets that belong to none cost.
func TestSecondChance(t *testing.T) {
	o := optionsAlone(t, "chance")
	o.Backends, o.Encap, o.SecondChance = 3, "geneve", true
	running := up(t, o)
	t.Run("connections outlive a change and the machine that knew them", func(t *testing.T) {
		outliveTheirMachine(t, running)
	})
	t.Run("a flood of ACKs is sent four times at most and disturbs nothing", func(t *testing.T) {
		floodOfACKs(t, running)
	})
}

// changed: one backend more, and one that drains.
func changed(t *testing.T, running *hosts.Lab) {
	t.Helper()
	weights := running.Weights()
	weights["be-4"], weights["be-1"] = 1, 0
	if err := running.SetWeights(t.Context(), weights); err != nil {
		t.Fatal(err)
	}
}

func outliveTheirMachine(t *testing.T, running *hosts.Lab) {
	defer restore(t, running)
	var conversations []conversation
	for range 40 {
		for _, vip := range topology.EchoVIPs {
			conversations = append(conversations, converse(t, running, vip))
		}
	}
	changed(t, running)
	agents, resets := agentMetrics(t, running), countVIPResets(t, running)
	if _, err := running.KillLoadBalancer("lb-1"); err != nil {
		t.Fatal(err)
	}
	named := metricsOf(t, running, "lb-2")
	for _, c := range conversations {
		// Full segments, which leave no room for anything but the tunnel.
		if err := c.transfer(20_000, 5*time.Second); err != nil {
			t.Errorf("the connection of %s to %s: %v", c.client(), c.backend, err)
		}
	}
	// Without a second chance these would have been reset: half of them were
	// lb-1's, and a quarter or more of the table has changed.
	needed := grew(t, named, metricsOf(t, running, "lb-2"), chancesOf("earlier_named"))
	passed := passedOn(t, running, agents)
	t.Logf("%v packets named earlier backends, agents passed %v on", needed, passed)
	if needed == 0 || passed == 0 {
		t.Errorf("%v packets named earlier backends, agents passed %v on", needed, passed)
	}
	resets.check(nil)
}

func chancesOf(action string) string {
	return fmt.Sprintf("guideway_second_chance_packets_total{action=%q}", action)
}

// passedOn to other agents since then; and nothing was dropped.
func passedOn(t *testing.T, running *hosts.Lab, before map[string]float64) (sum float64) {
	t.Helper()
	for sample, value := range agentMetrics(t, running) {
		grown := value - before[sample]
		if strings.HasPrefix(sample, "guideway_agent_forwarded_packets_total") {
			sum += grown
		}
		if strings.HasPrefix(sample, "guideway_agent_drop_packets_total") && grown != 0 {
			t.Errorf("%s grew by %v", sample, grown)
		}
	}
	return sum
}

// floodOfACKs of connections that there are not: each is sent to a backend, and from
// there on to three others at most; tracked connections do not notice.
func floodOfACKs(t *testing.T, running *hosts.Lab) {
	defer restore(t, running)
	host, err := running.Network.AddHost(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	remote := startLoad(t, running, 1, 100)
	changed(t, running)
	forwarders, agents := metrics(t, running), agentMetrics(t, running)
	const packets = 20_000
	sendACKs(t, host, packets)
	waitQuietAgents(t, running)
	named := grew(t, forwarders, metrics(t, running), chancesOf("earlier_named"))
	passed := passedOn(t, running, agents)
	t.Logf("%d ACKs: %v named earlier backends, agents passed them on %v times", packets, named, passed)
	if named < packets/10 {
		t.Errorf("only %v of %d packets named earlier backends", named, packets)
	}
	// The first tunnel, and three more.
	if passed > 3*named {
		t.Errorf("%v packets were passed on %v times", named, passed)
	}
	report, err := remote.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if report.Broken != 0 || report.LongestPause > time.Second {
		t.Errorf("%d of %d connections broke, the longest pause was %v", report.Broken, report.Connections, report.LongestPause)
	}
	checkAtRest(t, running)
}

// sendACKs of as many connections, both families in turn.
func sendACKs(t *testing.T, host *topology.Host, packets int) {
	t.Helper()
	var socket *flood.Socket
	if err := topology.Inside(host.Namespace(), func() (err error) {
		socket, err = flood.Open()
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	for sent := range packets {
		family := sent % 2
		source := netip.AddrPortFrom(host.Networks()[family].Addr().Next(), uint16(10_000+sent/2))
		service := netip.AddrPortFrom(topology.EchoVIPs[family], topology.EchoPort)
		if err := socket.Send(flood.Packet(flood.ACK, source, service)); err != nil {
			t.Fatal(err)
		}
		if sent%100 == 99 {
			time.Sleep(10 * time.Millisecond)
		}
	}
}

// waitQuietAgents until they pass nothing on any more.
func waitQuietAgents(t *testing.T, running *hosts.Lab) {
	t.Helper()
	eventually(t, 10*time.Second, "agents pass nothing on", func() error {
		before := agentMetrics(t, running)
		time.Sleep(300 * time.Millisecond)
		if more := passedOn(t, running, before); more != 0 {
			return fmt.Errorf("%v packets in 300 ms", more)
		}
		return nil
	})
}
