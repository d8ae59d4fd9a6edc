// Package peers exchanges messages between load balancers without etcd: each second, each
// sends to each of its peers what it would otherwise store in etcd.
//
//	describe ─► PeerStatus ──UDP──► session ─► heard, by name
//	   each second, to each peer        └─ answer: nonce
//
// Its guarantees are those of sessions (controller/sinks/session). The lengths of a peer's
// message are limited, and its text is cut and quoted; drains are passed on unchanged. It
// makes no decisions.
package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/outside"
	"github.com/guideway/guideway/controller/sinks/session"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

const (
	// Port of each of `machine.addresses` that peers send from and to.
	Port = 9477
	// How often a status is sent.
	interval = time.Second
	// SilentMax is how long a machine counts as present after its latest status: several
	// may be lost, and a controller that restarts needs some seconds.
	SilentMax = 10 * time.Second
	// How many backends a status names.
	downMax = 8
	// DrainsMax is how many of its own drains a machine names, of backends and of services.
	DrainsMax = 16
	// Of `machine.addresses` there are two at most.
	addressesMax = 2
)

// Exchange of statuses. It is a sink of configs.
type Exchange struct {
	log *slog.Logger
	// This machine as it is now; nil: not known yet.
	describe func(context.Context) *fleetv1.Machine
	// Takes what a peer says of drains of all machines.
	sink func([]*fleetv1.DrainChange)

	mu      sync.Mutex
	sockets *session.Sockets
	// By this machine's address. Each socket has sessions of its own.
	receivers map[netip.AddrPort]*session.Receiver
	senders   map[path]*session.Sender
	results   session.Counts
	own       *fleetv1.Machine
	drains    []*fleetv1.DrainChange // as this machine has them
	heard     map[string]heard       // by name of a peer of the config
	// Why statuses are not exchanged; empty: they are.
	problem string
}

// path from this machine to a peer, by addresses of one family.
type path struct {
	name     string
	from, to netip.AddrPort
	key      session.Key
}

// heard of a peer.
type heard struct {
	machine *fleetv1.Machine
	at      time.Time
}

// New starts without a socket. describe is called from Run's goroutine, the sink from those
// that receive.
func New(log *slog.Logger, describe func(context.Context) *fleetv1.Machine, sink func([]*fleetv1.DrainChange)) *Exchange {
	e := &Exchange{
		log: log, describe: describe, sink: sink, receivers: map[netip.AddrPort]*session.Receiver{}, senders: map[path]*session.Sender{},
		results: session.Counts{}, heard: map[string]heard{},
	}
	e.sockets = session.NewSockets(log, "peers'", e.receive)
	return e
}

// Set what the config says of peers. With etcd, statuses are there.
func (e *Exchange) Set(c *config.Config) {
	e.mu.Lock()
	defer e.mu.Unlock()
	former := e.problem
	peers := c.Peers
	var secret []byte
	e.problem = ""
	if c.Etcd != nil {
		peers = nil
	}
	if len(peers) > 0 {
		var err error
		if secret, err = secretOf(c); err != nil {
			e.problem, peers = err.Error(), nil
		}
	}
	if e.problem != "" && e.problem != former {
		e.log.Warn("peers are not compared with this machine", "reason", e.problem)
	}
	e.adopt(c, peers, secret)
	e.sockets.Listen(slices.Collect(maps.Keys(e.receivers)))
}

// secretOf the cluster. The key of a cluster without one is a function of its name: what
// comes under it may come from anybody.
func secretOf(c *config.Config) ([]byte, error) {
	if c.Cluster.SecretFile == "" {
		return nil, fmt.Errorf("load balancers without etcd exchange what they run under the cluster's secret: write `cluster: {secret_file: %s}`, and copy that file to all of them", config.DefaultSecretFile)
	}
	return session.ReadSecret(c)
}

// adopt these peers and no others. Sessions stay where addresses and keys do.
func (e *Exchange) adopt(c *config.Config, peers []config.Peer, secret []byte) {
	id := session.KeyIDOf(c.Cluster.KeyID)
	keys := map[string]session.Key{}
	receivers, senders := map[netip.AddrPort]*session.Receiver{}, map[path]*session.Sender{}
	for _, peer := range peers {
		keys[peer.Name] = keyOf(secret, peer.Name, c.Machine.Name)
		for _, to := range peer.Addresses {
			from, ok := c.Machine.Address(to)
			if !ok {
				continue
			}
			p := path{peer.Name, netip.AddrPortFrom(from, Port), netip.AddrPortFrom(to, Port), keyOf(secret, c.Machine.Name, peer.Name)}
			if senders[p] = e.senders[p]; senders[p] == nil {
				senders[p] = session.NewSender(session.KindPeerState, c.Machine.Name, id, p.key)
			}
			receivers[p.from] = e.receivers[p.from]
		}
	}
	for at, r := range receivers {
		if r == nil {
			r = session.NewReceiver(session.KindPeerState, func(result session.Result) { e.results[result]++ })
			receivers[at] = r
		}
		r.Set(id, keys)
	}
	e.receivers, e.senders = receivers, senders
	maps.DeleteFunc(e.heard, func(name string, _ heard) bool { _, is := keys[name]; return !is })
}

