package tracer

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/guideway/guideway/controller/config"
)

const (
	// PacketBytes is the length of every marked IP packet: load balancers look
	// at the length first, so that other packets pay next to nothing.
	PacketBytes = 227
	// MarkBytes is the length of the mark, at the packet's end.
	MarkBytes = 60

	signedBytes = MarkBytes - 16
	magic       = "GWTRACE\x01"
	// What a secret has at least; the same limit as in the config.
	secretBytesMin = 16
)

// Protocol is an IP protocol number.
type Protocol uint8

// The protocols that marked packets may have.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return fmt.Sprintf("protocol %d", uint8(p))
}

// ParseProtocol reads what people write.
func ParseProtocol(name string) (Protocol, error) {
	switch name {
	case "tcp":
		return TCP, nil
	case "udp":
		return UDP, nil
	}
	return 0, fmt.Errorf("protocol %q: use tcp or udp", name)
}

// Flow is a packet's five-tuple. Both addresses are of one family, and IPv4
// ones are not mapped to IPv6.
type Flow struct {
	Protocol    Protocol
	Source      netip.AddrPort
	Destination netip.AddrPort
}

func (f Flow) String() string {
	return fmt.Sprintf("%s %s → %s", f.Protocol, f.Source, f.Destination)
}

// Key signs marks.
type Key struct {
	bytes [sha256.Size]byte
	id    string
}

// ID names the secret without giving it away; plans have the same as keyId.
func (k Key) ID() string { return k.id }

// NewKey makes the key of the content of a cluster's secret file. White space
// at its end does not count.
func NewKey(secret []byte) (Key, error) {
	trimmed := config.TrimSecret(secret)
	if len(trimmed) < secretBytesMin {
		return Key{}, fmt.Errorf("the secret has %d bytes, not counting white space at its end: at least %d are needed, and the same file as on the load balancers", len(trimmed), secretBytesMin)
	}
	return Key{
		bytes: sha256.Sum256(append([]byte("guideway trace\x00"), trimmed...)),
		id:    config.KeyID(trimmed),
	}, nil
}

// Mark is what a marked packet carries for load balancers.
type Mark struct {
	// Where reports go.
	Receiver netip.AddrPort
	// Differs from packet to packet; each is reported on once.
	Nonce uint64
	// Load balancers whose clock is more than 30 s away ignore the mark.
	Time time.Time
}

// Sign gives the mark's bytes for a packet of that flow; in another packet they
// are worth nothing.
//
//	magic 8 | receiver 16 | port 2 | zero 2 | nonce 8 | unix ms 8 | MAC 16
func (k Key) Sign(mark Mark, flow Flow) [MarkBytes]byte {
	var bytes [MarkBytes]byte
	receiver := mark.Receiver.Addr().As16() // IPv4: mapped
	copy(bytes[:8], magic)
	copy(bytes[8:24], receiver[:])
	binary.BigEndian.PutUint16(bytes[24:], mark.Receiver.Port())
	binary.BigEndian.PutUint64(bytes[28:], mark.Nonce)
	binary.BigEndian.PutUint64(bytes[36:], uint64(mark.Time.UnixMilli()))
	mac := hmac.New(sha256.New, k.bytes[:])
	mac.Write(bytes[:signedBytes])
	mac.Write(flow.signed())
	copy(bytes[signedBytes:], mac.Sum(nil)) // cut to what is left
	return bytes
}

// signed is how the MAC covers the flow: family, protocol, addresses (16 bytes
// each, IPv4 in the last four), ports.
func (f Flow) signed() []byte {
	bytes := make([]byte, 38)
	bytes[0], bytes[1] = 6, byte(f.Protocol)
	if f.Destination.Addr().Is4() {
		bytes[0] = 4
	}
	copy(bytes[18-f.Source.Addr().BitLen()/8:18], f.Source.Addr().AsSlice())
	copy(bytes[34-f.Destination.Addr().BitLen()/8:34], f.Destination.Addr().AsSlice())
	binary.BigEndian.PutUint16(bytes[34:], f.Source.Port())
	binary.BigEndian.PutUint16(bytes[36:], f.Destination.Port())
	return bytes
}
