package agents

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/config"
)

// An address that the machine does not have yet is tried again.
const listenAgain = time.Second

// A largest state at once, with what the kernel takes for each datagram; less, where
// it allows less.
const readBufferBytes = 1 << 20

// Listener receives the agents' messages at the machine's addresses. It is a sink of
// configs, and hands states on.
type Listener struct {
	log  *slog.Logger
	sink func(State)
	// One for each socket.
	tasks sync.WaitGroup

	mu sync.Mutex
	// What the config says.
	secret   Secret
	services map[string]*servicesOf
	counting time.Duration
	sockets  map[netip.AddrPort]*socket
	results  map[Result]uint64
	// When the latest state of each agent was received.
	heard map[string]time.Time
	told  string // what was last logged
}

// New starts without a socket. The sink is called from the goroutines that receive,
// one for each of the machine's addresses.
func New(log *slog.Logger, sink func(State)) *Listener {
	return &Listener{
		log: log, sink: sink, counting: countIntervalDefault,
		sockets: map[netip.AddrPort]*socket{}, results: map[Result]uint64{}, heard: map[string]time.Time{},
	}
}

// Set what the config says of agents, and listen where it says.
func (l *Listener) Set(c *config.Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var addresses []netip.AddrPort
	if c.Agents != nil && l.setSecret(c) {
		for _, address := range c.Machine.Addresses {
			addresses = append(addresses, netip.AddrPortFrom(address, c.Agents.Port))
		}
	}
	l.listen(addresses)
}

// SetCountInterval of the agents.
func (l *Listener) SetCountInterval(interval time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counting = interval
	for _, s := range l.sockets {
		s.receiver.counting = interval
	}
}

// Stop listening.
func (l *Listener) Stop() {
	l.mu.Lock()
	l.listen(nil)
	l.mu.Unlock()
	l.tasks.Wait() // they take the mutex
}

// Results so far.
func (l *Listener) Results() map[Result]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := make(map[Result]uint64, len(Results))
	for _, result := range Results {
		counts[result] = l.results[result]
	}
	return counts
}

// Heard says when the latest state of each agent was received.
func (l *Listener) Heard() map[string]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	heard := make(map[string]time.Time, len(l.heard))
	for agent, at := range l.heard {
		if l.services[agent] != nil { // its backend is configured
			heard[agent] = at
		}
	}
	return heard
}

func (l *Listener) setSecret(c *config.Config) bool {
	content, _, err := config.ReadFromDisk(c.Cluster.SecretFile)
	if err != nil {
		l.log.Error("agents: cannot read the cluster's secret, their messages are not received", "error", err)
		return false
	}
	secret, err := NewSecret(content)
	if err == nil && secret.ID() != c.Cluster.KeyID {
		err = errors.New("it has changed since the config was read: reload the config")
	}
	if err != nil {
		l.log.Error("agents: the cluster's secret cannot be used, their messages are not received", "file", c.Cluster.SecretFile, "error", err)
		return false
	}
	services, tooMany := servicesByBackend(c)
	if told := strings.Join(tooMany, ", "); told != l.told {
		l.told = told
		if told != "" {
			l.log.Warn("agents: these backends have more services than an answer holds: nothing is counted there", "backends", told)
		}
	}
	l.secret, l.services = secret, services
	return true
}

// listen at these addresses and no others.
func (l *Listener) listen(addresses []netip.AddrPort) {
	for address, s := range l.sockets {
		if !slices.Contains(addresses, address) {
			s.close()
			delete(l.sockets, address)
		}
	}
	for _, address := range addresses {
		s := l.sockets[address]
		if s == nil {
			s = &socket{closed: make(chan struct{}), receiver: newReceiver(func(result Result) { l.results[result]++ })}
			s.receiver.counting = l.counting
			l.sockets[address] = s
			l.tasks.Go(func() { l.serve(address, s) })
		}
		s.receiver.set(l.secret, l.services)
	}
}

// socket of one address, which may not be open yet. Each has sessions of its own: an
// agent may send to several addresses of this machine, as to several machines.
type socket struct {
	mu     sync.Mutex
	conn   *net.UDPConn
	closed chan struct{}
	// Under the listener's mutex.
	receiver *receiver
}

func (s *socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.closed)
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

// open the socket, as soon as that can be; nil: it was closed.
func (s *socket) open(log *slog.Logger, address netip.AddrPort) *net.UDPConn {
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
			log.Info("receiving agents' messages", "address", address)
			return conn
		}
		if !told {
			log.Warn("cannot receive agents' messages, trying again: is the address this machine's, and the port free?", "address", address, "error", err)
		}
		select {
		case <-s.closed:
		case <-time.After(listenAgain):
		}
	}
}

// serve one address until its socket is closed.
func (l *Listener) serve(address netip.AddrPort, s *socket) {
	conn := s.open(l.log, address)
	if conn == nil {
		return
	}
	bytes := make([]byte, datagramBytesMax+1)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(bytes)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error about an answer
		}
		for _, answer := range l.receive(s.receiver, bytes[:n]) {
			_, _ = conn.WriteToUDPAddrPort(answer, from) // the agent sends again
		}
	}
}

// receive a datagram, and hand on the state that it completes: not under the mutex,
// as the sink may wait for what waits for it.
func (l *Listener) receive(r *receiver, bytes []byte) (answers [][]byte) {
	answers, state := l.take(r, bytes)
	if state != nil {
		l.sink(*state)
	}
	return answers
}

func (l *Listener) take(r *receiver, bytes []byte) (answers [][]byte, state *State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	answers, state = r.receive(bytes, time.Now())
	if state != nil {
		l.heard[state.Agent] = state.Received
	}
	return answers, state
}
