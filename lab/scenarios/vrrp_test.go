package scenarios_test

// Two load balancers, two backends and a client on one segment, without a router: the
// programs as they are installed, VIPs owned by VRRP, under load while the owner dies.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/load"
)

// VIPs: by hash the first and the second are in different groups.
var segmentVIPs = []netip.Addr{netip.MustParseAddr("10.9.0.200"), netip.MustParseAddr("10.9.0.201"), netip.MustParseAddr("fd09::200")}

const segmentConfig = `
machines: [{name: lb-1, addresses: [10.9.0.1, "fd09::1"]}, {name: lb-2, addresses: [10.9.0.2, "fd09::2"]}]
cluster: {name: segment}
services:
- {name: one, vips: [{address: 10.9.0.200, ports: [7000], protocol: tcp}, {address: "fd09::200", ports: [7000], protocol: tcp}], pools: [all]}
- {name: two, vips: [{address: 10.9.0.201, ports: [7000], protocol: tcp}], pools: [all]}
pools: [{name: all, health_checks: [echo], backends: [{name: be-1, address: 10.9.0.3}, {name: be-2, address: 10.9.0.4}]}]
health_checks: [{name: echo, tcp: {port: 7000}, interval: 200ms, timeout: 150ms, rise: 1, fall: 20}]
forwarder: {interfaces: [{name: eth0}]}
vrrp: {interface: eth0}
`

// vrrpSegment of hosts at a switch, by number: 1 and 2 load balancers, 3 and 4 backends, 5 the client.
type vrrpSegment struct {
	t         *testing.T
	bin, home string
	running   map[string]*exec.Cmd
	loads     int
}

const segmentClient = 5

func newVRRPSegment(t *testing.T) *vrrpSegment {
	t.Helper()
	s := &vrrpSegment{t: t, bin: needLab(t), home: t.TempDir(), running: map[string]*exec.Cmd{}}
	timeLab(t)
	s.netns(0)
	s.ip(0, "link add name bridge0 type bridge", "link set bridge0 up")
	for number := 1; number <= segmentClient; number++ {
		s.plugIn(number)
	}
	t.Cleanup(s.end) // before the namespaces go
	if err := os.WriteFile(s.path("config.yaml"), []byte(segmentConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, number := range []int{3, 4} {
		s.startBackend(number)
	}
	for _, number := range []int{1, 2} {
		s.startMachine(number)
	}
	return s
}

func (s *vrrpSegment) path(name string) string { return filepath.Join(s.home, name) }

func (s *vrrpSegment) name(number int) string {
	return fmt.Sprintf("gw-test-vrrp-%d-%d.%d", number, os.Getpid(), number)
}

func (s *vrrpSegment) netns(number int) {
	s.t.Helper()
	if err := topology.Run(s.t.Context(), "", "ip", "netns", "add", s.name(number)); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = topology.Run(context.Background(), "", "ip", "netns", "del", s.name(number)) })
	settings := []string{"ipv6/conf/all/accept_dad=0", "ipv6/conf/default/accept_dad=0", "ipv4/conf/all/rp_filter=0", "ipv4/conf/default/rp_filter=0"}
	if err := topology.SetSysctls(s.name(number), settings); err != nil {
		s.t.Fatal(err)
	}
}

func (s *vrrpSegment) ip(number int, lines ...string) {
	s.t.Helper()
	if err := topology.IPBatch(s.t.Context(), s.name(number), lines); err != nil {
		s.t.Fatal(err)
	}
}

func (s *vrrpSegment) plugIn(number int) {
	s.t.Helper()
	s.netns(number)
	mtu := 1600 // room for tunnels
	if number == segmentClient {
		mtu = 1500
	}
	s.ip(0, fmt.Sprintf("link add port-%d mtu 1600 type veth peer name eth0 mtu %d address 02:00:00:00:00:%02d netns %s", number, mtu, number, s.name(number)),
		fmt.Sprintf("link set port-%d master bridge0 up", number))
	s.ip(number, "link set lo up", "link set eth0 up", fmt.Sprintf("addr add 10.9.0.%d/24 dev eth0", number), fmt.Sprintf("addr add fd09::%d/64 dev eth0 nodad", number))
}

