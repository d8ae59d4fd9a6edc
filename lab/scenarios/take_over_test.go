package scenarios_test

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/load"
)

// loadForTakeOver: a load of connections that last, and of requests, from a block
// of client addresses that no other load of the lab has.
func loadForTakeOver(t *testing.T, running *hosts.Lab, block, connections int) *load.Remote {
	t.Helper()
	addresses, err := running.Network.AddClientAddresses(t.Context(), block, 4)
	if err != nil {
		t.Fatal(err)
	}
	spec := load.Spec{
		Seed: 11, Sources: addresses, Connections: connections, MessageRate: 10, FreshRate: 100,
		KeepAliveConnections: 20, KeepAliveRate: 200, TimeLimit: 10 * time.Second,
	}
	if emulated {
		spec.MessageRate, spec.FreshRate, spec.KeepAliveRate = 1, 10, 20 // what it can do besides labs' programs
	}
	for _, vip := range topology.EchoVIPs {
		spec.Echo = append(spec.Echo, netip.AddrPortFrom(vip, topology.EchoPort))
	}
	for _, vip := range topology.WebVIPs {
		spec.Web = append(spec.Web, netip.AddrPortFrom(vip, topology.HTTPPort))
	}
	remote, err := load.StartRemote(running.LoadCommand(t.Context()), spec)
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		report, err := remote.Progress()
		if err != nil || report.Broken > 0 || time.Now().After(deadline) {
			t.Fatalf("the load does not begin: %+v, %v", report, err)
		}
		if report.Open == connections {
			return remote
		}
	}
}

// keepEyeOnRoutes until stopped; a next hop that goes away fails the test, but for that of a
// machine that is slow, whose name stop returns.
func keepEyeOnRoutes(t *testing.T, running *hosts.Lab) (stop func() (left string)) {
	t.Helper()
	router, err := running.Network.OpenRouter()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	left := ""
	go func() {
		defer close(ended)
		_, _ = router.Watch(ctx, func(routes topology.Routes) bool {
			for vip, hops := range routes {
				if len(hops) == len(running.LoadBalancers()) {
					continue
				}
				isSlow := func(machine string) bool { return running.IsSlow(ctx, machine) }
				if slow := slices.IndexFunc(running.LoadBalancers(), isSlow); slow >= 0 {
					left = running.LoadBalancers()[slow]
					t.Logf("the router left %s, which is slow", left)
					break
				}
				t.Errorf("the route to %s has %d next hops", vip, len(hops))
			}
			return false
		})
	}()
	return func() string { cancel(); <-ended; router.Close(); return left }
}

func TestTakeOver(t *testing.T) {
	o := optionsAlone(t, "takeover")
	running := up(t, o)
	t.Run("under_load_while_backends_change", func(t *testing.T) { takeOverUnderLoad(t, running) })
	t.Run("after_a_kill_the_tables_are_there", func(t *testing.T) { tablesAfterAKill(t, running) })
}

