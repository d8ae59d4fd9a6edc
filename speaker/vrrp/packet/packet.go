// Package packet encodes and parses VRRP version 3 (RFC 9568), ARP (RFC 826) and neighbour
// discovery (RFC 4861) on Ethernet, one file for each protocol.
//
// Its input may come from anybody on the segment. A parser returns a complete value or a
// Reason, reads nothing beyond the bytes it is given, and allocates at most the address list of
// one advertisement (255 addresses).
//
// It uses no socket and no clock.
package packet

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// Reason why a packet was not taken; an error, and the label of its counter.
type Reason uint8

// Reasons.
const (
	// TooShort for the fixed fields.
	TooShort Reason = iota
	// WrongLength: a length or count in it contradicts the bytes there are.
	WrongLength
	// OtherProtocol than the parser's.
	OtherProtocol
	// WrongSource address: not one that a host on the segment has.
	WrongSource
	// WrongDestination address for its kind.
	WrongDestination
	// WrongHopLimit: TTL or hop limit is not 255, so a router may have forwarded it
	// (RFC 5082).
	WrongHopLimit
	// WrongVersion of VRRP: not 3.
	WrongVersion
	// WrongType of message.
	WrongType
	// WrongChecksum.
	WrongChecksum
	// NoAddresses in an advertisement (RFC 9568 section 5.2.5).
	NoAddresses
	// NoInterval in an advertisement: zero (RFC 9568 section 7.1).
	NoInterval
	// WrongTarget of neighbour discovery: a multicast address.
	WrongTarget
	// WrongOption of neighbour discovery: of no length, or not allowed there.
	WrongOption

	// ReasonsCount is how many there are.
	ReasonsCount
)

var reasonNames = [ReasonsCount]string{
	"too_short", "wrong_length", "other_protocol", "wrong_source", "wrong_destination", "wrong_hop_limit",
	"wrong_version", "wrong_type", "wrong_checksum", "no_addresses", "no_interval", "wrong_target", "wrong_option",
}

// String is the reason's name as a metric label.
func (r Reason) String() string {
	if r >= ReasonsCount {
		return "unknown"
	}
	return reasonNames[r]
}

// Error is the name, too.
func (r Reason) Error() string { return r.String() }

// MAC is an Ethernet address.
type MAC [6]byte

var (
	broadcastMAC = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodesMAC  = MAC{0x33, 0x33, 0, 0, 0, 1}
)

// String is colon-separated hexadecimal.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// IsUnicast reports whether one host can have it.
func (m MAC) IsUnicast() bool { return m[0]&1 == 0 && m != MAC{} }

// EtherTypes.
const (
	EtherTypeARP  = 0x0806
	EtherTypeIPv6 = 0x86dd

	ethernetBytes = 14
)

func ethernet(destination, source MAC, etherType uint16) []byte {
	frame := make([]byte, 0, 128)
	frame = append(append(frame, destination[:]...), source[:]...)
	return binary.BigEndian.AppendUint16(frame, etherType)
}

// payloadOf an Ethernet frame of that type, and its sender.
func payloadOf(frame []byte, etherType uint16) (payload []byte, sender MAC, err error) {
	if len(frame) < ethernetBytes {
		return nil, MAC{}, TooShort
	}
	if binary.BigEndian.Uint16(frame[12:]) != etherType {
		return nil, MAC{}, OtherProtocol
	}
	sender = MAC(frame[6:12])
	if !sender.IsUnicast() {
		return nil, MAC{}, WrongSource
	}
	return frame[ethernetBytes:], sender, nil
}

// checksum is the Internet checksum over the parts (RFC 1071), of which all but the last
// have an even length. Over bytes that include a right checksum it is 0.
func checksum(parts ...[]byte) uint16 {
	var sum uint64
	for _, part := range parts {
		for ; len(part) >= 2; part = part[2:] {
			sum += uint64(binary.BigEndian.Uint16(part))
		}
		if len(part) == 1 {
			sum += uint64(part[0]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// pseudoHeader for a checksum: of IPv6 as RFC 8200 section 8.1 has it, of IPv4 as RFC 768.
func pseudoHeader(source, destination netip.Addr, protocol byte, length int) []byte {
	b := append(source.AsSlice(), destination.AsSlice()...)
	if source.Is4() {
		return binary.BigEndian.AppendUint16(append(b, 0, protocol), uint16(length))
	}
	return append(binary.BigEndian.AppendUint32(b, uint32(length)), 0, 0, 0, protocol)
}

// isHost: the address can be one host's.
func isHost(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsMulticast() && !a.IsLoopback() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
