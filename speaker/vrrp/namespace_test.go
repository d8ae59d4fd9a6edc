package vrrp

// Machines in network namespaces on two switches with a cable between, a client on the
// second; each machine's speaker is a process of its own, which can be killed and stopped.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/speaker/vrrp/election"
	"github.com/guideway/guideway/speaker/vrrp/packet"
)

// desiredVariable has a process be a machine's speaker, with this desired state.
const desiredVariable = "GUIDEWAY_TEST_VRRP_DESIRED"

func TestMain(m *testing.M) {
	if desired := os.Getenv(desiredVariable); desired != "" {
		if err := speak(desired); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// speak until SIGTERM. Each line of standard input is a desired state; each of standard
// output is what is shown, as it changes.
func speak(first string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	s, err := New(slog.New(slog.NewTextHandler(os.Stderr, nil)), func(election.Action) {})
	if err != nil {
		return err
	}
	set := func(text []byte) error {
		var desired Desired
		if err := json.Unmarshal(text, &desired); err != nil {
			return err
		}
		return s.Set(desired)
	}
	if err := set([]byte(first)); err != nil {
		return err
	}
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			if err := set(lines.Bytes()); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}()
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		case <-time.After(5 * time.Millisecond):
		}
		if text, err := json.Marshal(s.Shown()); err == nil {
			fmt.Println(string(text))
		}
	}
	return nil
}

var (
	vip4    = netip.MustParseAddr("203.0.113.1")
	vip6    = netip.MustParseAddr("2001:db8:113::1")
	gateway = netip.MustParseAddr("192.0.2.254")
)

const vrid = 51

// network of a test.
type network struct {
	t        *testing.T
	switches string
	client   *host
}

// host has eth0, 192.0.2.N and fe80::N, at port-N of the switches.
type host struct {
	t         *testing.T
	namespace string
	number    byte
	network   *network
	mac       packet.MAC
}

var namespaces atomic.Int32

func whyNoNamespaces() string {
	if os.Getuid() != 0 {
		return "needs root, to make network namespaces"
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return "needs ip (Debian package iproute2)"
	}
	return ""
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	if why := whyNoNamespaces(); why != "" {
		t.Skip(why)
	}
	n := &network{t: t, switches: namespace(t, "switches")}
	ip(t, n.switches,
		"link add first type bridge", "link add second type bridge",
		"link add cable-1 type veth peer name cable-2",
		"link set cable-1 master first", "link set cable-2 master second",
		"link set first up", "link set second up", "link set cable-1 up", "link set cable-2 up",
	)
	n.client = n.host(254, "second")
	ip(t, n.client.namespace, "route add 203.0.113.0/24 dev eth0", "route add 2001:db8:113::/64 dev eth0")
	return n
}

