// Package agents receives the reports of backends' agents about their sockets.
//
//	agents ──UDP──► session ─► sink(State)
//	   ▲               │
//	   └── answer ◄────┘   nonce, when the next is due, services
//
// Its guarantees are those of sessions (controller/sinks/session). It makes no decisions:
// the brain interprets a State.
package agents

import (
	"maps"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/session"
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
	// Why datagrams in its name are refused; there is no state then. Anybody may have sent them.
	Refused string
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
	// How the backend answers; nil: that is not measured.
	Answers *agentv1.Answers
	// Backends whose agents' packets it takes. nil: it does not say, being of a former
	// version.
	Accepts map[config.AgentAddress]bool
}

// receiver is the listener without its sockets and clock.
type receiver struct {
	sessions *session.Receiver
	services map[string]*servicesOf
	counting time.Duration // how often agents count
}

func newReceiver(count func(session.Result)) *receiver {
	return &receiver{sessions: session.NewReceiver(session.KindState, count), counting: countIntervalDefault}
}

// set what the config says. Sessions stay where the key does.
func (r *receiver) set(secret Secret, services map[string]*servicesOf) {
	keys := make(map[string]session.Key, len(services))
	for agent := range services {
		keys[agent] = secret.Keys(agent).Message
	}
	r.services = services
	r.sessions.Set(session.KeyIDOf(secret.ID()), keys)
}

// receive one datagram: the answers to it, and the state that it completed.
func (r *receiver) receive(bytes []byte, now time.Time) (answers [][]byte, state *State) {
	var counted uint64 // digest of the services that it counted by
	answer := r.sessions.Receive(bytes, now, func(h session.Header, whole [][]byte) (ok bool) {
		state, counted, ok = r.stateOf(h, whole, now)
		return ok
	})
	if answer == nil {
		return nil, nil
	}
	if state == nil { // a challenge: services come with the answer to what is taken
		counted = r.services[answer.Name].digest
	}
	return r.answer(*answer, counted), state
}

// stateOf an agent, and the digest of the services that it counted by.
func (r *receiver) stateOf(h session.Header, whole [][]byte, now time.Time) (state *State, digest uint64, ok bool) {
	services := r.services[h.Name]
	state = &State{Agent: h.Name, Boot: h.Boot, Received: now}
	parts, ok := partsOf(whole)
	if ok && parts[0].GetStanding() != nil {
		state.Serves, state.Accepts = parts[0].GetStanding().GetServes(), accepts(parts)
		state.Own = addresses(parts[0].GetStanding().GetOwn())
		state.VIPsLacking = int(parts[0].GetStanding().GetVipsLacking())
		state.Answers = parts[0].GetStanding().GetAnswers()
	}
	if !ok || !services.count(parts, state) {
		return nil, 0, false
	}
	return state, parts[0].GetServices(), true
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

// answer an agent that counts by the services of that digest: they are sent along where it
// is not the present one.
func (r *receiver) answer(h session.Header, digest uint64) [][]byte {
	services := r.services[h.Name]
	pieces := [][]byte{nil}
	if digest != services.digest {
		pieces = services.pieces
	}
	bodies := make([][]byte, len(pieces))
	for i, piece := range pieces {
		bodies[i], _ = proto.Marshal(&agentv1.AnswerPart{ // such a message always can be
			IntervalMs: uint32(interval.Milliseconds()), Services: services.digest, Piece: piece,
			CountIntervalMs: proto.Uint32(uint32(r.counting.Milliseconds())),
		})
	}
	return r.sessions.Emit(h, bodies)
}
