// Package agents receives what the agents of backends say of their sockets.
//
//	agents ──UDP──► listener ─► parse ─► authenticate ─► session ─► assemble ─► sink(State)
//	   ▲                                                                │
//	   └────────── answer: nonce, when the next is due, services ◄──────┘
//
// Guarantees: a State was sent by the agent that it names, in full, after every one
// that the sink had of that agent before, and to this process. What is bounded:
// agents by the config's backends, datagrams for each of them a second, parts of a
// state. It decides nothing: what a State means is the brain's.
package agents

import (
	"crypto/rand"
	"crypto/sha256"
	"maps"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/config"
	agentv1 "github.com/guideway/guideway/proto/guideway/agent/v1"
	"google.golang.org/protobuf/proto"
)

const (
	// interval between an agent's states: that it is silent is known after three of them.
	interval = time.Second
	// How often agents count until Listener.SetCountInterval says otherwise.
	countIntervalDefault = 10 * time.Second
)

// State is what lives at one agent.
type State struct {
	// The backend's name.
	Agent string
	// Differs each time the agent starts.
	Boot     uint64
	Received time.Time
	// When that was, by the agent; zero: nothing was counted.
	Counted time.Time
	// By stateless service, its buckets that have sockets, and how many. A service
	// that is not in it was not counted: the agent does not know yet what the config
	// says of it, or there was no room in the message.
	Counts map[string]map[uint32]uint32
	// Packets come out of tunnels there.
	Serves bool
	// Its own addresses: it is the agent of all backends that have one of them.
	Own map[config.AgentAddress]bool
	// VIPs of the backend's services that its config lacks.
	VIPsLacking int
	// Backends whose agents' packets it takes. nil: it does not say, being of a former
	// version.
	Accepts map[config.AgentAddress]bool
}

// receiver is the listener without its sockets and clock.
type receiver struct {
	// Drawn at start: of nonces.
	key      [sha256.Size]byte
	keyID    [keyIDBytes]byte
	sessions map[string]*session
	services map[string]*servicesOf
	counting time.Duration // how often agents count
	count    func(Result)
}

func newReceiver(count func(Result)) *receiver {
	r := &receiver{sessions: map[string]*session{}, counting: countIntervalDefault, count: count}
	_, _ = rand.Read(r.key[:]) // never fails
	return r
}

// set what the config says. Sessions stay where the key does.
func (r *receiver) set(secret Secret, services map[string]*servicesOf) {
	former := r.sessions
	r.keyID, r.services, r.sessions = keyIDOf(secret.ID()), services, make(map[string]*session, len(services))
	for agent := range services {
		keys := secret.Keys(agent)
		if s := former[agent]; s != nil && s.keys == keys {
			r.sessions[agent] = s
			continue
		}
		r.sessions[agent] = &session{keys: keys}
	}
}

// receive one datagram: the answers to it, and the state that it completed.
func (r *receiver) receive(bytes []byte, now time.Time) (answers [][]byte, state *State) {
	d, ok := parse(bytes)
	if !ok || d.kind != kindState {
		r.count(ResultMalformed)
		return nil, nil
	}
	s := r.sessions[d.agent]
	if result := r.authenticate(s, &d, now); result != "" {
		r.count(result)
		return nil, nil
	}
	switch result := s.admit(r.key, &d); result {
	case ResultPart:
		return r.assemble(s, &d, now)
	case ResultChallenged:
		r.count(result)
		if d.part == 0 { // one answer to a state is enough
			answers = r.answer(s, &d, s.challenge(r.key, d.boot), r.services[d.agent].digest)
		}
	default:
		r.count(result)
	}
	return answers, nil
}

// authenticate a datagram; empty: it is the agent's.
func (r *receiver) authenticate(s *session, d *datagram, now time.Time) Result {
	switch {
	case d.keyID != r.keyID:
		return ResultOtherKey
	case s == nil:
		return ResultUnknownAgent
	case !s.limit.take(now):
		return ResultRateLimited
	case !d.authentic(s.keys.Message):
		return ResultForged
	}
	return ""
}

func (r *receiver) assemble(s *session, d *datagram, now time.Time) (answers [][]byte, state *State) {
	result, whole, abandoned := s.assembly.add(d)
	if abandoned {
		r.count(ResultIncomplete)
	}
	if whole == nil {
		r.count(result)
		return nil, nil
	}
	services := r.services[d.agent]
	state = &State{Agent: d.agent, Boot: d.boot, Received: now}
	parts, ok := partsOf(whole)
	if ok && parts[0].GetStanding() != nil {
		state.Serves, state.Accepts = parts[0].GetStanding().GetServes(), accepts(parts)
		state.Own = addresses(parts[0].GetStanding().GetOwn())
		state.VIPsLacking = int(parts[0].GetStanding().GetVipsLacking())
	}
	if !ok || !services.count(parts, state) {
		r.count(ResultMalformed)
		return nil, nil
	}
	r.count(ResultAccepted)
	s.accepted = d.sequence
	return r.answer(s, d, s.nonce, parts[0].GetServices()), state
}

func accepts(parts []*agentv1.StatePart) map[config.AgentAddress]bool {
	all := map[config.AgentAddress]bool{}
	for _, part := range parts {
		maps.Copy(all, addresses(part.GetAccepts()))
	}
	return all
}

func addresses(bytes []byte) map[config.AgentAddress]bool {
	all := map[config.AgentAddress]bool{}
	for address := range slices.Chunk(bytes, len(config.AgentAddress{})) {
		all[config.AgentAddress(address)] = true
	}
	return all
}

// answer a datagram of an agent that counts by the services of that digest: they are
// sent along where it is not the present one.
func (r *receiver) answer(s *session, d *datagram, nonce nonce, digest uint64) [][]byte {
	services := r.services[d.agent]
	pieces := [][]byte{nil}
	if digest != services.digest {
		pieces = services.pieces
	}
	h := header{kind: kindAnswer, parts: uint8(len(pieces)), boot: d.boot, nonce: nonce, sequence: d.sequence, keyID: r.keyID, agent: d.agent}
	answers := make([][]byte, len(pieces))
	for i, piece := range pieces {
		body, _ := proto.Marshal(&agentv1.AnswerPart{ // such a message always can be
			IntervalMs: uint32(interval.Milliseconds()), Services: services.digest, Piece: piece,
			CountIntervalMs: proto.Uint32(uint32(r.counting.Milliseconds())),
		})
		h.part = uint8(i)
		answers[i] = h.emit(s.keys.Message, body)
	}
	return answers
}
