package session

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// An address that the machine does not have yet is tried again.
const listenAgain = time.Second

// A largest state at once, with what the kernel takes for each datagram; less, where
// it allows less.
const readBufferBytes = 1 << 20

// Handler takes a datagram that came to an address of this machine, and returns the
// answers to it.
type Handler func(at netip.AddrPort, bytes []byte, from netip.AddrPort) (answers [][]byte)

// Sockets at this machine's addresses. Its owner calls Listen and Send under one mutex.
type Sockets struct {
	log *slog.Logger
	// Whose messages come, for the log: "agents'".
	whose  string
	handle Handler
	// One for each socket.
	tasks   sync.WaitGroup
	sockets map[netip.AddrPort]*socket
}

// NewSockets has none yet. The handler is called from a goroutine for each of them.
func NewSockets(log *slog.Logger, whose string, handle Handler) *Sockets {
	return &Sockets{log: log, whose: whose, handle: handle, sockets: map[netip.AddrPort]*socket{}}
}

// Listen at these addresses and no others.
func (s *Sockets) Listen(addresses []netip.AddrPort) {
	for address, socket := range s.sockets {
		if !slices.Contains(addresses, address) {
			socket.close()
			delete(s.sockets, address)
		}
	}
	for _, address := range addresses {
		if s.sockets[address] == nil {
			opening := &socket{closed: make(chan struct{})}
			s.sockets[address] = opening
			s.tasks.Go(func() { s.serve(address, opening) })
		}
	}
}

// Send datagrams from one of them. What is lost, its receiver does not have: that is the
// sender's to see.
func (s *Sockets) Send(from, to netip.AddrPort, datagrams [][]byte) {
	if socket := s.sockets[from]; socket != nil {
		socket.send(to, datagrams)
	}
}

// Wait until all of them have ended, after Listen without addresses. Not under the mutex,
// which handlers may take.
func (s *Sockets) Wait() { s.tasks.Wait() }

// socket of one address, which may not be open yet.
type socket struct {
	mu     sync.Mutex
	conn   *net.UDPConn
	closed chan struct{}
}

func (s *socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.closed)
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

func (s *socket) send(to netip.AddrPort, datagrams [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return // not open yet
	}
	for _, datagram := range datagrams {
		_, _ = s.conn.WriteToUDPAddrPort(datagram, to)
	}
}

// open the socket, as soon as that can be; nil: it was closed.
func (s *socket) open(log *slog.Logger, whose string, address netip.AddrPort) *net.UDPConn {
	for told := false; ; told = true {
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
		s.mu.Lock()
		select {
		case <-s.closed:
			if err == nil {
				_ = conn.Close()
			}
			s.mu.Unlock()
			return nil
		default:
		}
		s.conn = conn
		s.mu.Unlock()
		if err == nil {
			_ = conn.SetReadBuffer(readBufferBytes)
			log.Info("receiving "+whose+" messages", "address", address)
			return conn
		}
		if !told {
			log.Warn("cannot receive "+whose+" messages, trying again: is the address this machine's, and the port free?", "address", address, "error", err)
		}
		select {
		case <-s.closed:
		case <-time.After(listenAgain):
		}
	}
}

// serve one address until its socket is closed.
func (s *Sockets) serve(address netip.AddrPort, socket *socket) {
	conn := socket.open(s.log, s.whose, address)
	if conn == nil {
		return
	}
	bytes := make([]byte, BytesMax+1)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(bytes)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an answer
		}
		for _, answer := range s.handle(address, bytes[:n], from) {
			_, _ = conn.WriteToUDPAddrPort(answer, from) // the sender sends again
		}
	}
}
