package prober

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guideway/guideway/controller/check"
	"github.com/guideway/guideway/controller/compile"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

var tunnelled = compile.Probe{
	Address: netip.MustParseAddr("203.0.113.10"), Check: check.TCP{Port: 80}, Interval: time.Second, Timeout: 500 * time.Millisecond,
	Tunnel: compile.Tunnel{
		Backend: "b1", End: netip.MustParseAddr("10.1.0.1"), Encap: planv1.Encap_ENCAP_GUE,
		From: netip.MustParseAddrPort("10.0.0.1:20007"),
	},
}

func planned(port uint32, backend string, encap planv1.Encap) *planv1.Probing {
	return &planv1.Probing{
		Ports:    &planv1.PortRange{First: 20000, Last: 20009},
		Assigned: []*planv1.ProbePort{{Port: port, Backend: backend, Encap: encap}},
	}
}

// testTunnels has answers for the VIP and the backend's own address.
func testTunnels(vip, direct error) *tunnelProber {
	t := newTunnelProber()
	t.route = func(netip.Addr) (string, error) { return compile.ProbeDevice, nil }
	t.probe = func(ctx context.Context, p compile.Probe, dialer check.Dialer) (check.Answer, error) {
		failed := vip
		if dialer.Address == p.Tunnel.End {
			failed = direct
		}
		if failed == context.DeadlineExceeded {
			<-ctx.Done()
			return check.Answer{}, ctx.Err()
		}
		return check.Answer{Text: "connected"}, failed
	}
	return t
}

func TestAFailureThroughTheTunnelIsComparedWithADirectProbe(t *testing.T) {
	silence, refused := context.DeadlineExceeded, syscall.ECONNREFUSED
	for _, c := range []struct {
		name        string
		vip, direct error
		ok          bool
		want        string
	}{
		{"passes", nil, silence, true, "connected"},
		{"no tunnel end, or no VIP", silence, nil, false, "answers directly, not through the tunnel: no tunnel end, or the VIP 203.0.113.10 is not on lo (no answer within 500ms)"},
		{"dead", silence, silence, false, "no answer within 500ms through the tunnel to 203.0.113.10, and none directly"},
		{"does not listen at the VIP", refused, nil, false, "answers directly, not at the VIP 203.0.113.10: connection refused"},
		{"does not listen at all", refused, refused, false, "connection refused through the tunnel to 203.0.113.10, and none directly"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tunnels := testTunnels(c.vip, c.direct)
				tunnels.set(planned(20007, "b1", planv1.Encap_ENCAP_GUE))
				started := time.Now()
				result := tunnels.attempt(t.Context(), tunnelled)
				if result.OK != c.ok || result.Unsent || result.Reason != c.want {
					t.Errorf("got %+v, want %q", result, c.want)
				}
				if took := time.Since(started); took > tunnelled.Timeout+directTimeout {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

func TestWhatThisMachineCannotSendIsNoVerdict(t *testing.T) {
	gre := planv1.Encap_ENCAP_GRE
	for _, c := range []struct {
		name   string
		plan   *planv1.Probing
		device string
		failed error
		want   string
	}{
		{"no forwarder", nil, "gw-probe", nil, "no healthy forwarder"},
		{"the port is another backend's", planned(20007, "b2", planv1.Encap_ENCAP_GUE), "gw-probe", nil, "no healthy forwarder runs a plan"},
		{"the port is another encapsulation's", planned(20007, "b1", gre), "gw-probe", nil, "no healthy forwarder runs a plan"},
		{"another way", planned(20007, "b1", planv1.Encap_ENCAP_GUE), "eth1", nil, "would leave by eth1"},
		{"the VIP is ours", planned(20007, "b1", planv1.Encap_ENCAP_GUE), "lo", nil, "an address of this machine itself"},
		{"no capability", planned(20007, "b1", planv1.Encap_ENCAP_GUE), "gw-probe", syscall.EPERM, "CAP_NET_RAW"},
		{"no address", planned(20007, "b1", planv1.Encap_ENCAP_GUE), "gw-probe", syscall.EADDRNOTAVAIL, "machine.addresses"},
		{"a port in use", planned(20007, "b1", planv1.Encap_ENCAP_GUE), "gw-probe", syscall.EADDRINUSE, "machine.probe_ports"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tunnels := testTunnels(c.failed, nil)
				tunnels.route = func(netip.Addr) (string, error) { return c.device, nil }
				tunnels.set(c.plan)
				if result := tunnels.attempt(t.Context(), tunnelled); !result.Unsent || !strings.Contains(result.Reason, c.want) {
					t.Errorf("got %+v, want %q", result, c.want)
				}
			})
		})
	}
}

// A forwarder that died, or a port that became another backend's, while the probe
// was under way.
func TestAPlanThatChangesMeanwhileLeavesNoVerdict(t *testing.T) {
	for _, next := range []*planv1.Probing{nil, planned(20007, "b2", planv1.Encap_ENCAP_GUE)} {
		synctest.Test(t, func(t *testing.T) {
			tunnels := testTunnels(context.DeadlineExceeded, context.DeadlineExceeded)
			tunnels.set(planned(20007, "b1", planv1.Encap_ENCAP_GUE))
			time.AfterFunc(100*time.Millisecond, func() { tunnels.set(next) })
			if result := tunnels.attempt(t.Context(), tunnelled); !result.Unsent {
				t.Errorf("got %+v", result)
			}
		})
	}
}

func TestAProbeWaitsForThePlanThatHasItsTunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tunnels := testTunnels(nil, nil)
		time.AfterFunc(100*time.Millisecond, func() { tunnels.set(planned(20007, "b1", planv1.Encap_ENCAP_GUE)) })
		started := time.Now()
		tunnels.await(t.Context(), tunnelled)
		if took := time.Since(started); took != 100*time.Millisecond {
			t.Errorf("waited %v", took)
		}
		if result := tunnels.attempt(t.Context(), tunnelled); !result.OK {
			t.Errorf("got %+v", result)
		}
	})
}

