package scenarios_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// Three load balancers and, on the router, fragments that do not follow their
// datagram: it spreads all but the first over the machines by chance.
func TestFragments(t *testing.T) {
	o := options(t, "fragments")
	o.LoadBalancers = 3
	running := up(t, o)
	if err := running.Network.RouteByMark(t.Context()); err != nil {
		t.Fatal(err)
	}
	// Each has its way and its machine in charge by chance: that these are never the
	// same happens once in 17,000 runs.
	sources, err := running.Network.AddClientAddresses(t.Context(), 1, 24)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("datagrams arrive whole wherever their fragments go", func(t *testing.T) {
		datagramsArriveWhole(t, running, sources[:16]) // eight of each family
	})
	for _, vip := range topology.EchoVIPs {
		t.Run("a trace shows the way of fragments to "+vip.String(), func(t *testing.T) {
			fragmentsShowTheirWay(t, running, vip, sources)
		})
	}
	for _, vip := range topology.WebVIPs {
		t.Run("a trace shows the way of packets to "+vip.String(), func(t *testing.T) {
			marksShowTheWay(t, running, vip)
		})
		t.Run("worthless marks for "+vip.String()+" get nothing", func(t *testing.T) {
			worthlessMarksGetNothing(t, running, vip)
		})
	}
	t.Run("a flood of marks gets few reports", func(t *testing.T) {
		floodOfMarksGetsFewReports(t, running, topology.WebVIPs[0])
	})
	t.Run("with a peer dead those begun after its death do", func(t *testing.T) {
		t.Cleanup(func() { restore(t, running) })
		waitPeers(t, running)
		died, err := running.KillLoadBalancer("lb-3")
		if err != nil {
			t.Fatal(err)
		}
		waitWithdrawn(t, running, "lb-3")
		waitPeers(t, running)
		t.Logf("its peers knew after %v", time.Since(died).Round(time.Millisecond))
		datagramsArriveWhole(t, running, sources[:16]) // eight of each family
	})
}

// datagramsArriveWhole, all of them, over the load balancers that run.
func datagramsArriveWhole(t *testing.T, running *hosts.Lab, sources []netip.Addr) {
	t.Helper()
	waitPeers(t, running)
	machines := running.Running()
	if err := running.Network.SpreadFragments(t.Context(), machines...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := running.Network.FilterRouter(cleanUp(t), ""); err != nil {
			t.Error(err)
		}
	})
	before := metrics(t, running)
	defer func() { tellLosses(t, running, before) }()
	const perSource = 12
	served := askFragmented(t, running, sources, perSource)

	// be-1 and be-2 hold half each of 192 flows: one of them has none once in
	// 2^191 runs.
	if served["be-1"] == 0 || served["be-2"] == 0 {
		t.Errorf("backends served %v", served)
	}
	if t.Failed() {
		return
	}
	counts, err := running.Network.RouterCounters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range machines {
		// 192 datagrams with 5 later fragments or more: each machine gets its
		// share of 960 by chance.
		if counts[strings.ReplaceAll(name, "-", "_")] < 100 {
			t.Errorf("non-first fragments went to %v", counts)
		}
	}
	after := metrics(t, running)
	first := grew(t, before, after, `guideway_fragments_total{action="first"}`)
	redirected := grew(t, before, after, `guideway_fragments_total{action="redirected"}`)
	if first != float64(len(sources)*perSource) || redirected < 100 {
		t.Errorf("%v first fragments were selected for, %v were redirected", first, redirected)
	}
	if expired := grew(t, before, after, `guideway_fragments_total{action="expired"}`); expired != 0 {
		t.Errorf("%v fragments waited in vain", expired)
	}
	t.Logf("router's counts %v, redirected %v, held %v", counts, redirected, grew(t, before, after, `guideway_fragments_total{action="held"}`))
	checkAccounted(t, running)
}

// askFragmented sends datagrams of several sizes from each source, a few at
// once, and counts who sent them back.
func askFragmented(t *testing.T, running *hosts.Lab, sources []netip.Addr, perSource int) map[string]int {
	t.Helper()
	served := map[string]int{}
	var mutex sync.Mutex
	var work sync.WaitGroup
	for _, source := range sources {
		work.Go(func() {
			vip := topology.EchoVIPs[0]
			if source.Is6() {
				vip = topology.EchoVIPs[1]
			}
			for i := range perSource {
				size := 8_000 + 1_111*(i%8)
				backend, err := askDatagram(t, running, source, vip, size)
				if err != nil {
					t.Errorf("%d bytes from %s to %s: %v", size, source, vip, err)
					return
				}
				mutex.Lock()
				served[backend]++
				mutex.Unlock()
			}
		})
	}
	work.Wait()
	return served
}

// waitWithdrawn until the router has no route by that load balancer.
func waitWithdrawn(t *testing.T, running *hosts.Lab, name string) {
	t.Helper()
	router, err := running.Network.OpenRouter()
	if err != nil {
		t.Fatal(err)
	}
	defer router.Close()
	addresses, err := running.Network.Addresses(name)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 15*time.Second, "routes by "+name+" are gone", func() error {
		routes, err := router.Routes()
		if err == nil && routes.Via(addresses) {
			err = fmt.Errorf("%v", routes)
		}
		return err
	})
}
