package scenarios_test

import (
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Stateless services on one machine: no connection is tracked, so a forwarder
// that is killed loses none; and when a backend comes, exactly the connections
// break whose buckets it gets.
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
	goOn(t, running, name, conversations)
	for sample, value := range metricsOf(t, running, name) {
		if strings.HasPrefix(sample, "guideway_connections{") && value != 0 {
			t.Errorf("%s is %v", sample, value)
		}
	}
	if err := running.KillForwarder(name); err != nil {
		t.Fatal(err)
	}
	if err := running.WaitReady(t.Context(), 30*time.Second); err != nil {
		t.Fatal(err)
	}
	if broken := goOn(t, running, name, conversations); broken != 0 {
		t.Errorf("%d of %d connections broke by a killed forwarder", broken, len(conversations))
	}
	weights := running.Weights()
	weights[running.Backends()[2]] = 1 // the spare
	if err := running.SetWeights(t.Context(), weights); err != nil {
		t.Fatal(err)
	}
	moved := sharesOfBuckets(t, running, name)
	broken := goOn(t, running, name, conversations)
	t.Logf("%d of %d connections broke; buckets by backend: %v", broken, len(conversations), moved)
	// A third moves. 60 flows scatter by 3.7 around their 20.
	if broken < 4 || broken > 36 {
		t.Errorf("%d of %d connections were in buckets that moved", broken, len(conversations))
	}
	checkAtRest(t, running)
}

// goOn with each conversation: it does if and only if the forwarder says that
// its packets go where it began. It returns how many broke.
func goOn(t *testing.T, running *hosts.Lab, name string, conversations []conversation) (broken int) {
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
		stays := told.Backend == c.backend
		switch err := c.transfer(1000, 5*time.Second); {
		case err != nil && stays:
			t.Errorf("the connection of %s to %s: %v", c.client(), c.backend, err)
		case err == nil && !stays:
			t.Errorf("the connection of %s to %s goes on, its packets go to %s", c.client(), c.backend, told.Backend)
		}
		if !stays {
			broken++
		}
	}
	return broken
}

// sharesOfBuckets of the echo service's backends, which are alike.
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
		if service.GetMode() != planv1.Mode_MODE_STATELESS {
			t.Errorf("the mode is %s", service.GetMode())
		}
		buckets := service.GetBucketMap()
		for _, backend := range buckets.GetByBucket() {
			shares[buckets.Backends[backend]]++
		}
	}
	for backend, share := range shares {
		if share < 1365 || share > 1366 {
			t.Errorf("%s has %d of 4096 buckets", backend, share)
		}
	}
	if len(shares) != len(running.Backends()) {
		t.Errorf("buckets by backend: %v", shares)
	}
	return shares
}
