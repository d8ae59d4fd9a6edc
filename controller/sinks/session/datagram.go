package session

// The header of datagrams (docs/formats.md), and the code that authenticates them.
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
	magic      = "GWAG"
	version    = 1
	fixedBytes = 49
	macBytes   = 16
	nonceBytes = 16
	keyIDBytes = 8
	keyBytes   = sha256.Size
	// PartsMax of a message.
	PartsMax      = 255
	nameBytesMax  = 255
	sequenceBytes = 8
	// BytesMax of a datagram, which is never fragmented: the smallest MTU of IPv6 without its
	// header and UDP's.
	BytesMax = 1232
)

// Kind of a datagram.
type Kind uint8

// Kinds of states, and of the answers to them. Those of redirect rules, which agents
// exchange, are 3 and 4.
const (
	KindState      Kind = 1 // from an agent
	KindAnswer     Kind = 2 // from a controller
	KindPeerState  Kind = 5 // from a controller to another
	KindPeerAnswer Kind = 6
)

// Key that authenticates datagrams.
type Key [keyBytes]byte

// KeyID names the cluster's secret.
type KeyID [keyIDBytes]byte

// Nonce that a receiver gives.
type Nonce [nonceBytes]byte

// Header of a datagram. An answer has the boot and sequence of the state that it
// answers.
type Header struct {
	Kind Kind
	// Which of how many datagrams that are one message: from 0.
	Part, Parts uint8
	// Differs each time the sender of states starts.
	Boot uint64
	// The receiver's: of a state, the one that it was given.
	Nonce Nonce
	// Counts the sender's states.
	Sequence uint64
	KeyID    KeyID
	// The sender of states.
	Name string
}

// Datagram as it was received, not yet authenticated.
type Datagram struct {
	Header
	Body []byte
	// Everything but the MAC, and the MAC.
	signed, mac []byte
}

// Parse reads a datagram, which it keeps parts of; false: it is malformed.
func Parse(bytes []byte) (Datagram, bool) {
	if len(bytes) < fixedBytes+macBytes || len(bytes) > BytesMax || string(bytes[:4]) != magic || bytes[4] != version {
		return Datagram{}, false
	}
	d := Datagram{Header: Header{
		Kind: Kind(bytes[5]), Part: bytes[6], Parts: bytes[7],
		Boot:     binary.BigEndian.Uint64(bytes[8:]),
		Nonce:    Nonce(bytes[16:32]),
		Sequence: binary.BigEndian.Uint64(bytes[32:]),
		KeyID:    KeyID(bytes[40:48]),
	}}
	end := len(bytes) - macBytes
	body := fixedBytes + int(bytes[48])
	if body == fixedBytes || body > end || d.Part >= d.Parts {
		return Datagram{}, false
	}
	d.Name = string(bytes[fixedBytes:body])
	d.Body, d.signed, d.mac = bytes[body:end], bytes[:end], bytes[end:]
	return d, true
}

// Authentic says whether the datagram was signed with the key.
func (d *Datagram) Authentic(key Key) bool {
	return hmac.Equal(d.mac, macOf(key, d.signed))
}

// Emit signs a datagram. The name and the body fit.
func (h Header) Emit(key Key, body []byte) []byte {
	bytes := make([]byte, 0, fixedBytes+len(h.Name)+len(body)+macBytes)
	bytes = append(bytes, magic...)
	bytes = append(bytes, version, byte(h.Kind), h.Part, h.Parts)
	bytes = binary.BigEndian.AppendUint64(bytes, h.Boot)
	bytes = append(bytes, h.Nonce[:]...)
	bytes = binary.BigEndian.AppendUint64(bytes, h.Sequence)
	bytes = append(bytes, h.KeyID[:]...)
	bytes = append(bytes, byte(len(h.Name)))
	bytes = append(bytes, h.Name...)
	bytes = append(bytes, body...)
	return append(bytes, macOf(key, bytes)...)
}

// BodyBytesMax of a datagram with that name.
func BodyBytesMax(name string) int { return BytesMax - fixedBytes - len(name) - macBytes }

func macOf(key Key, signed []byte) []byte {
	mac := hmac.New(sha256.New, key[:])
	mac.Write(signed)
	return mac.Sum(nil)[:macBytes]
}

// KeyIDOf is a key id as datagrams have it.
func KeyIDOf(id string) (bytes KeyID) {
	decoded, _ := hex.DecodeString(id) // of a secret: KeyID made it
	copy(bytes[:], decoded)
	return bytes
}
