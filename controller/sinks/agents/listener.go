package agents

import (
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/session"
)

// Listener receives the agents' messages at the machine's addresses. It is a sink of
// configs, and hands states on.
type Listener struct {
	log  *slog.Logger
	sink func(State)

	mu      sync.Mutex
	sockets *session.Sockets
	// What the config says.
	secret   Secret
	services map[string]*servicesOf
	counting time.Duration
	// Each socket has sessions of its own: an agent may send to several addresses of this
	// machine, as to several machines.
	receivers map[netip.AddrPort]*receiver
	results   session.Counts
	latest    session.Result
	// When the latest state of each agent was received, and it was last handed on that
	// datagrams in its name are refused.
	heard, refused map[string]time.Time
	told           string // what was last logged
}

// New starts without a socket. The sink is called from the goroutines that receive,
// one for each of the machine's addresses.
func New(log *slog.Logger, sink func(State)) *Listener {
	l := &Listener{
		log: log, sink: sink, counting: countIntervalDefault,
		receivers: map[netip.AddrPort]*receiver{}, results: session.Counts{}, heard: map[string]time.Time{}, refused: map[string]time.Time{},
	}
	l.sockets = session.NewSockets(log, "agents'", l.receive)
	return l
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
	for _, r := range l.receivers {
		r.counting = interval
	}
}

// Stop listening.
func (l *Listener) Stop() {
	l.mu.Lock()
	l.listen(nil)
	l.mu.Unlock()
	l.sockets.Wait() // they take the mutex
}

// Results so far.
func (l *Listener) Results() session.Counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.results.All()
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
	content, err := session.ReadSecret(c)
	var secret Secret
	if err == nil {
		secret, err = NewSecret(content)
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
	former := l.receivers
	l.receivers = make(map[netip.AddrPort]*receiver, len(addresses))
	for _, address := range addresses {
		r := former[address]
		if r == nil {
			r = newReceiver(func(result session.Result) { l.results[result]++; l.latest = result })
			r.counting = l.counting
		}
		r.set(l.secret, l.services)
		l.receivers[address] = r
	}
	l.sockets.Listen(addresses)
}

// receive a datagram, and hand on the state that it completes: not under the mutex,
// as the sink may wait for what waits for it.
func (l *Listener) receive(at netip.AddrPort, bytes []byte, _ netip.AddrPort) (answers [][]byte) {
	answers, state := l.take(at, bytes)
	if state != nil {
		l.sink(*state)
	}
	return answers
}

func (l *Listener) take(at netip.AddrPort, bytes []byte) (answers [][]byte, state *State) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.receivers[at]
	if r == nil {
		return nil, nil // its socket is being closed
	}
	now := time.Now()
	if answers, state = r.receive(bytes, now); state != nil {
		l.heard[state.Agent] = state.Received
		return answers, state
	}
	return answers, l.refuse(bytes, now)
}

// How often it is handed on that datagrams in an agent's name are refused.
const refusedInterval = 10 * time.Second

// refuse a datagram that has another key: the agent that it names, if there is one, may have
// an old key file.
func (l *Listener) refuse(bytes []byte, now time.Time) *State {
	why := "they are not authentic"
	switch l.latest {
	case session.ResultForged:
	case session.ResultOtherKey:
		why = "its key file is of another secret than this machine's"
	default:
		return nil
	}
	d, _ := session.Parse(bytes)
	if l.services[d.Name] == nil || now.Sub(l.refused[d.Name]) < refusedInterval {
		return nil
	}
	l.refused[d.Name] = now
	return &State{Agent: d.Name, Refused: why}
}
