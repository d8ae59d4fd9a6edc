package scenarios_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/load"
)

// Two load balancers, two backends and a client on one segment, without a router and without
// tunnels: VIPs are owned by VRRP, under load while their owner cannot serve them any more.
func TestVRRP(t *testing.T) {
	o := optionsAlone(t, "vrrp")
	o.Router, o.Encap = topology.NoRouter, "l2"
	running := up(t, o)
	machine := running.Network.LoadBalancers[0]
	owns(t, running, 2)
	nothing := func() error { return nil }
	for block, test := range []struct {
		name   string
		happen func() (undo func() error, err error)
	}{
		{"the owners forwarder is killed", func() (func() error, error) {
			return nothing, running.Kill(machine.Name, "forwarder")
		}},
		{"the owners forwarder hangs", func() (func() error, error) {
			return running.Hang(machine.Name, "forwarder")
		}},
		{"the owners link is cut", func() (func() error, error) {
			up := func() error { return running.Network.SetLink(t.Context(), machine, "up") }
			return up, running.Network.SetLink(t.Context(), machine, "down")
		}},
		{"the owner dies", func() (func() error, error) {
			_, err := running.KillLoadBalancer(machine.Name)
			return nothing, err
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			undo := leavesTheOwner(t, running, machine.Name, block+1, test.happen)
			if err := errors.Join(undo(), running.Restore(t.Context())); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Run("the machines are split and heal", func(t *testing.T) {
		underLoad(t, running, 5, func() {
			for _, isSplit := range []bool{true, false} {
				if err := running.Network.Split(t.Context(), running.Network.LoadBalancers, isSplit); err != nil {
					t.Fatal(err)
				}
				owns(t, running, map[bool]int{true: 4, false: 2}[isSplit])
				time.Sleep(time.Second) // what clients send meanwhile
			}
		})
	})
}

// owns each load balancer the VIPs of so many virtual routers, of four. The controller hears of
// it a moment later than clients do.
func owns(t *testing.T, running *hosts.Lab, virtualRouters int) {
	t.Helper()
	for _, machine := range running.Network.LoadBalancers {
		eventually(t, 5*time.Second, fmt.Sprintf("%s owns %d of 4", machine.Name, virtualRouters), func() error {
			shown, err := on(t, running, machine.Name, "show", "vrrp")
			if err == nil && (strings.Count(shown, "this machine") != virtualRouters || strings.Count(shown, "backup") != 4-virtualRouters) {
				err = fmt.Errorf("show vrrp:\n%s", shown)
			}
			return err
		})
	}
}

// leavesTheOwner, all of a load's traffic, when something happens; no connection breaks.
func leavesTheOwner(t *testing.T, running *hosts.Lab, owner string, block int, happen func() (undo func() error, err error)) (undo func() error) {
	t.Helper()
	var took time.Duration
	report := underLoad(t, running, block, func() {
		gone := watchWithdrawal(t, running, owner)
		happened := time.Now()
		var err error
		if undo, err = happen(); err != nil {
			t.Fatal(err)
		}
		took = gone().Sub(happened)
		time.Sleep(time.Second)
	})
	t.Logf("traffic left %s after %v; the longest pause of a message was %v", owner, took, report.LongestPause)
	return undo
}

// underLoad of long-lived connections to VIPs of each load balancer; none breaks.
func underLoad(t *testing.T, running *hosts.Lab, block int, during func()) load.Report {
	t.Helper()
	addresses, err := running.Network.AddClientAddresses(t.Context(), block, 1)
	if err != nil {
		t.Fatal(err)
	}
	spec := load.Spec{Seed: 5, Sources: addresses, Connections: 90, MessageRate: 20, TimeLimit: 10 * time.Second}
	for _, vip := range topology.EchoVIPs { // each load balancer owns one
		spec.Echo = append(spec.Echo, netip.AddrPortFrom(vip, topology.EchoPort))
	}
	remote, err := load.StartRemote(running.LoadCommand(t.Context()), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = remote.Abandon() }) // of one that was stopped: nothing to do
	eventually(t, 20*time.Second, "all connections are open", func() error {
		report, err := remote.Progress()
		if err == nil && report.Open != spec.Connections {
			err = fmt.Errorf("%+v", report)
		}
		return err
	})
	during()
	report, err := remote.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if report.Broken > 0 || report.Messages == 0 {
		t.Errorf("%d of %d connections broken, %d messages: %+v", report.Broken, report.Connections, report.Messages, report.Failures)
	}
	return report
}
