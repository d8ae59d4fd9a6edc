package scenarios_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// Stateless services on one machine: no connection is tracked, so a forwarder
// that is killed loses none; and when a backend comes and gets buckets, their
// connections live on where they are.
func TestStateless(t *testing.T) {
	o := options(t, "stateless")
	o.LoadBalancers, o.Encap, o.Stateless = 1, "geneve", true
	running := up(t, o)
	name := running.LoadBalancers()[0]
	var conversations []conversation
	for range 30 {
		for _, vip := range topology.EchoVIPs {
			conversations = append(conversations, converse(t, running, vip))
		}
	}
	goOn(t, conversations)
	checkAgentsCount(t, running, name, conversations)
	for sample, value := range metricsOf(t, running, name) {
		if strings.HasPrefix(sample, "guideway_connections{") && value != 0 {
			t.Errorf("%s is %v", sample, value)
		}
	}
	if err := running.KillForwarder(name); err != nil {
		t.Fatal(err)
	}
	if err := running.WaitReady(t.Context(), readyMax); err != nil {
		t.Fatal(err)
	}
	goOn(t, conversations)
	weights := running.Weights()
	weights[running.Backends()[2]] = 1 // the spare
	if err := running.SetWeights(t.Context(), weights); err != nil {
		t.Fatal(err)
	}
	waitForShares(t, running, name)
	goOn(t, conversations)
	moved := movedAway(t, running, name, conversations)
	// A third moves. 60 flows scatter by 3.7 around their 20.
	if moved < 4 || moved > 36 {
		t.Errorf("%d of %d connections were in buckets that moved", moved, len(conversations))
	}
	checkAtRest(t, running)
}

// checkAgentsCount: each agent says to the controller how many of the conversations
// live at its backend, and is heard.
func checkAgentsCount(t *testing.T, running *hosts.Lab, name string, conversations []conversation) {
	t.Helper()
	lives := map[string]int{}
	for _, c := range conversations {
		lives[c.backend]++
	}
	controller := net.JoinHostPort(running.Network.LoadBalancers[0].Address(0).String(), "9475")
	eventually(t, 15*time.Second, "agents report the connections", func() error {
		heard, err := running.ControllerMetrics(t.Context(), name)
		if err != nil {
			return err
		}
		for i, n := range running.Network.Backends {
			said := agentMetricsOf(t, running, i)[fmt.Sprintf("guideway_agent_connections{controller=%q}", controller)]
			_, isHeard := heard[fmt.Sprintf("guideway_agent_state_timestamp_seconds{backend=%q}", n.Name)]
			if want := lives[n.Name]; int(said) != want || isHeard != (want > 0) {
				return fmt.Errorf("%s: the agent reports %v of %d connections, heard: %v", n.Name, said, want, isHeard)
			}
		}
		for _, result := range []string{"forged", "malformed", "other_key", "replayed", "rate_limited"} {
			if n := heard[fmt.Sprintf("guideway_agent_messages_total{result=%q}", result)]; n > 0 {
				return fmt.Errorf("%v messages are %s", n, result)
			}
		}
		return nil
	})
}

// goOn with each conversation, at the backend at which it began.
func goOn(t *testing.T, conversations []conversation) {
	t.Helper()
	for _, c := range conversations {
		if err := c.transfer(1000, 5*time.Second); err != nil {
			t.Errorf("the connection of %s to %s: %v", c.client(), c.backend, err)
		}
	}
}

// movedAway counts the conversations whose packets a load balancer now sends to
// another backend first.
func movedAway(t *testing.T, running *hosts.Lab, name string, conversations []conversation) (moved int) {
	t.Helper()
	client, connection, err := running.Forwarder(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	for _, c := range conversations {
		flow := &forwarderv1.FlowKey{
			Protocol: tcp, Source: c.client().Addr().String(), SourcePort: uint32(c.client().Port()),
			Destination: c.server().Addr().String(), DestinationPort: uint32(c.server().Port()),
		}
		told, err := client.Explain(t.Context(), &forwarderv1.ExplainRequest{Flow: flow})
		if err != nil {
			t.Fatal(err)
		}
		if told.Mode != "stateless" || told.Tracked != nil {
			t.Fatalf("the flow of %s: mode %s, tracked %v", c.client(), told.Mode, told.Tracked)
		}
		if told.Backend != c.backend {
			moved++
		}
	}
	return moved
}

// waitForShares that are even, as moves bring them about step by step.
func waitForShares(t *testing.T, running *hosts.Lab, name string) {
	t.Helper()
	var shares map[string]int
	for range 100 {
		shares = sharesOfBuckets(t, running, name)
		isEven := len(shares) == len(running.Backends())
		for _, share := range shares {
			isEven = isEven && (share == 1365 || share == 1366)
		}
		if isEven {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("buckets by backend: %v", shares)
}

// sharesOfBuckets of the echo service's backends.
func sharesOfBuckets(t *testing.T, running *hosts.Lab, name string) map[string]int {
	t.Helper()
	plan, err := running.Plan(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	shares := map[string]int{}
	for _, service := range plan.GetServices() {
		if service.GetName() != "echo" {
			continue
		}
		buckets := service.GetBucketMap()
		for _, backend := range buckets.GetByBucket() {
			shares[buckets.Backends[backend]]++
		}
	}
	return shares
}