func namespace(t *testing.T, role string) string {
	t.Helper()
	name := fmt.Sprintf("gw-test-%d-%d-%s", os.Getpid(), namespaces.Add(1), role)
	run(t, "ip", "netns", "add", name)
	t.Cleanup(func() { _ = topology.Run(context.Background(), "", "ip", "netns", "del", name) })
	settings := []string{"ipv6/conf/all/accept_dad=0", "ipv6/conf/default/accept_dad=0", "ipv6/conf/default/accept_ra=0"}
	if err := topology.SetSysctls(name, settings); err != nil {
		t.Fatal(err)
	}
	ip(t, name, "link set lo up")
	return name
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := topology.Output(t.Context(), "", name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func ip(t *testing.T, namespace string, lines ...string) {
	t.Helper()
	if err := topology.IPBatch(t.Context(), namespace, lines); err != nil {
		t.Fatal(err)
	}
}

// host number N, at a port of the first or second switch.
func (n *network) host(number byte, at string) *host {
	n.t.Helper()
	h := &host{t: n.t, network: n, number: number, namespace: namespace(n.t, fmt.Sprintf("host-%d", number)), mac: packet.MAC{2, 0, 0, 0, 0, number}}
	h.plugIn(at)
	return h
}

func (h *host) plugIn(at string) {
	h.t.Helper()
	ip(h.t, h.network.switches,
		fmt.Sprintf("link add port-%d type veth peer name eth0 address %s netns %s", h.number, h.mac, h.namespace),
		fmt.Sprintf("link set port-%d master %s up", h.number, at),
	)
	ip(h.t, h.namespace,
		"link set eth0 addrgenmode none up",
		fmt.Sprintf("addr add 192.0.2.%d/24 dev eth0", h.number),
		fmt.Sprintf("addr add fe80::%d/64 dev eth0 nodad", h.number),
		fmt.Sprintf("addr add 2001:db8:2::%d/64 dev eth0 nodad", h.number),
	)
	// The switch forwards from a port once it has seen its carrier, up to a second later.
	port := fmt.Sprintf("port-%d", h.number)
	if !eventually(5*time.Second, func() bool {
		return strings.Contains(run(h.t, "ip", "-n", h.network.switches, "-d", "link", "show", port), "state forwarding")
	}) {
		h.t.Fatalf("%s does not forward", port)
	}
}

// machine is a host with a speaker.
type machine struct {
	*host
	process *exec.Cmd
	input   *json.Encoder
	desired Desired

	mu    sync.Mutex
	shown Shown
	ended chan struct{}
}

// machine number N with that priority, and VIPs of both families.
func (n *network) machine(number, priority byte, at string, change func(*Desired)) *machine {
	n.t.Helper()
	m := &machine{host: n.host(number, at), desired: Desired{Interface: "eth0", Config: election.Config{
		Interval: 100 * time.Millisecond,
		Groups:   []election.Group{{VRID: vrid, Priority: priority, VIPs: []netip.Addr{vip4, vip6}}},
	}}}
	if change != nil {
		change(&m.desired)
	}
	m.start()
	return m
}

func (m *machine) start() {
	m.t.Helper()
	text, err := json.Marshal(m.desired)
	if err != nil {
		m.t.Fatal(err)
	}
	m.process = exec.Command("nice", "-n", "-10", os.Args[0], "-test.run=^$") // as its unit has it
	m.process.Env = append(os.Environ(), desiredVariable+"="+string(text))
	m.process.Stderr = m.t.Output()
	input, err := m.process.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	m.input = json.NewEncoder(input)
	output, err := m.process.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := topology.Inside(m.namespace, m.process.Start); err != nil {
		m.t.Fatal(err)
	}
	ended := make(chan struct{})
	m.ended = ended
	go m.read(bufio.NewScanner(output), ended)
	m.t.Cleanup(m.kill)
}

func (m *machine) read(lines *bufio.Scanner, ended chan struct{}) {
	defer close(ended)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var shown Shown
		if json.Unmarshal(lines.Bytes(), &shown) == nil {
			m.mu.Lock()
			m.shown = shown
			m.mu.Unlock()
		}
	}
}

func (m *machine) signal(signal os.Signal) {
	m.t.Helper()
	if err := m.process.Process.Signal(signal); err != nil {
		m.t.Fatal(err)
	}
}

// kill it, if it lives.
func (m *machine) kill() {
	_ = m.process.Process.Kill()
	<-m.ended
	_ = m.process.Wait()
}

// awaitBackupOf an owner of that priority, whose packets are understood for a second.
func (m *machine) awaitBackupOf(priority uint8) {
	m.t.Helper()
	m.await(election.Backup)
	time.Sleep(time.Second)
	if !m.isIn(election.Backup) || m.now().Malformed != ([packet.ReasonsCount]uint64{}) {
		m.t.Fatalf("%+v", m.now())
	}
	for _, r := range m.now().Routers {
		if r.OwnerPriority != priority {
			m.t.Errorf("%+v", r)
		}
	}
}

func (m *machine) now() Shown {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.shown
}

// processorTime that it took so far, in ticks of 10 ms (proc(5): utime, stime).
func (m *machine) processorTime() time.Duration {
	m.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.process.Process.Pid))
	if err != nil {
		m.t.Fatal(err)
	}
	var user, system int64
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')'):]))
	_, _ = fmt.Sscan(fields[12]+" "+fields[13], &user, &system)
	return time.Duration(user+system) * time.Second / 100
}

