package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/lab/traffic/flood"
)

// Encapsulator is what routers of large clusters have in front of their load
// balancers (Maglev paper, 4.2): it wraps every packet to a VIP in GRE, and
// sends all of them to one load balancer.
//
//	client ─► router ─► host ─► its TUN device ─► GRE ─► router ─► load balancer
type Encapsulator struct {
	tun    *os.File
	socket *flood.Socket
	work   sync.WaitGroup
	// Sent packets.
	sent atomic.Uint64
}

// Encapsulate starts one on the host. Stop it.
func (lab *Lab) Encapsulate(ctx context.Context, host *topology.Host, from, to netip.Addr) (*Encapsulator, error) {
	e := &Encapsulator{}
	if err := topology.Inside(host.Node.Namespace, func() (err error) {
		if e.tun, err = openTUN("vips"); err != nil {
			return err
		}
		e.socket, err = flood.Open()
		return err
	}); err != nil {
		return nil, fmt.Errorf("encapsulate on %s: %w", host.Node.Name, err)
	}
	lines := []string{"link set vips up mtu 1500"}
	for _, prefix := range lab.Network.VIPPrefixes() {
		lines = append(lines, fmt.Sprintf("route add %s dev vips", prefix))
	}
	err := errors.Join(
		topology.SetSysctls(host.Node.Namespace, []string{"ipv4/ip_forward=1", "ipv6/conf/all/forwarding=1"}),
		topology.IPBatch(ctx, host.Node.Namespace, lines))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("encapsulate on %s: %w", host.Node.Name, err), e.Stop())
	}
	e.work.Go(func() { e.run(lab.Network.VIPPrefixes(), from, to) })
	return e, nil
}

// run until the device is closed.
func (e *Encapsulator) run(vips []netip.Prefix, from, to netip.Addr) {
	buffer := make([]byte, 2048)
	for {
		n, err := e.tun.Read(buffer)
		if err != nil {
			return
		}
		// The kernel looks for neighbours and routers on any new device.
		isVIP := func(prefix netip.Prefix) bool { return prefix.Contains(destination(buffer[:n])) }
		if !slices.ContainsFunc(vips, isVIP) {
			continue
		}
		// A packet that cannot be sent is a lost one, as networks have them.
		if e.socket.Send(encapsulated(from, to, buffer[:n])) == nil {
			e.sent.Add(1)
		}
	}
}

// encapsulated in GRE, over IPv6 with the options that Linux's ip6gre writes.
func encapsulated(from, to netip.Addr, packet []byte) []byte {
	if to.Is4() {
		return flood.GRE(from, to, 0, packet)
	}
	return flood.GREBehindOptions(from, to, packet)
}

// destination of an IP packet.
func destination(packet []byte) (address netip.Addr) {
	switch {
	case len(packet) >= 40 && packet[0]>>4 == 6:
		address, _ = netip.AddrFromSlice(packet[24:40])
	case len(packet) >= 20 && packet[0]>>4 == 4:
		address, _ = netip.AddrFromSlice(packet[16:20])
	}
	return address
}

// Sent packets so far.
func (e *Encapsulator) Sent() uint64 { return e.sent.Load() }

// Stop it; its device goes, and with it the host's routes to VIPs.
func (e *Encapsulator) Stop() error {
	err := e.tun.Close()
	e.work.Wait()
	e.socket.Close()
	if err != nil {
		return fmt.Errorf("stop encapsulator: %w", err)
	}
	return nil
}

// openTUN makes a device for IP packets in this thread's namespace.
func openTUN(name string) (*os.File, error) {
	// Not blocking, so that closing ends a read.
	file, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(file, unix.TUNSETIFF, request)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make TUN device %s: %w", name, err), unix.Close(file))
	}
	return os.NewFile(uintptr(file), "/dev/net/tun"), nil
}
