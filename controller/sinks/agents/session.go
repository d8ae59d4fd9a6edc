package agents

// What a controller remembers of one agent, so that no old message counts again.
//
//	agent                               controller
//	  state, nonce 0          ───►        challenged: nothing is taken from it
//	                          ◄───        answer: nonce of (agent, boot, sessions so far)
//	  state, that nonce       ───►        accepted; the session begins: nonces given
//	                          ◄───        before are worth nothing from now on
//	  state, sequence + 1     ───►        accepted
//
// Nonces are a function of a key that a controller draws at its start, so what was
// recorded before is refused after it, too; and repeating old messages makes
// the controller remember nothing.

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
)

type session struct {
	keys Keys
	// How many began: part of the nonces that are given.
	count uint64
	// Of the session. With count 0 there is none.
	boot  uint64
	nonce nonce
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
func (s *session) admit(key [sha256.Size]byte, d *datagram) Result {
	if s.count == 0 || d.boot != s.boot || d.nonce != s.nonce {
		if d.nonce != s.challenge(key, d.boot) {
			return ResultChallenged
		}
		s.count++
		s.boot, s.nonce, s.accepted, s.assembly = d.boot, d.nonce, 0, assembly{}
	}
	switch {
	case d.sequence <= s.accepted:
		return ResultReplayed
	case d.sequence < s.assembly.sequence:
		return ResultOutdated
	}
	return ResultPart
}

// challenge is the nonce by which a session of that boot would begin.
func (s *session) challenge(key [sha256.Size]byte, boot uint64) nonce {
	mac := hmac.New(sha256.New, key[:])
	var numbers [16]byte
	binary.BigEndian.PutUint64(numbers[:8], s.count)
	binary.BigEndian.PutUint64(numbers[8:], boot)
	mac.Write(numbers[:])
	mac.Write([]byte(s.keys.Agent))
	return nonce(mac.Sum(nil)[:nonceBytes])
}

// add a part that was admitted. Whole is not nil if it was the last one missing;
// abandoned, if an older state was not whole yet.
func (a *assembly) add(d *datagram) (result Result, whole [][]byte, abandoned bool) {
	if d.sequence != a.sequence {
		abandoned = a.missing > 0
		*a = assembly{sequence: d.sequence, missing: int(d.parts), bodies: make([][]byte, d.parts)}
	}
	if int(d.parts) != len(a.bodies) {
		return ResultMalformed, nil, abandoned
	}
	if a.bodies[d.part] != nil {
		return ResultDuplicate, nil, abandoned
	}
	a.bodies[d.part] = append([]byte{}, d.body...)
	if a.missing--; a.missing > 0 {
		return ResultPart, nil, abandoned
	}
	whole, a.bodies = a.bodies, nil
	return ResultAccepted, whole, abandoned
}