// Stop listening.
func (e *Exchange) Stop() {
	e.mu.Lock()
	e.sockets.Listen(nil)
	e.mu.Unlock()
	e.sockets.Wait() // they take the mutex
}

// Run sends statuses until the context ends.
func (e *Exchange) Run(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if e.hasPeers() {
			e.send(e.describe(ctx))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (e *Exchange) hasPeers() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.senders) > 0
}

func (e *Exchange) send(machine *fleetv1.Machine) {
	if machine == nil {
		return
	}
	machine.Time = timestamppb.Now()
	bound(machine)
	e.mu.Lock()
	defer e.mu.Unlock()
	status, _ := proto.Marshal(&fleetv1.PeerStatus{Machine: machine, Drains: e.drains}) // text of configs and bounded: valid
	e.own = machine
	for p, sender := range e.senders {
		e.sockets.Send(p.from, p.to, sender.State(status))
	}
}

// bound what a machine says, so that its status fits into few datagrams.
func bound(m *fleetv1.Machine) {
	outside.Message(m, outside.TextBytesMax)
	m.Addresses = m.Addresses[:min(len(m.Addresses), addressesMax)]
	m.BackendsDown = m.BackendsDown[:min(len(m.BackendsDown), downMax)]
	m.DrainedBackends = m.DrainedBackends[:min(len(m.DrainedBackends), DrainsMax)]
	m.DrainedServices = m.DrainedServices[:min(len(m.DrainedServices), DrainsMax)]
}

// SetDrains of all machines that peers are to hear of.
func (e *Exchange) SetDrains(drains []*fleetv1.DrainChange) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drains = drains
}

// Problem is why peers are not heard; empty: they are, or there are none.
func (e *Exchange) Problem() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.problem
}

// receive a datagram, and hand on what it completes: not under the mutex, as the sink may
// wait for what waits for it.
func (e *Exchange) receive(at netip.AddrPort, datagram []byte, from netip.AddrPort) [][]byte {
	answers, drains := e.take(at, datagram, from)
	if len(drains) > 0 {
		e.sink(drains)
	}
	return answers
}

// take a status of a peer, or the answer to one of this machine's.
func (e *Exchange) take(at netip.AddrPort, datagram []byte, from netip.AddrPort) (answers [][]byte, drains []*fleetv1.DrainChange) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.receivers[at]
	if r == nil {
		return nil, nil // its socket is being closed
	}
	if !e.isPeers(at, from) {
		e.results[session.ResultUnknownSender]++
		return nil, nil
	}
	if d, ok := session.Parse(datagram); ok && d.Kind == session.KindPeerAnswer {
		e.answered(at, from, d)
		return nil, nil
	}
	now := time.Now()
	answer := r.Receive(datagram, now, func(h session.Header, bodies [][]byte) bool {
		var status fleetv1.PeerStatus
		if proto.Unmarshal(bytes.Join(bodies, nil), &status) != nil || status.Machine == nil {
			return false
		}
		bound(status.Machine)
		status.Machine.Name = h.Name
		e.heard[h.Name] = heard{status.Machine, now}
		drains = status.Drains
		return true
	})
	if answer == nil {
		return nil, nil
	}
	return r.Emit(*answer, [][]byte{nil}), drains
}

// isPeers: whether a datagram comes from where a peer sends, which keeps the others from
// taking part in its limit of datagrams.
func (e *Exchange) isPeers(at, from netip.AddrPort) bool {
	for p := range e.senders {
		if p.from == at && p.to == from {
			return true
		}
	}
	return false
}

func (e *Exchange) answered(at, from netip.AddrPort, d session.Datagram) {
	for p, sender := range e.senders {
		if p.from == at && p.to == from && sender.Answered(d) {
			return
		}
	}
	e.results[session.ResultOutdated]++
}

// Machines that live, in order of name: this one, and the peers that were heard of late.
func (e *Exchange) Machines(context.Context) ([]*fleetv1.Machine, error) {
	return e.machines(time.Now())
}

func (e *Exchange) machines(now time.Time) ([]*fleetv1.Machine, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.problem != "" {
		return nil, errors.New(e.problem)
	}
	var machines []*fleetv1.Machine
	if e.own != nil {
		machines = append(machines, proto.CloneOf(e.own))
	}
	for _, name := range slices.Sorted(maps.Keys(e.heard)) {
		if of := e.heard[name]; now.Sub(of.at) <= SilentMax {
			machines = append(machines, proto.CloneOf(of.machine))
		}
	}
	slices.SortFunc(machines, func(a, b *fleetv1.Machine) int { return bytes.Compare([]byte(a.Name), []byte(b.Name)) })
	return machines, nil
}

// Results of datagrams so far.
func (e *Exchange) Results() session.Counts {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.results.All()
}
