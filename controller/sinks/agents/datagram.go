package agents

// The header of datagrams between agents and controllers (docs/formats.md), and the
// code that authenticates them.
//
//	magic 4 | version 1 | kind 1 | part 1 | parts 1 | boot 8 | nonce 16 |
//	sequence 8 | key id 8 | name length 1 | name | body | MAC 16

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

const (
	magic         = "GWAG"
	version       = 1
	fixedBytes    = 49
	macBytes      = 16
	nonceBytes    = 16
	keyIDBytes    = 8
	partsMax      = 255
	nameBytesMax  = 255
	sequenceBytes = 8
	// Never fragmented: the smallest MTU of IPv6 without its header and UDP's.
	datagramBytesMax = 1232
)

// kind of a datagram.
type kind uint8

const (
	kindState  kind = 1 // from an agent
	kindAnswer kind = 2 // from a controller
)

type nonce [nonceBytes]byte

// header of a datagram. An answer has the boot and sequence of the state that it
// answers.
type header struct {
	kind kind
	// Which of how many datagrams that are one message: from 0.
	part, parts uint8
	// Differs each time the agent starts.
	boot uint64
	// The receiver's: of a state, the one that it was given.
	nonce nonce
	// Counts the agent's states.
	sequence uint64
	keyID    [keyIDBytes]byte
	agent    string
}

// datagram as it was received, not yet authenticated.
type datagram struct {
	header
	body []byte
	// Everything but the MAC, and the MAC.
	signed, mac []byte
}

// parse reads a datagram, which it keeps parts of; false: it is malformed.
func parse(bytes []byte) (datagram, bool) {
	if len(bytes) < fixedBytes+macBytes || len(bytes) > datagramBytesMax || string(bytes[:4]) != magic || bytes[4] != version {
		return datagram{}, false
	}
	d := datagram{header: header{
		kind: kind(bytes[5]), part: bytes[6], parts: bytes[7],
		boot:     binary.BigEndian.Uint64(bytes[8:]),
		nonce:    nonce(bytes[16:32]),
		sequence: binary.BigEndian.Uint64(bytes[32:]),
		keyID:    [keyIDBytes]byte(bytes[40:48]),
	}}
	end := len(bytes) - macBytes
	body := fixedBytes + int(bytes[48])
	if body == fixedBytes || body > end || d.part >= d.parts {
		return datagram{}, false
	}
	d.agent = string(bytes[fixedBytes:body])
	d.body, d.signed, d.mac = bytes[body:end], bytes[:end], bytes[end:]
	return d, true
}

// authentic says whether the datagram was signed with the key.
func (d *datagram) authentic(key [messageKeyBytes]byte) bool {
	return hmac.Equal(d.mac, macOf(key, d.signed))
}

// emit signs a datagram. The agent's name and the body fit.
func (h header) emit(key [messageKeyBytes]byte, body []byte) []byte {
	bytes := make([]byte, 0, fixedBytes+len(h.agent)+len(body)+macBytes)
	bytes = append(bytes, magic...)
	bytes = append(bytes, version, byte(h.kind), h.part, h.parts)
	bytes = binary.BigEndian.AppendUint64(bytes, h.boot)
	bytes = append(bytes, h.nonce[:]...)
	bytes = binary.BigEndian.AppendUint64(bytes, h.sequence)
	bytes = append(bytes, h.keyID[:]...)
	bytes = append(bytes, byte(len(h.agent)))
	bytes = append(bytes, h.agent...)
	bytes = append(bytes, body...)
	return append(bytes, macOf(key, bytes)...)
}

// bodyBytesMax of a datagram from or to that agent.
func bodyBytesMax(agent string) int { return datagramBytesMax - fixedBytes - len(agent) - macBytes }

func macOf(key [messageKeyBytes]byte, signed []byte) []byte {
	mac := hmac.New(sha256.New, key[:])
	mac.Write(signed)
	return mac.Sum(nil)[:macBytes]
}

// keyIDOf is a key id as datagrams have it.
func keyIDOf(id string) (bytes [keyIDBytes]byte) {
	decoded, _ := hex.DecodeString(id) // of a secret: KeyID made it
	copy(bytes[:], decoded)
	return bytes
}
