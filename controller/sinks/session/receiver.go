// Package session has the session protocol by which states are sent: from agents on
// backends to controllers, and between controllers.
//
//	sender ──UDP──► socket ─► parse ─► authenticate ─► session ─► assemble ─► take(bodies)
//	   ▲                                                               │
//	   └──────────────────────── answer: nonce ◄───────────────────────┘
//
// It guarantees that a state was sent by the sender that it names, to this receiver,
// completely, and after all states accepted from that sender before. Limited are: senders
// by the config, datagrams per second from each of them, parts of a state. It does not know
// what is in a state.
package session

import (
	"crypto/rand"
	"crypto/sha256"
	"time"
)

// Receiver of states, without socket and clock.
type Receiver struct {
	kind Kind
	// Drawn at start: of nonces.
	key      [sha256.Size]byte
	keyID    KeyID
	sessions map[string]*session
	count    func(Result)
}

// NewReceiver of states of that kind; the kind of answers is the next one.
func NewReceiver(kind Kind, count func(Result)) *Receiver {
	r := &Receiver{kind: kind, sessions: map[string]*session{}, count: count}
	_, _ = rand.Read(r.key[:]) // never fails
	return r
}

// Set who sends, by name, and their keys, which come from the secret of that id. Sessions
// stay where the key does.
func (r *Receiver) Set(id KeyID, keys map[string]Key) {
	former := r.sessions
	r.keyID, r.sessions = id, make(map[string]*session, len(keys))
	for name, key := range keys {
		if s := former[name]; s != nil && s.key == key {
			r.sessions[name] = s
			continue
		}
		r.sessions[name] = &session{name: name, key: key}
	}
}

// Receive one datagram. take is called with the bodies of the state that it completes;
// false: they are malformed. An answer is due if its header is not nil.
func (r *Receiver) Receive(bytes []byte, now time.Time, take func(Header, [][]byte) bool) (answer *Header) {
	d, ok := Parse(bytes)
	if !ok || d.Kind != r.kind {
		r.count(ResultMalformed)
		return nil
	}
	s := r.sessions[d.Name]
	if result := r.authenticate(s, &d, now); result != "" {
		r.count(result)
		return nil
	}
	switch result := s.admit(r.key, &d); result {
	case ResultPart:
		return r.assemble(s, &d, take)
	case ResultChallenged:
		r.count(result)
		if d.Part == 0 { // one answer to a state is enough
			return r.answer(&d, s.challenge(r.key, d.Boot))
		}
	default:
		r.count(result)
	}
	return nil
}

// authenticate a datagram; empty: it is the sender's.
func (r *Receiver) authenticate(s *session, d *Datagram, now time.Time) Result {
	switch {
	case d.KeyID != r.keyID:
		return ResultOtherKey
	case s == nil:
		return ResultUnknownSender
	case !s.limit.take(now):
		return ResultRateLimited
	case !d.Authentic(s.key):
		return ResultForged
	}
	return ""
}

func (r *Receiver) assemble(s *session, d *Datagram, take func(Header, [][]byte) bool) *Header {
	result, whole, abandoned := s.assembly.add(d)
	if abandoned {
		r.count(ResultIncomplete)
	}
	if whole == nil {
		r.count(result)
		return nil
	}
	if !take(d.Header, whole) {
		r.count(ResultMalformed)
		return nil
	}
	r.count(ResultAccepted)
	s.accepted = d.Sequence
	return r.answer(d, s.nonce)
}

func (r *Receiver) answer(d *Datagram, nonce Nonce) *Header {
	return &Header{Kind: r.kind + 1, Boot: d.Boot, Nonce: nonce, Sequence: d.Sequence, KeyID: r.keyID, Name: d.Name}
}

// Emit an answer with these bodies, to a sender that is known.
func (r *Receiver) Emit(answer Header, bodies [][]byte) [][]byte {
	return emit(answer, r.sessions[answer.Name].key, bodies)
}

// emit one message, of a datagram for each body.
func emit(h Header, key Key, bodies [][]byte) [][]byte {
	h.Parts = uint8(len(bodies))
	datagrams := make([][]byte, len(bodies))
	for i, body := range bodies {
		h.Part = uint8(i)
		datagrams[i] = h.Emit(key, body)
	}
	return datagrams
}