// start a program of ours in a host, until it is killed.
func (s *vrrpSegment) start(number int, what, program string, args ...string) {
	s.t.Helper()
	log, err := os.Create(s.path(fmt.Sprintf("%d-%s.log", number, what)))
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	command := exec.Command("ip", append([]string{"netns", "exec", s.name(number), filepath.Join(s.bin, program)}, args...)...)
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.running[fmt.Sprintf("%d-%s", number, what)] = command
}

func (s *vrrpSegment) signal(number int, what string, signal syscall.Signal) {
	s.t.Helper()
	if err := s.running[fmt.Sprintf("%d-%s", number, what)].Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
}

func (s *vrrpSegment) kill(number int, what string) {
	s.t.Helper()
	s.signal(number, what, syscall.SIGKILL)
	_ = s.running[fmt.Sprintf("%d-%s", number, what)].Wait() // killed
}

func (s *vrrpSegment) end() {
	for _, command := range s.running {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
	if !s.t.Failed() {
		return
	}
	logs, _ := filepath.Glob(s.path("*.log"))
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		s.t.Logf("%s:\n%s", filepath.Base(log), text[max(0, len(text)-2000):])
	}
}

func (s *vrrpSegment) startBackend(number int) {
	s.t.Helper()
	for _, vip := range segmentVIPs {
		s.ip(number, fmt.Sprintf("addr add %s dev lo", netip.PrefixFrom(vip, vip.BitLen())))
	}
	if err := topology.SetSysctls(s.name(number), []string{"ipv4/conf/all/arp_ignore=1", "ipv4/conf/all/arp_announce=2"}); err != nil {
		s.t.Fatal(err)
	}
	agent := fmt.Sprintf("interface: eth0\nload_balancers: [10.9.0.1, 10.9.0.2, \"fd09::1\", \"fd09::2\"]\nvips: [%s, %s, %q]\n", segmentVIPs[0], segmentVIPs[1], segmentVIPs[2])
	if err := os.WriteFile(s.path(fmt.Sprintf("agent-%d.yaml", number)), []byte(agent), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.start(number, "agent", "guideway-agent", "--config", s.path(fmt.Sprintf("agent-%d.yaml", number)))
	s.start(number, "echo", "guideway-lab", hosts.HelperVerb, "echo", "--name", fmt.Sprintf("be-%d", number-2), "--tcp", ":7000")
}

func (s *vrrpSegment) runDir(number int) string { return s.path(fmt.Sprintf("run-%d", number)) }

// startMachine with its three processes; what they kept is still there.
func (s *vrrpSegment) startMachine(number int) {
	s.t.Helper()
	for _, folder := range []string{"run", "forwarder", "speaker", "controller"} {
		if err := os.MkdirAll(s.path(fmt.Sprintf("%s-%d", folder, number)), 0o700); err != nil {
			s.t.Fatal(err)
		}
	}
	state := func(of string) string { return s.path(fmt.Sprintf("%s-%d", of, number)) }
	s.startForwarder(number)
	s.start(number, "speaker", "guideway", "speaker", "--run-dir", s.runDir(number), "--state-dir", state("speaker"))
	s.start(number, "controller", "guideway", "controller", "--machine", fmt.Sprintf("lb-%d", number), "--config", s.path("config.yaml"),
		"--run-dir", s.runDir(number), "--state-dir", state("controller"))
}

func (s *vrrpSegment) startForwarder(number int) {
	s.start(number, "forwarder", "guideway-forwarder", "--run-dir", s.runDir(number), "--state-dir", s.path(fmt.Sprintf("forwarder-%d", number)))
}

// owned VIPs of a machine, by its own word.
func (s *vrrpSegment) owned(number int) (vips []string, err error) {
	command := exec.CommandContext(s.t.Context(), filepath.Join(s.bin, "guideway"), "show", "vrrp", "-o", "json", "--run-dir", s.runDir(number))
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("show vrrp on lb-%d: %w: %s", number, err, strings.TrimSpace(errs.String()))
	}
	var shown struct {
		Routers []struct {
			State string
			VIPs  []string
		}
	}
	if err := json.Unmarshal(out.Bytes(), &shown); err != nil {
		return nil, err
	}
	for _, r := range shown.Routers {
		if r.State == "active" {
			vips = append(vips, r.VIPs...)
		}
	}
	return vips, nil
}

