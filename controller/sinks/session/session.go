package session

// A receiver's memory of one sender, so that no old message counts again.
//
//	sender                              receiver
//	  state, nonce 0          ───►        challenged: nothing is taken from it
//	                          ◄───        answer: nonce of (sender, boot, sessions so far)
//	  state, that nonce       ───►        accepted; the session begins: nonces given
//	                          ◄───        before are worth nothing from now on
//	  state, sequence + 1     ───►        accepted
//
// Nonces are a function of a key that a receiver draws at its start, so messages recorded
// before are refused afterwards, too; and repeating old messages does not make the receiver
// store anything.

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

type session struct {
	name string
	key  Key
	// How many began: part of the nonces that are given.
	count uint64
	// Of the session. With count 0 there is none.
	boot  uint64
	nonce Nonce
	// Sequence of the latest state.
	accepted uint64
	assembly assembly
	limit    limit
}

// assembly of a state from its parts.
type assembly struct {
	sequence uint64
	missing  int
	bodies   [][]byte
}

// admit says what becomes of an authentic state: ResultPart if it is one, of which
// more may be missing.
func (s *session) admit(key [sha256.Size]byte, d *Datagram) Result {
	if s.count == 0 || d.Boot != s.boot || d.Nonce != s.nonce {
		if d.Nonce != s.challenge(key, d.Boot) {
			return ResultChallenged
		}
		s.count++
		s.boot, s.nonce, s.accepted, s.assembly = d.Boot, d.Nonce, 0, assembly{}
	}
	switch {
	case d.Sequence <= s.accepted:
		return ResultReplayed
	case d.Sequence < s.assembly.sequence:
		return ResultOutdated
	}
	return ResultPart
}

// challenge is the nonce by which a session of that boot would begin.
func (s *session) challenge(key [sha256.Size]byte, boot uint64) Nonce {
	mac := hmac.New(sha256.New, key[:])
	var numbers [16]byte
	binary.BigEndian.PutUint64(numbers[:8], s.count)
	binary.BigEndian.PutUint64(numbers[8:], boot)
	mac.Write(numbers[:])
	mac.Write([]byte(s.name))
	return Nonce(mac.Sum(nil)[:nonceBytes])
}

// add a part that was admitted. Whole is not nil if it was the last one missing;
// abandoned, if an older state was not whole yet.
func (a *assembly) add(d *Datagram) (result Result, whole [][]byte, abandoned bool) {
	if d.Sequence != a.sequence {
		abandoned = a.missing > 0
		*a = assembly{sequence: d.Sequence, missing: int(d.Parts), bodies: make([][]byte, d.Parts)}
	}
	if int(d.Parts) != len(a.bodies) {
		return ResultMalformed, nil, abandoned
	}
	if a.bodies[d.Part] != nil {
		return ResultDuplicate, nil, abandoned
	}
	a.bodies[d.Part] = append([]byte{}, d.Body...)
	if a.missing--; a.missing > 0 {
		return ResultPart, nil, abandoned
	}
	whole, a.bodies = a.bodies, nil
	return ResultAccepted, whole, abandoned
}