// Each load balancer's forwarder is replaced twice, and at the same moment a
// backend comes or is drained: every connection has to be remembered.
func takeOverUnderLoad(t *testing.T, running *hosts.Lab) {
	stopWatch := keepEyeOnRoutes(t, running)
	remote := loadForTakeOver(t, running, 1, 200)
	time.Sleep(2 * time.Second)
	weights := running.Weights()
	changes := []func(){
		func() { weights[running.Backends()[2]] = 1 }, // the spare
		func() { weights[running.Backends()[0]] = 0 },
	}
	for _, change := range changes {
		change()
		changed := make(chan error, 1)
		next := maps.Clone(weights)
		go func() { changed <- running.SetWeights(t.Context(), next) }()
		for _, name := range running.LoadBalancers() {
			note, err := running.TakeOverForwarder(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if note == nil || len(note.GetEmptied()) > 0 {
				t.Fatalf("%s: taken over %+v", name, note)
			}
			t.Logf("%s: no frame was taken from the devices for %d us", name, note.GetPauseUs())
		}
		if err := <-changed; err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
	}
	if slow := stopWatch(); slow == "" {
		stopUnbroken(t, remote)
	} else if report, err := remote.Stop(); err != nil || report.Messages == 0 {
		t.Errorf("%+v, %v", report, err)
	} else {
		// While a change is on its way, the machines' tables differ.
		t.Logf("%s had no processor time and the router moved its connections: %d of %d broke, %d of %d requests failed",
			slow, report.Broken, report.Connections, report.Failed, report.Requests)
	}
	nothingLost(t, running)
	theKernelSends(t, running)
	if err := running.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// nothingLost: no frame found a ring full or went without a verdict. One that is being
// decided on, as a router's now and then, has none yet.
func nothingLost(t *testing.T, running *hosts.Lab) {
	t.Helper()
	for _, name := range running.LoadBalancers() {
		var samples map[string]float64
		eventually(t, 5*time.Second, "all frames have their verdict", func() (err error) {
			samples, err = running.Metrics(t.Context(), name)
			if err != nil {
				return err
			}
			if unaccounted := samples["guideway_unaccounted_packets"]; unaccounted != 0 {
				return fmt.Errorf("%s: %v have none", name, unaccounted)
			}
			return nil
		})
		for sample, value := range samples {
			lost := strings.HasPrefix(sample, "guideway_rx_lost_packets_total") || strings.HasPrefix(sample, "guideway_drop_packets_total")
			if lost && value != 0 {
				t.Errorf("%s: %s is %v", name, sample, value)
			}
		}
	}
}

// theKernelSends: the kernel flow cache of each load balancer was used, which no client
// would notice.
func theKernelSends(t *testing.T, running *hosts.Lab) {
	t.Helper()
	for _, name := range running.LoadBalancers() {
		samples, err := running.Metrics(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if sent := samples["guideway_kernel_cache_packets_total"]; sent == 0 {
			t.Errorf("%s: the kernel flow cache sent nothing", name)
		}
	}
}

func tablesAfterAKill(t *testing.T, running *hosts.Lab) {
	vip := topology.EchoVIPs[0]
	var conversations []conversation
	for range 20 {
		conversations = append(conversations, converse(t, running, vip))
	}
	// A packet a tick after the first confirms a connection.
	time.Sleep(300 * time.Millisecond)
	for _, c := range conversations {
		if err := c.transfer(1000, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range running.LoadBalancers() {
		before := tracked(t, running, name, conversations)
		if len(before) == 0 {
			t.Errorf("%s tracks none of %d connections", name, len(conversations))
		}
		if err := running.KillForwarder(name); err != nil {
			t.Fatal(err)
		}
		if err := running.WaitReady(t.Context(), readyMax); err != nil {
			t.Fatal(err)
		}
		after := tracked(t, running, name, conversations)
		for client, backend := range before {
			if after[client] != backend {
				t.Errorf("%s: the connection of %s was at %s, and after the kill at %q", name, client, backend, after[client])
			}
		}
		status, err := running.ForwarderStatus(t.Context(), name)
		if err != nil || status.GetTakenOver() != nil {
			t.Errorf("%s: a kill is no take-over: %+v, %v", name, status.GetTakenOver(), err)
		}
	}
	for _, c := range conversations {
		if err := c.transfer(1000, 10*time.Second); err != nil {
			t.Errorf("the connection of %s: %v", c.client(), err)
		}
	}
}

// tracked are the backends of those conversations that a load balancer knows.
func tracked(t *testing.T, running *hosts.Lab, name string, conversations []conversation) map[netip.AddrPort]string {
	t.Helper()
	found := map[netip.AddrPort]string{}
	for _, c := range conversations {
		entries, err := running.Tracked(t.Context(), name, tcp, c.client(), c.server())
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			found[c.client()] = entry.GetBackend()
		}
	}
	return found
}
