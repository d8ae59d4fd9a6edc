package diagnose

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/guideway/guideway/cli/clitest"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// probesHost drops answers from some addresses, by some interfaces.
type probesHost struct {
	fakeHost
	drops       map[string]error // `203.0.113.10 eth1`
	first, last int
}

func (h probesHost) accepts(_ context.Context, _ netip.AddrPort, from netip.Addr, device string) error {
	return h.drops[from.String()+" "+device]
}

func (h probesHost) localPorts() (int, int, error) { return h.first, h.last, nil }

func TestDoctorFindsWhatDropsHealthChecksThroughTheTunnel(t *testing.T) {
	vip := func(address string) *planv1.Vip { return &planv1.Vip{Target: &planv1.Vip_Address{Address: address}} }
	running := &planv1.Plan{
		Machine:  &planv1.Machine{Addresses: []string{"10.0.0.1", "2001:db8::1"}},
		Services: []*planv1.Service{{Vips: []*planv1.Vip{vip("203.0.113.10"), vip("2001:db8:a::10")}}, {Vips: []*planv1.Vip{vip("203.0.113.10")}}},
		Probing: &planv1.Probing{
			Ports:    &planv1.PortRange{First: 20000, Last: 32767},
			Assigned: []*planv1.ProbePort{{Port: 20007, Backend: "b"}},
		},
	}
	crossed := errors.New("Invalid cross-device link")
	for _, c := range []struct {
		name    string
		problem string
		host    probesHost
		want    []string
	}{
		{"well", "", probesHost{first: 32768, last: 60999}, []string{"ok probes leave by gw-probe, 40 sent; answers from 2 VIPs are taken"}},
		{"no device", "/dev/net/tun cannot be opened", probesHost{}, []string{"fail probes health checks through the tunnels cannot be sent by gw-probe: /dev/net/tun"}},
		{"one interface of two takes them", "", probesHost{first: 32768, last: 60999, drops: map[string]error{"203.0.113.10 eth1": crossed}}, []string{"ok probes"}},
		{
			"rp_filter", "", probesHost{first: 32768, last: 60999, drops: map[string]error{"203.0.113.10 eth1": crossed, "203.0.113.10 eth2": crossed}},
			[]string{"fail probes the kernel drops answers from 203.0.113.10 to health checks through the tunnel (on eth1: Invalid cross-device link on eth2"},
		},
		{"ports", "", probesHost{first: 1024, last: 65000}, []string{"warn probes machine.probe_ports (20000-32767) overlaps net.ipv4.ip_local_port_range (1024-65000)", "ok probes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := diagnosis{host: c.host, running: running, status: &forwarderv1.GetStatusResponse{
				Devices:     []*forwarderv1.Device{{Interface: "eth1"}, {Interface: "eth2"}},
				ProbeDevice: &forwarderv1.ProbeDevice{Name: "gw-probe", Problem: c.problem, Packets: map[string]uint64{"sent": 40}},
			}}
			p.probes(t.Context())
			if len(p.findings) != len(c.want) {
				t.Fatalf("found %v", p.findings)
			}
			for i, f := range p.findings {
				if got := clitest.Fields(f.Grade + " " + f.What + " " + f.Text); !strings.HasPrefix(got, c.want[i]) {
					t.Errorf("found %q, want %q", got, c.want[i])
				}
			}
		})
	}
}