// bothOwn: each machine has its group, and both groups are complete.
func (s *vrrpSegment) bothOwn() {
	s.t.Helper()
	eventually(s.t, 60*time.Second, "both machines own VIPs", func() error {
		one, err := s.owned(1)
		two, err2 := s.owned(2)
		if err = errors.Join(err, err2); err != nil {
			return err
		}
		// One of IPv6 is the virtual router's link-local address.
		if len(one) == 0 || len(two) == 0 || len(one)+len(two) != len(segmentVIPs)+1 {
			return fmt.Errorf("lb-1 owns %v, lb-2 %v", one, two)
		}
		return nil
	})
}

// underLoad happens something that takes VIPs from lb-1.
func (s *vrrpSegment) underLoad(happen func()) {
	s.t.Helper()
	s.bothOwn()
	// Each load from addresses of its own: the ports of the one before wait for their time.
	s.loads++
	sources := []string{fmt.Sprintf("10.9.0.%d", 100+s.loads), fmt.Sprintf("fd09::%d", 100+s.loads)}
	s.ip(segmentClient, fmt.Sprintf("addr add %s/24 dev eth0", sources[0]), fmt.Sprintf("addr add %s/64 dev eth0 nodad", sources[1]))
	spec := load.Spec{Seed: 5, Connections: 90, MessageRate: 20, TimeLimit: 10 * time.Second,
		Sources: []netip.Addr{netip.MustParseAddr(sources[0]), netip.MustParseAddr(sources[1])}}
	for _, vip := range segmentVIPs {
		spec.Echo = append(spec.Echo, netip.AddrPortFrom(vip, 7000))
	}
	remote, err := load.StartRemote(exec.CommandContext(s.t.Context(), "ip", "netns", "exec", s.name(segmentClient), filepath.Join(s.bin, "guideway-lab"), hosts.HelperVerb, "load"), spec)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = remote.Abandon() }) // of one that was stopped: nothing to do
	eventually(s.t, 20*time.Second, "all connections are open", func() error {
		report, err := remote.Progress()
		if err == nil && report.Open != spec.Connections {
			err = fmt.Errorf("%+v", report)
		}
		return err
	})
	before, _ := s.owned(1)
	happen()
	eventually(s.t, 20*time.Second, "lb-2 owns what lb-1 did", func() error {
		owned, err := s.owned(2)
		for _, vip := range before {
			if err == nil && !strings.Contains(strings.Join(owned, " "), vip) {
				err = fmt.Errorf("lb-2 owns %v, and lb-1 owned %v", owned, before)
			}
		}
		return err
	})
	time.Sleep(time.Second)
	report, err := remote.Stop()
	if err != nil {
		s.t.Fatal(err)
	}
	if report.Broken > 0 || report.Messages == 0 {
		s.t.Errorf("%d of %d connections broken, %d messages: %+v", report.Broken, report.Connections, report.Messages, report.Failures)
	}
	s.t.Logf("%d messages, the longest pause of one was %v", report.Messages, report.LongestPause)
}

func TestVRRP(t *testing.T) {
	s := newVRRPSegment(t)
	t.Run("the owners forwarder is killed", func(t *testing.T) {
		s.t = t
		s.underLoad(func() { s.kill(1, "forwarder") })
		s.startForwarder(1)
	})
	t.Run("the owners forwarder hangs", func(t *testing.T) {
		s.t = t
		s.underLoad(func() { s.signal(1, "forwarder", syscall.SIGSTOP) })
		s.signal(1, "forwarder", syscall.SIGCONT)
	})
	t.Run("the owners link is cut", func(t *testing.T) {
		s.t = t
		s.underLoad(func() { s.ip(0, "link set port-1 down") })
		s.ip(0, "link set port-1 up")
	})
	t.Run("the owner dies", func(t *testing.T) {
		s.t = t
		s.underLoad(func() {
			for _, what := range []string{"speaker", "controller", "forwarder"} {
				s.kill(1, what)
			}
		})
		s.startMachine(1)
		s.bothOwn()
	})
	s.t = t
}