// set another desired state.
func (m *machine) set(change func(*Desired)) {
	m.t.Helper()
	change(&m.desired)
	if err := m.input.Encode(m.desired); err != nil {
		m.t.Fatal(err)
	}
}

// isIn that state, in both families.
func (m *machine) isIn(state election.State) bool {
	routers := m.now().Routers
	for _, r := range routers {
		if r.State != state {
			return false
		}
	}
	return len(routers) == 2
}

func (m *machine) await(state election.State) {
	m.t.Helper()
	if !eventually(5*time.Second, func() bool { return m.isIn(state) }) {
		m.signal(unix.SIGQUIT) // it says what it does
		<-m.ended
		m.t.Fatalf("machine %d is not %v: %+v", m.number, state, m.now())
	}
}

// eventually counts the time in which this process runs: where the machine stands still for
// seconds, nobody else could do anything either.
func eventually(limit time.Duration, holds func() bool) bool {
	const pause = 2 * time.Millisecond
	for range limit / pause {
		if holds() {
			return true
		}
		time.Sleep(pause)
	}
	return false
}

// ask for the VIPs, as whoever sends to them does, and say what MAC addresses they have.
func (h *host) ask() {
	h.t.Helper()
	err := topology.Inside(h.namespace, func() error {
		for _, vip := range []netip.Addr{vip4, vip6} {
			conn, err := net.Dial("udp", netip.AddrPortFrom(vip, 9).String())
			if err != nil {
				return err
			}
			_, _ = conn.Write([]byte("x")) // an answer may be that nobody has it
			_ = conn.Close()
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// neighbors are the entries of the VIPs.
func (h *host) neighbors() map[netip.Addr]string {
	h.t.Helper()
	var entries []struct {
		Dst, Lladdr string
		State       []string
	}
	if err := json.Unmarshal([]byte(run(h.t, "ip", "-j", "-n", h.namespace, "neigh", "show", "dev", "eth0")), &entries); err != nil {
		h.t.Fatal(err)
	}
	found := map[netip.Addr]string{}
	for _, e := range entries {
		found[netip.MustParseAddr(e.Dst)] = e.Lladdr + " " + strings.Join(e.State, " ")
	}
	return found
}

func (h *host) reaches(m *machine) bool {
	h.ask()
	entries := h.neighbors()
	return strings.HasPrefix(entries[vip4], m.mac.String()) && strings.HasPrefix(entries[vip6], m.mac.String())
}

// seen is a frame that a capture saw, as the kernel timed it.
type seen struct {
	at     time.Time
	sender packet.MAC
	ipv6   bool
	// Of an advertisement.
	advertises bool
	vrid       uint8
	priority   uint8
	// Of ARP or neighbour discovery.
	arp      *packet.ARP
	neighbor *packet.Neighbor
	toAll    bool
}

// capture of what a host's interface receives and sends.
type capture struct {
	fd    int
	ended chan struct{}
	mu    sync.Mutex
	seen  []seen
}

func (h *host) capture() *capture {
	h.t.Helper()
	c := &capture{ended: make(chan struct{})}
	err := topology.Inside(h.namespace, func() (err error) {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(bigEndian16(unix.ETH_P_ALL)))
		if err != nil {
			return err
		}
		timeout := unix.NsecToTimeval((20 * time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
			return err
		}
		return unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: bigEndian16(unix.ETH_P_ALL), Ifindex: link.Index})
	})
	if err != nil {
		h.t.Fatal(err)
	}
	stop := make(chan struct{})
	go c.read(stop)
	h.t.Cleanup(func() { close(stop); <-c.ended; _ = unix.Close(c.fd) })
	return c
}

func (c *capture) read(stop chan struct{}) {
	defer close(c.ended)
	frame, control := make([]byte, 4096), make([]byte, 128)
	for {
		select {
		case <-stop:
			return
		default:
		}
		n, controlBytes, _, _, err := unix.Recvmsg(c.fd, frame, control, 0)
		if err != nil {
			continue // no frame for 20 ms
		}
		if s, ok := see(bytes.Clone(frame[:n])); ok {
			_, data, _, _ := unix.ParseOneSocketControlMessage(control[:controlBytes])
			s.at = time.Unix(int64(binary.NativeEndian.Uint64(data)), int64(binary.NativeEndian.Uint64(data[8:])))
			c.mu.Lock()
			c.seen = append(c.seen, s)
			c.mu.Unlock()
		}
	}
}

// datagrams of IPv4 that the interface received since this was called last: VIPs are no
// addresses here, so no socket has them.
func (h *host) datagrams() (count func() int) {
	h.t.Helper()
	fd := -1
	err := topology.Inside(h.namespace, func() (err error) {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(bigEndian16(unix.ETH_P_IP))); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian16(unix.ETH_P_IP), Ifindex: link.Index})
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = unix.Close(fd) })
	return func() (count int) {
		ip := make([]byte, 20)
		for {
			n, _, err := unix.Recvfrom(fd, ip, 0)
			if err != nil {
				return count
			}
			if n == len(ip) && ip[9] == unix.IPPROTO_UDP {
				count++
			}
		}
	}
}

