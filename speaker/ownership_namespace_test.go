package speaker

// Two machines and a client on a switch, each in a network namespace: who owns a VIP
// follows the forwarders. The rest of what VRRP does is tried in vrrp.

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/routes"
	"github.com/guideway/guideway/lab/topology"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

var (
	ownedVIP4 = netip.MustParseAddr("203.0.113.10")
	ownedVIP6 = netip.MustParseAddr("2001:db8:113::10")
)

// segment of two machines and a client.
type segment struct {
	t                *testing.T
	switches, client string
	machines         []*machine
	names            []string
	processes        []*exec.Cmd
}

func newSegment(t *testing.T) *segment {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	s := &segment{t: t}
	s.switches = s.namespace("switch")
	s.ip(s.switches, "link add bridge type bridge", "link set bridge up")
	s.client = s.host(9)
	s.ip(s.client, "route add 203.0.113.0/24 dev eth0", "route add 2001:db8:113::/64 dev eth0")
	for number := range 2 {
		s.machines, s.names = append(s.machines, newMachine(t)), append(s.names, fmt.Sprintf("lb-%d", number+1))
		host := s.host(number + 1)
		s.ip(host, "route add default via 192.0.2.9")
		s.start(host, s.machines[number])
	}
	return s
}

func (s *segment) namespace(role string) string {
	s.t.Helper()
	name := fmt.Sprintf("gw-test-speaker-%s-%d.0", role, os.Getpid())
	if err := topology.Run(s.t.Context(), "", "ip", "netns", "add", name); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = topology.Run(context.Background(), "", "ip", "netns", "del", name) })
	if err := topology.SetSysctls(name, []string{"ipv6/conf/all/accept_dad=0", "ipv6/conf/default/accept_dad=0"}); err != nil {
		s.t.Fatal(err)
	}
	return name
}

func (s *segment) ip(namespace string, lines ...string) {
	s.t.Helper()
	if err := topology.IPBatch(s.t.Context(), namespace, lines); err != nil {
		s.t.Fatal(err)
	}
}

// host of that number, in its address and its MAC address.
func (s *segment) host(number int) string {
	s.t.Helper()
	name := s.namespace(fmt.Sprintf("host-%d", number))
	s.ip(s.switches, fmt.Sprintf("link add port-%d type veth peer name eth0 address 02:00:00:00:00:%02d netns %s", number, number, name), fmt.Sprintf("link set port-%d master bridge up", number))
	s.ip(name, "link set lo up", "link set eth0 addrgenmode none up", fmt.Sprintf("addr add 192.0.2.%d/24 dev eth0", number),
		fmt.Sprintf("addr add fe80::%d/64 dev eth0 nodad", number), fmt.Sprintf("addr add 2001:db8:2::%d/64 dev eth0 nodad", number))
	return name
}

func (s *segment) start(namespace string, m *machine) {
	s.t.Helper()
	process := exec.Command("ip", "netns", "exec", namespace, os.Args[0])
	process.Env = append(os.Environ(), runDirVariable+"="+m.run)
	process.Stderr = s.t.Output()
	if err := process.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.processes = append(s.processes, process)
	s.t.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGTERM)
		_ = process.Wait()
	})
}

// desired of a machine, whose two VIPs are one group.
func (s *segment) desired(number int) *speakerv1.Desired {
	vips := []netip.Addr{ownedVIP4, ownedVIP6}
	c := &config.Config{
		Machine: config.Machine{Name: s.names[number], Shard: "default"}, Peers: []config.Peer{{Name: s.names[1-number]}},
		VRRP: &config.VRRP{Interface: "eth0", Interval: 100 * time.Millisecond, Groups: []config.VRRPGroup{{VRID: 7, VIPs: vips}}},
	}
	var wanted []brain.Route
	service := config.Service{Name: "web", Shard: "default"}
	for _, vip := range vips {
		service.VIPs = append(service.VIPs, config.VIP{Address: vip, Protocol: config.ProtocolTCP})
		wanted = append(wanted, brain.Route{Prefix: netip.PrefixFrom(vip, vip.BitLen()), NextHop: vip})
	}
	c.Services = []config.Service{service}
	return routes.Encode(brain.Desired{Config: c, Routes: wanted, RoutesPlan: 7}, time.Now())
}

// owner that the client's neighbour tables have for both VIPs; empty: not one and the same.
func (s *segment) owner() string {
	owner := ""
	for _, vip := range []netip.Addr{ownedVIP4, ownedVIP6} {
		_ = exec.Command("ip", "netns", "exec", s.client, "bash", "-c", fmt.Sprintf("echo >/dev/udp/%s/9", vip)).Run() // asks for it
		out, _ := exec.Command("ip", "-n", s.client, "neigh", "show", vip.String()).Output()
		fields := strings.Fields(string(bytes.TrimSpace(out)))
		at := 0
		for i, field := range fields {
			if field == "lladdr" {
				at = i + 1
			}
		}
		if at == 0 || owner != "" && owner != fields[at] {
			return ""
		}
		owner = fields[at]
	}
	return owner
}

func (s *segment) untilOwner(what string, number int) {
	s.t.Helper()
	want, found := fmt.Sprintf("02:00:00:00:00:%02d", number+1), ""
	for deadline := time.Now().Add(20 * time.Second); found != want; found = s.owner() {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: the client has %q for the VIPs, and not %s", what, found, want)
		}
	}
}

func isActive(state *speakerv1.State) bool {
	active := 0
	for _, r := range state.GetVrrp() {
		if r.GetState() == "active" {
			active++
		}
	}
	return active == 2
}

func isBackup(state *speakerv1.State) bool {
	return len(state.GetVrrp()) == 2 && state.GetVrrp()[0].GetState() == "backup" && state.GetVrrp()[1].GetState() == "backup"
}

func TestWhoOwnsVIPsFollowsTheForwarders(t *testing.T) {
	s := newSegment(t)
	for number, m := range s.machines {
		m.until("it answers", func(*speakerv1.State) bool { return true })
		m.forwarder(wellAt(7))
		sink, _ := m.controller()
		sink.Set(s.desired(number), false)
	}
	first := 0
	s.machines[0].until("decided", func(state *speakerv1.State) bool { return isActive(state) || isBackup(state) })
	time.Sleep(time.Second) // and settled
	s.machines[0].until("decided", func(state *speakerv1.State) bool {
		first = 1
		if isActive(state) {
			first = 0
		}
		return isActive(state) || isBackup(state)
	})
	second := 1 - first
	s.machines[second].until("the other waits", isBackup)
	s.untilOwner("at first", first)
	s.machines[first].until("its gateway answers", func(state *speakerv1.State) bool {
		probes := state.GetVrrpProbes()
		return len(probes) == 1 && probes[0].GetAddress() == "192.0.2.9" && probes[0].GetGateway() && probes[0].GetAnswers() && probes[0].GetAnsweredAt() != nil
	})

	s.machines[first].stopForwarder()
	s.machines[second].until("the forwarder of the owner is dead", isActive)
	s.machines[first].until("it says why", func(state *speakerv1.State) bool {
		return state.GetVrrp()[0].GetState() == "initialize" && strings.Contains(state.GetVrrp()[0].GetReason(), "forwarder: ")
	})
	s.untilOwner("after its death", second)

	s.machines[first].forwarder(wellAt(7))
	s.machines[first].until("it is back", isActive)
	s.untilOwner("when it is back", first)

	_ = s.processes[first].Process.Kill()
	s.machines[second].until("the speaker of the owner is killed", isActive)
	s.untilOwner("after the kill", second)
}