func TestAProbeDoesNotWaitForAForwarderLongerThanItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tunnels := testTunnels(nil, nil)
		started := time.Now()
		tunnels.await(t.Context(), tunnelled)
		if took := time.Since(started); took != tunnelled.Timeout {
			t.Errorf("waited %v", took)
		}
	})
}

// The way vanishes with the forwarder: the kernel says so at once, and that is no
// fault of the backend's.
func TestAWayThatVanishesIsSeenWithTheFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tunnels := testTunnels(syscall.EHOSTUNREACH, nil)
		tunnels.set(planned(20007, "b1", planv1.Encap_ENCAP_GUE))
		var gone atomic.Bool
		tunnels.route = func(netip.Addr) (string, error) {
			if gone.Load() {
				return "", errors.New("no route to host")
			}
			return compile.ProbeDevice, nil
		}
		if result := tunnels.attempt(t.Context(), tunnelled); result.Unsent || result.OK {
			t.Errorf("the backend's network says that it is unreachable: %+v", result)
		}
		gone.Store(true)
		time.Sleep(routeAge / 2)
		if result := tunnels.attempt(t.Context(), tunnelled); !result.Unsent {
			t.Errorf("got %+v", result)
		}
	})
}

func TestAProbeGoesFromThePortAndEndsByReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tunnels := testTunnels(nil, nil)
		var used check.Dialer
		tunnels.probe = func(_ context.Context, _ compile.Probe, dialer check.Dialer) (check.Answer, error) {
			used = dialer
			return check.Answer{}, nil
		}
		tunnels.set(planned(20007, "b1", planv1.Encap_ENCAP_GUE))
		tunnels.attempt(t.Context(), tunnelled)
		want := check.Dialer{Address: tunnelled.Address, From: tunnelled.Tunnel.From, Mark: 26487, Reset: true}
		if used != want {
			t.Errorf("by %+v, want %+v", used, want)
		}
	})
}
