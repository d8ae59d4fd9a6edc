package tracer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// KernelLink sends by a raw socket, so that headers leave as they were built,
// and receives by a UDP socket. Close it.
type KernelLink struct {
	raw     int
	vip     netip.Addr
	reports *net.UDPConn
}

// Open readies to send packets to vip, and listens at that port for reports
// sent to an address of receiver's family; port 0: any.
//
// It listens at every address, as the receiver that load balancers are told
// may be one that a NAT translates.
func Open(vip netip.Addr, receiver netip.AddrPort) (*KernelLink, error) {
	raw, err := openRaw(vip)
	if err != nil {
		return nil, err
	}
	network, any := "udp4", netip.IPv4Unspecified()
	if !receiver.Addr().Is4() {
		network, any = "udp6", netip.IPv6Unspecified()
	}
	reports, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(any, receiver.Port())))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for reports: %w", err), unix.Close(raw))
	}
	return &KernelLink{raw: raw, vip: vip, reports: reports}, nil
}

// openRaw gives a socket for packets that bring their IP header.
func openRaw(vip netip.Addr) (int, error) {
	family, level, option := unix.AF_INET, unix.IPPROTO_IP, unix.IP_HDRINCL
	if !vip.Is4() {
		family, level, option = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_HDRINCL
	}
	socket, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if errors.Is(err, os.ErrPermission) {
		return 0, errors.New("open raw socket: this user may not send packets with headers of its own: run as root, or with CAP_NET_RAW (`sudo guideway trace ...`)")
	}
	if err != nil {
		return 0, fmt.Errorf("open raw socket: %w", err)
	}
	if err := unix.SetsockoptInt(socket, level, option, 1); err != nil {
		return 0, errors.Join(fmt.Errorf("open raw socket: bring headers: %w", err), unix.Close(socket))
	}
	return socket, nil
}

// Port at which reports are expected.
func (l *KernelLink) Port() uint16 {
	return l.reports.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// Send sends an IP packet as it is; the kernel finds the way.
func (l *KernelLink) Send(packet []byte) error {
	var to unix.Sockaddr = &unix.SockaddrInet6{Addr: l.vip.As16()}
	if l.vip.Is4() {
		to = &unix.SockaddrInet4{Addr: l.vip.As4()}
	}
	err := unix.Sendto(l.raw, packet, 0, to)
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return fmt.Errorf("no route to %s: run it where clients are, or where packets go by way of the router that spreads over the load balancers (%w)", l.vip, err)
	}
	return err
}

// Receive waits for one datagram.
func (l *KernelLink) Receive(ctx context.Context) ([]byte, error) {
	past := time.Unix(1, 0)
	stop := context.AfterFunc(ctx, func() { _ = l.reports.SetReadDeadline(past) }) // a closed socket wakes up anyway
	defer stop()
	bytes := make([]byte, 2048) // a report has at most 1024
	n, err := l.reports.Read(bytes)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return bytes[:n], err
}

// Close closes both sockets.
func (l *KernelLink) Close() error {
	return errors.Join(unix.Close(l.raw), l.reports.Close())
}

// SourceTowards is the address that the kernel would send from.
func SourceTowards(vip netip.Addr) (netip.Addr, error) {
	// Connecting a UDP socket sends nothing; any port will do.
	connection, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(vip, 9)))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("find a source address towards %s: %w: give --src and --receiver, and a route to it", vip, err)
	}
	defer connection.Close()
	return connection.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
