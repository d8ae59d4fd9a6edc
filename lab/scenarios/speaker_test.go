package scenarios_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// Promised in docs/operate.md of a forwarder that is dead or hangs.
const withdrawnWithin = 300 * time.Millisecond

// The three processes of a load balancer live apart: routes follow the forwarder
// and the speaker, not the controller. TestFaults has one that is away under load.
func TestSpeaker(t *testing.T) {
	o := optionsAlone(t, "speaker")
	if nightly {
		o.LoadBalancers = 3
	}
	running := up(t, o)
	t.Run("without_a_controller_routes_follow_the_forwarder", func(t *testing.T) { forwarderAlone(t, running) })
	t.Run("a_thread_that_hangs_withdraws_the_routes", func(t *testing.T) {
		aHangingThreadWithdrawsTheRoutes(t, running, machineUnderTest, "worker-0", "slow-path", "worker-0", "slow-path")
	})
	t.Run("a_thread_that_waits_for_a_processor_withdraws_nothing", func(t *testing.T) {
		aStarvedThreadKeepsTheRoutes(t, running, o.RunDir, machineUnderTest)
	})
	t.Run("a_thread_that_follows_next_hops_and_hangs_makes_routes_worse", func(t *testing.T) {
		aHangingNextHopsThreadMakesTheRoutesWorse(t, running, o.RunDir, machineUnderTest)
	})
	t.Run("beside_many_busy_loops_routes_stay_and_a_hang_is_found", func(t *testing.T) { besideBusyLoops(t, running, o.RunDir) })
	t.Run("any_order_of_starts", func(t *testing.T) { anyOrder(t, running) })
	t.Run("each_pair_of_deaths_at_once", func(t *testing.T) { pairsOfDeaths(t, running) })
	t.Run("a_speaker_that_is_stopped_breaks_no_connection", func(t *testing.T) { speakerStopped(t, running) })
}

const machineUnderTest = "lb-2"

var errNotYet = errors.New("not yet")

// forwarderAlone: without its controller, a forwarder is withdrawn when it is
// killed or hangs, and announced when it is back.
func forwarderAlone(t *testing.T, running *hosts.Lab) {
	if err := running.Kill(machineUnderTest, "controller"); err != nil {
		t.Fatal(err)
	}
	gone := watchWithdrawal(t, running, machineUnderTest)
	began := time.Now()
	if err := running.Kill(machineUnderTest, "forwarder"); err != nil {
		t.Fatal(err)
	}
	checkWithdrawn(t, gone().Sub(began), "was killed")
	if err := running.StartForwarder(machineUnderTest); err != nil {
		t.Fatal(err)
	}
	waitAnnounced(t, running, machineUnderTest)

	gone = watchWithdrawal(t, running, machineUnderTest)
	began = time.Now()
	resume, err := running.Hang(machineUnderTest, "forwarder")
	if err != nil {
		t.Fatal(err)
	}
	checkWithdrawn(t, gone().Sub(began), "began to hang")
	if err := resume(); err != nil {
		t.Fatal(err)
	}
	waitAnnounced(t, running, machineUnderTest)
	backToNormal(t, running, "controller")
}

func checkWithdrawn(t *testing.T, took time.Duration, what string) {
	t.Helper()
	t.Logf("routes went %v after the forwarder %s", took, what)
	if took > withdrawnWithin {
		t.Errorf("routes went %v after the forwarder %s", took, what)
	}
}

func anyOrder(t *testing.T, running *hosts.Lab) {
	orders := [][]string{{"controller", "speaker", "forwarder"}, {"forwarder", "speaker", "controller"}}
	if nightly {
		orders = append(orders, []string{"controller", "forwarder", "speaker"}, []string{"speaker", "controller", "forwarder"},
			[]string{"speaker", "forwarder", "controller"}, []string{"forwarder", "controller", "speaker"})
	}
	for _, order := range orders {
		if err := running.Kill(machineUnderTest, order...); err != nil {
			t.Fatal(err)
		}
		waitWithdrawn(t, running, machineUnderTest)
		for _, what := range order {
			if err := start(running, what); err != nil {
				t.Fatal(err)
			}
			time.Sleep(200 * time.Millisecond)
		}
		t.Log(strings.Join(order, ", "))
		backToNormal(t, running)
	}
}

