package session

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
)

// Sender of states to one receiver.
type Sender struct {
	header Header
	key    Key
	// Sequence of the latest state that was answered.
	answered uint64
}

// NewSender of states of that kind by that name. Each draws a boot of its own.
func NewSender(kind Kind, name string, id KeyID, key Key) *Sender {
	var boot [8]byte
	_, _ = rand.Read(boot[:]) // never fails
	return &Sender{key: key, header: Header{Kind: kind, Boot: binary.BigEndian.Uint64(boot[:]), KeyID: id, Name: name}}
}

// State is the datagrams of the next one. The body is not empty, and fits into the parts
// that there can be.
func (s *Sender) State(body []byte) [][]byte {
	s.header.Sequence++
	return emit(s.header, s.key, slices.Collect(slices.Chunk(body, BodyBytesMax(s.header.Name))))
}

// Answered takes an answer to the latest state, or to an earlier one that had none; false:
// it is none.
func (s *Sender) Answered(d Datagram) bool {
	h := s.header
	if d.Kind != h.Kind+1 || d.KeyID != h.KeyID || d.Boot != h.Boot || d.Sequence > h.Sequence || d.Sequence <= s.answered || !d.Authentic(s.key) {
		return false
	}
	s.answered, s.header.Nonce = d.Sequence, d.Nonce
	return true
}
