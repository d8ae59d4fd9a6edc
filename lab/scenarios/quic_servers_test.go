package scenarios_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/guideway/guideway/lab/topology"
	"github.com/guideway/guideway/looptest"
)

const quicProtocol = "guideway-echo"

// quicServer of one backend and one VIP: says its name on each stream, then echoes.
type quicServer struct {
	backend     string
	mu          sync.Mutex
	connections []*quic.Conn
}

// startQUICServer in the backend's namespace; it ends with the test.
func startQUICServer(t *testing.T, n topology.Node, at netip.AddrPort, ids quic.ConnectionIDGenerator, a *looptest.Authority) *quicServer {
	t.Helper()
	transport := &quic.Transport{Conn: listenInside(t, n.Namespace, at), ConnectionIDGenerator: ids}
	identity := &tls.Config{Certificates: []tls.Certificate{a.IssueTLS(quicCertificate(at.Addr()))}, NextProtos: []string{quicProtocol}}
	listener, err := transport.Listen(identity, quicConfig())
	if err != nil {
		t.Fatal(err)
	}
	s := &quicServer{backend: n.Name}
	var handlers sync.WaitGroup
	handlers.Go(func() {
		for {
			connection, err := listener.Accept(context.Background())
			if err != nil {
				return // closed
			}
			handlers.Go(func() { s.serve(connection) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		for _, connection := range s.accepted() {
			_ = connection.CloseWithError(0, "the test has ended")
		}
		_ = transport.Close()
		_ = transport.Conn.Close()
		handlers.Wait()
	})
	return s
}

func (s *quicServer) serve(connection *quic.Conn) {
	s.mu.Lock()
	s.connections = append(s.connections, connection)
	s.mu.Unlock()
	stream, err := connection.AcceptStream(context.Background())
	if err != nil {
		return // the client's test says what is wrong
	}
	if _, err := fmt.Fprintln(stream, s.backend); err != nil {
		return
	}
	if _, err := io.Copy(stream, stream); err == nil {
		_ = stream.Close()
	}
}

// accepted connections.
func (s *quicServer) accepted() []*quic.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*quic.Conn(nil), s.connections...)
}

// sees the client of its only connection at that address.
func (s *quicServer) sees(client net.Addr) error {
	connections := s.accepted()
	if len(connections) != 1 {
		return fmt.Errorf("%s has %d connections", s.backend, len(connections))
	}
	if seen := connections[0].RemoteAddr().String(); seen != client.String() {
		return fmt.Errorf("%s sees the client at %s, and it is at %s", s.backend, seen, client)
	}
	return nil
}

func quicCertificate(vip netip.Addr) x509.Certificate {
	template := looptest.Named("quic")
	template.IPAddresses = []net.IP{vip.AsSlice()}
	return template
}

// quicConfig of both ends: a connection whose packets go nowhere ends soon, and a
// transfer needs the other end again and again.
func quicConfig() *quic.Config {
	const window = 100_000
	return &quic.Config{
		HandshakeIdleTimeout: 3 * time.Second, MaxIdleTimeout: 3 * time.Second,
		InitialStreamReceiveWindow: window, MaxStreamReceiveWindow: window,
		InitialConnectionReceiveWindow: window, MaxConnectionReceiveWindow: window,
	}
}

// listenInside a namespace; the socket is its user's to close.
func listenInside(t *testing.T, namespace string, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var socket *net.UDPConn
	if err := topology.Inside(namespace, func() (err error) {
		socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return socket
}

// quicClient in the client's namespace, with one stream.
type quicClient struct {
	*quic.Conn
	stream *quic.Stream
	// Of the server.
	backend string
}

func dialQUIC(t *testing.T, socket net.PacketConn, vip netip.AddrPort, a *looptest.Authority) quicClient {
	t.Helper()
	transport := &quic.Transport{Conn: socket}
	closeAfter(t, transport)
	trust := &tls.Config{RootCAs: a.Pool(), ServerName: vip.Addr().String(), NextProtos: []string{quicProtocol}}
	connection, err := transport.Dial(t.Context(), net.UDPAddrFromAddrPort(vip), trust, quicConfig())
	if err != nil {
		t.Fatalf("connect to %s: %v", vip, err)
	}
	t.Cleanup(func() { _ = connection.CloseWithError(0, "the test has ended") })
	stream, err := connection.OpenStreamSync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The server learns of a stream by its first byte.
	if _, err := stream.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	c := quicClient{Conn: connection, stream: stream}
	for one := make([]byte, 1); ; c.backend += string(one) {
		if _, err := io.ReadFull(stream, one); err != nil {
			t.Fatalf("greeting of %s: %v", vip, err)
		}
		if one[0] == '\n' {
			break
		}
	}
	if _, err := io.ReadFull(stream, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return c
}

func closeAfter(t *testing.T, transport *quic.Transport) {
	t.Cleanup(func() {
		_ = transport.Close()
		_ = transport.Conn.Close()
	})
}

// migrate to another socket, as a client does that has a new address: it makes sure
// that the server is reached by it before it uses it.
func (c quicClient) migrate(t *testing.T, socket net.PacketConn) error {
	transport := &quic.Transport{Conn: socket}
	closeAfter(t, transport)
	path, err := c.AddPath(transport)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := path.Probe(ctx); err != nil {
		return fmt.Errorf("the server is not reached from %s: %w", socket.LocalAddr(), err)
	}
	return path.Switch()
}

// rebindingSocket is that of a client behind a NAT: its address changes, and it does not
// know.
type rebindingSocket struct {
	mu      sync.Mutex
	sockets []*net.UDPConn
}

// rebind: packets leave by this one from now on, and what comes to the former one is
// lost.
func (s *rebindingSocket) rebind(socket *net.UDPConn) {
	s.mu.Lock()
	former := s.sockets[len(s.sockets)-1]
	s.sockets = append(s.sockets, socket)
	s.mu.Unlock()
	_ = former.Close()
}

func (s *rebindingSocket) current() *net.UDPConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sockets[len(s.sockets)-1]
}

func (s *rebindingSocket) ReadFrom(to []byte) (int, net.Addr, error) {
	for {
		socket := s.current()
		n, from, err := socket.ReadFrom(to)
		if errors.Is(err, net.ErrClosed) && socket != s.current() {
			continue
		}
		return n, from, err
	}
}

func (s *rebindingSocket) WriteTo(datagram []byte, to net.Addr) (int, error) {
	return s.current().WriteTo(datagram, to)
}

func (s *rebindingSocket) Close() error                       { return s.current().Close() }
func (s *rebindingSocket) LocalAddr() net.Addr                { return s.current().LocalAddr() }
func (s *rebindingSocket) SetDeadline(at time.Time) error     { return s.current().SetDeadline(at) }
func (s *rebindingSocket) SetReadDeadline(at time.Time) error { return s.current().SetReadDeadline(at) }
func (s *rebindingSocket) SetWriteDeadline(at time.Time) error {
	return s.current().SetWriteDeadline(at)
}
