package check

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Dialer reaches one target of probes: to which address, and from where. What
// is zero is left to the kernel.
type Dialer struct {
	// The target's address: the backend's own; through a tunnel, the VIP.
	Address netip.Addr
	// Source address (not valid: any) and source port (0: any).
	From netip.AddrPort
	// The mark (SO_MARK) of the packets, for rules of routing. Needs CAP_NET_RAW
	// (Linux 5.17) or CAP_NET_ADMIN.
	Mark uint32
	// TCP connections end by RST. None stays in TIME_WAIT, so that the source port
	// can be used again at once.
	Reset bool
}

// Dial connects to a port of the target; network is "tcp" or "udp". Reads and
// writes of the connection end with the context, at its deadline too.
func (d Dialer) Dial(ctx context.Context, network string, port uint16) (net.Conn, error) {
	dialer := net.Dialer{
		LocalAddr: d.local(network),
		KeepAlive: -1, // a probe ends before the first would be sent
		Control:   d.control,
	}
	conn, err := dialer.DialContext(ctx, network, d.hostPort(port))
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok && d.Reset {
		if err := tcp.SetLinger(0); err != nil {
			conn.Close()
			return nil, fmt.Errorf("set SO_LINGER: %w", err)
		}
	}
	return endWith(ctx, conn), nil
}

// hostPort of the target, as a Host header and the like have it too.
func (d Dialer) hostPort(port uint16) string {
	return net.JoinHostPort(d.Address.String(), strconv.Itoa(int(port)))
}

// local is nil where the kernel chooses all of it.
func (d Dialer) local(network string) net.Addr {
	switch {
	case d.From == netip.AddrPort{}:
		return nil
	case network == "udp":
		return net.UDPAddrFromAddrPort(d.From)
	}
	return net.TCPAddrFromAddrPort(d.From)
}

func (d Dialer) control(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(fd uintptr) { failed = d.setOptions(int(fd)) })
	return cmp.Or(err, failed)
}

func (d Dialer) setOptions(fd int) error {
	if d.From.Port() != 0 {
		// Connections to other addresses may have the same port at once.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return fmt.Errorf("set SO_REUSEADDR: %w", err)
		}
	}
	if d.Mark != 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(d.Mark)); err != nil {
			return fmt.Errorf("set SO_MARK, which needs CAP_NET_RAW or CAP_NET_ADMIN: %w", err)
		}
	}
	return nil
}

// endWith makes the connection's reads and writes end with the context.
func endWith(ctx context.Context, conn net.Conn) net.Conn {
	return &boundConn{conn, setDeadlines(ctx, conn)}
}

// boundConn is a connection that a context ends.
type boundConn struct {
	net.Conn
	release func() bool
}

func (c *boundConn) Close() error {
	c.release()
	return c.Conn.Close()
}

// endPacketsWith does the same for a socket without a connection.
func endPacketsWith(ctx context.Context, conn net.PacketConn) net.PacketConn {
	return &boundPacketConn{conn, setDeadlines(ctx, conn)}
}

type boundPacketConn struct {
	net.PacketConn
	release func() bool
}

func (c *boundPacketConn) Close() error {
	c.release()
	return c.PacketConn.Close()
}

// setDeadlines to the context's, and to a past one when it ends.
func setDeadlines(ctx context.Context, conn interface{ SetDeadline(time.Time) error }) (release func() bool) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // fails on a closed one only
	}
	return context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
}