func pairsOfDeaths(t *testing.T, running *hosts.Lab) {
	for _, pair := range [][]string{{"controller", "speaker"}, {"controller", "forwarder"}, {"speaker", "forwarder"}} {
		t.Log(strings.Join(pair, ", "))
		if err := running.Kill(machineUnderTest, pair...); err != nil {
			t.Fatal(err)
		}
		waitWithdrawn(t, running, machineUnderTest)
		// What is left goes on by what is on disk: a controller is not needed.
		started := slices.DeleteFunc(slices.Clone(pair), func(what string) bool { return what == "controller" })
		for _, what := range started {
			if err := start(running, what); err != nil {
				t.Fatal(err)
			}
		}
		waitAnnounced(t, running, machineUnderTest)
		if slices.Contains(pair, "controller") {
			backToNormal(t, running, "controller")
		} else {
			backToNormal(t, running)
		}
	}
}

// speakerStopped: no connection breaks, since the other load balancer has the
// same tables.
func speakerStopped(t *testing.T, running *hosts.Lab) {
	var open []conversation
	for range 20 {
		open = append(open, converse(t, running, topology.EchoVIPs[0]))
	}
	if err := running.Stop(machineUnderTest, "speaker"); err != nil {
		t.Fatal(err)
	}
	waitWithdrawn(t, running, machineUnderTest)
	for _, c := range open {
		if err := c.transfer(10_000, 10*time.Second); err != nil {
			t.Errorf("a connection to %s: %v", c.backend, err)
		}
	}
	backToNormal(t, running, "speaker")
}

func start(running *hosts.Lab, what string) error {
	switch what {
	case "controller":
		return running.StartController(machineUnderTest)
	case "speaker":
		return running.StartSpeaker(machineUnderTest)
	}
	return running.StartForwarder(machineUnderTest)
}

// backToNormal starts what is still missing, and waits until all serve.
func backToNormal(t *testing.T, running *hosts.Lab, missing ...string) {
	t.Helper()
	for _, what := range missing {
		if err := start(running, what); err != nil {
			t.Fatal(err)
		}
	}
	if err := running.WaitReady(t.Context(), readyMax); err != nil {
		t.Fatal(err)
	}
}

func routerAnd(t *testing.T, running *hosts.Lab, name string) (*topology.Router, []netip.Addr) {
	t.Helper()
	router, err := running.Network.OpenRouter()
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := running.Network.Addresses(name)
	if err != nil {
		router.Close()
		t.Fatal(err)
	}
	return router, addresses
}

func waitAnnounced(t *testing.T, running *hosts.Lab, name string) {
	t.Helper()
	router, addresses := routerAnd(t, running, name)
	defer router.Close()
	eventually(t, 30*time.Second, "routes by "+name, func() error {
		routes, err := router.Routes()
		if err == nil && !routes.Via(addresses) {
			err = errNotYet
		}
		return err
	})
}

// watchWithdrawal begins to watch, and returns what waits for the moment of it.
func watchWithdrawal(t *testing.T, running *hosts.Lab, name string) (gone func() time.Time) {
	t.Helper()
	router, addresses := routerAnd(t, running, name)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	moment, began, failed := make(chan time.Time, 1), make(chan struct{}, 1), make(chan error, 1)
	go func() {
		at, err := router.Watch(ctx, func(routes topology.Routes) bool {
			select {
			case began <- struct{}{}:
			default:
			}
			return !routes.Via(addresses)
		})
		moment <- at
		failed <- err
	}()
	<-began
	return func() time.Time {
		t.Helper()
		defer cancel()
		defer router.Close()
		at := <-moment
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
		return at
	}
}
