// Package echo is the server for long-lived connections: it states which backend it is, then
// returns what it receives.
//
// TCP: one line with the backend's name, then every byte in order. UDP: each datagram is
// returned with the name and a line feed before it.
//
// It does not know what the client sends: the client numbers and checks the data, so the server
// cannot hide a fault on the path.
package echo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Server of one backend.
type Server struct {
	// Name of the backend, without white space.
	Name string
	// TCP and UDP are addresses to listen on. UDP needs each address by
	// itself: on a wildcard, replies would not leave with the VIP as source.
	TCP []string
	UDP []string
}

// Run listens until the context ends, or one listener fails. When it returns, its
// connections are closed.
func (s Server) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	if err := s.listen(ctx, group); err != nil {
		group.Go(func() error { return err }) // ends what listens already
	}
	return group.Wait()
}

func (s Server) listen(ctx context.Context, group *errgroup.Group) error {
	for _, address := range s.TCP {
		listener, err := net.Listen("tcp", address)
		if err != nil {
			return fmt.Errorf("echo: %w", err)
		}
		context.AfterFunc(ctx, func() { _ = listener.Close() })
		group.Go(func() error { return unlessDone(ctx, s.serveTCP(ctx, listener)) })
	}
	for _, address := range s.UDP {
		connection, err := early.ListenPacket(ctx, "udp", address)
		if err != nil {
			return fmt.Errorf("echo: %w", err)
		}
		if err := makeRoom(connection); err != nil {
			return errors.Join(fmt.Errorf("echo: room for datagrams on %s: %w", address, err), connection.Close())
		}
		context.AfterFunc(ctx, func() { _ = connection.Close() })
		group.Go(func() error { return unlessDone(ctx, s.serveUDP(connection)) })
	}
	return nil
}

// early listens on an address that the machine may not have yet: that of a backend whose link
// has come back.
var early = net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
	return errors.Join(err, failed)
}}

func unlessDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s Server) serveTCP(ctx context.Context, listener net.Listener) error {
	var connections sync.WaitGroup
	defer connections.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		connection, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("echo: accept on %s: %w", listener.Addr(), err)
		}
		connections.Go(func() { s.serveConnection(ctx, connection) })
	}
}

func (s Server) serveConnection(ctx context.Context, connection net.Conn) {
	defer connection.Close()
	defer context.AfterFunc(ctx, func() { _ = connection.Close() })()
	if _, err := fmt.Fprintln(connection, s.Name); err != nil {
		return // the client (or a health probe) is gone
	}
	buffer := make([]byte, 4096)
	for {
		n, err := connection.Read(buffer)
		if n > 0 {
			if _, err := connection.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// receiveBytes is room for a burst of large datagrams while the machine, which
// plays a whole data centre, is busy with other parts. A fragment of 1500
// bytes takes 2304 of it.
const receiveBytes = 8 << 20

// makeRoom in the socket's buffer; beyond the machine's limit only with root,
// which labs have.
func makeRoom(connection net.PacketConn) error {
	raw, err := connection.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	var forced error
	err = raw.Control(func(socket uintptr) {
		forced = unix.SetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBytes)
		if errors.Is(forced, os.ErrPermission) {
			forced = unix.SetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBytes)
		}
	})
	return errors.Join(err, forced)
}

func (s Server) serveUDP(connection net.PacketConn) error {
	buffer := make([]byte, 65536)
	prefix := copy(buffer, s.Name+"\n")
	for {
		n, client, err := connection.ReadFrom(buffer[prefix:])
		if err != nil {
			return fmt.Errorf("echo: read on %s: %w", connection.LocalAddr(), err)
		}
		// A reply that cannot be sent is a lost datagram, as UDP has them.
		_, _ = connection.WriteTo(buffer[:prefix+n], client)
	}
}