// sender of datagrams to the VIP of IPv4.
func (h *host) sender() (send func()) {
	h.t.Helper()
	var conn net.Conn
	err := topology.Inside(h.namespace, func() (err error) {
		conn, err = net.Dial("udp", netip.AddrPortFrom(vip4, 9).String())
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	return func() { _, _ = conn.Write([]byte("x")) }
}

// see what a frame is, if it is of interest.
func see(frame []byte) (s seen, ok bool) {
	if len(frame) < 14+40 {
		frame = append(frame, make([]byte, 54)...)
	}
	s.sender, s.toAll = packet.MAC(frame[6:12]), frame[0]&1 == 1
	if a, err := packet.ParseARP(frame); err == nil {
		s.arp = &a
		return s, true
	}
	if n, err := packet.ParseNeighbor(frame); err == nil {
		s.neighbor, s.ipv6 = &n, true
		return s, true
	}
	a, _, err := packet.ParseIPv4(frame[14:])
	if err != nil {
		b := frame[14:]
		a, err = packet.ParseIPv6(b[40:], netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), int(b[7]))
		s.ipv6 = true
	}
	s.advertises, s.vrid, s.priority = err == nil, a.VRID, a.Priority
	return s, err == nil
}

func (c *capture) all() []seen {
	time.Sleep(30 * time.Millisecond) // what is underway
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// gap between the last advertisement of one machine, of a priority that is not 0 unless it
// resigns, and the first of the other after.
func (c *capture) gap(from, to *machine, ipv6, resigns bool) (gap time.Duration, ok bool) {
	var last, first time.Time
	for _, s := range c.all() {
		switch {
		case !s.advertises || s.ipv6 != ipv6:
		case s.sender == from.mac && (s.priority == 0) == resigns:
			last, first = s.at, time.Time{}
		case s.sender == to.mac && !last.IsZero() && first.IsZero():
			first = s.at
		}
	}
	return first.Sub(last), !last.IsZero() && !first.IsZero()
}

// withoutCapability runs on a thread of its own, which ends with it.
func withoutCapability(capability uint, do func()) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		err := unix.Capget(&header, &data[0])
		data[0].Effective &^= 1 << capability
		if err == nil {
			err = unix.Capset(&header, &data[0])
		}
		if err == nil {
			do()
		}
		result <- err
	}()
	return <-result
}

// enter a namespace, on a thread that ends there.
func enter(namespace string) error {
	fd, err := unix.Open("/run/netns/"+namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Setns(fd, unix.CLONE_NEWNET)
}

// send frames.
func (h *host) send(frames ...[]byte) {
	h.t.Helper()
	err := topology.Inside(h.namespace, func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, frame := range frames {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: bigEndian16(uint16(frame[12])<<8 | uint16(frame[13]))}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}

// flood a VRRP message, with that TTL.
func (h *host) flood(ttl int, message []byte, times int) {
	h.t.Helper()
	err := topology.Inside(h.namespace, func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, packet.ProtocolVRRP)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, ttl); err != nil {
			return err
		}
		if err := unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(link.Index)}); err != nil {
			return err
		}
		for range times {
			if err := unix.Sendto(fd, message, 0, &unix.SockaddrInet4{Addr: packet.GroupIPv4.As4()}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
}
