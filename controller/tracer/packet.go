package tracer

import (
	"encoding/binary"
)

const (
	ttl = 64

	ipv4Bytes         = 20
	ipv6Bytes         = 40
	ipv6FragmentBytes = 8
	tcpBytes          = 20
	udpBytes          = 8

	ipv4DontFragment  = 0x4000
	ipv4MoreFragments = 0x2000
	ipv6MoreFragments = 1
	ipv6FragmentNext  = 44

	tcpACK = 0x10
	tcpPSH = 0x08

	// What follows the marked fragment.
	secondBytes = 8
)

// Packet is one marked packet, before it is bytes.
type Packet struct {
	Flow Flow
	Mark [MarkBytes]byte
	// Of the IP datagram, and TCP's sequence number.
	ID uint32
	// Without it TCP and UDP checksums are wrong on purpose, so that a backend
	// drops the packet silently; load balancers do not look at them.
	ValidChecksum bool
	// The marked packet is the first of two fragments.
	Fragment bool
}

// Bytes are the IP packets to send: one, or two fragments. The first has
// exactly PacketBytes and ends with the mark.
//
// A first fragment's payload should be a multiple of eight bytes (RFC 791, RFC
// 8200), which that length is not; load balancers do not mind. The second one
// begins where a receiver that rounds down, as Linux does for IPv4, expects it.
func (p Packet) Bytes() [][]byte {
	segment := make([]byte, PacketBytes-p.headerBytes())
	copy(segment[len(segment)-MarkBytes:], p.Mark[:])
	if !p.Fragment {
		p.fillTransport(segment, len(segment))
		p.setChecksum(segment, segment)
		return [][]byte{p.ip(segment, 0, false)}
	}
	cut := len(segment) / 8 * 8
	second := make([]byte, secondBytes)
	p.fillTransport(segment, cut+len(second))
	p.setChecksum(segment, append(segment[:cut:cut], second...))
	return [][]byte{p.ip(segment, 0, true), p.ip(second, cut, false)}
}

func (p Packet) isIPv4() bool { return p.Flow.Destination.Addr().Is4() }

func (p Packet) headerBytes() int {
	switch {
	case p.isIPv4():
		return ipv4Bytes
	case p.Fragment:
		return ipv6Bytes + ipv6FragmentBytes
	}
	return ipv6Bytes
}

// fillTransport writes the header of a datagram of that length in all.
func (p Packet) fillTransport(segment []byte, datagramBytes int) {
	binary.BigEndian.PutUint16(segment, p.Flow.Source.Port())
	binary.BigEndian.PutUint16(segment[2:], p.Flow.Destination.Port())
	if p.Flow.Protocol == UDP {
		binary.BigEndian.PutUint16(segment[4:], uint16(datagramBytes))
		return
	}
	// Looks like data of an established connection: a SYN would ask to be
	// forgotten or answered somewhere on the way.
	binary.BigEndian.PutUint32(segment[4:], p.ID)
	segment[12] = tcpBytes / 4 << 4
	segment[13] = tcpPSH | tcpACK
	binary.BigEndian.PutUint16(segment[14:], 1024) // window
}

// setChecksum of the transport header in segment, over the whole datagram.
func (p Packet) setChecksum(segment, datagram []byte) {
	at := 16
	if p.Flow.Protocol == UDP {
		at = 6
	}
	sum := ^fold(p.pseudoHeader(len(datagram)) + sum(datagram))
	if !p.ValidChecksum {
		// Never equal in ones' complement: bits differ both ways.
		sum ^= 0x5555
	}
	if sum == 0 && p.Flow.Protocol == UDP {
		sum = 0xffff // zero means "none" (RFC 768)
	}
	binary.BigEndian.PutUint16(segment[at:], sum)
}

func (p Packet) pseudoHeader(datagramBytes int) uint64 {
	return sum(p.Flow.Source.Addr().AsSlice()) + sum(p.Flow.Destination.Addr().AsSlice()) +
		uint64(p.Flow.Protocol) + uint64(datagramBytes)
}

// ip puts the header in front of a payload at that offset of its datagram.
func (p Packet) ip(payload []byte, offset int, more bool) []byte {
	if p.isIPv4() {
		return append(p.ipv4Header(len(payload), offset, more), payload...)
	}
	return append(p.ipv6Header(len(payload), offset, more), payload...)
}

func (p Packet) ipv4Header(payloadBytes, offset int, more bool) []byte {
	header := make([]byte, ipv4Bytes)
	header[0] = 0x40 | ipv4Bytes/4
	binary.BigEndian.PutUint16(header[2:], uint16(ipv4Bytes+payloadBytes))
	binary.BigEndian.PutUint16(header[4:], uint16(p.ID))
	flags := uint16(offset / 8)
	switch {
	case more:
		flags |= ipv4MoreFragments
	case !p.Fragment:
		flags |= ipv4DontFragment
	}
	binary.BigEndian.PutUint16(header[6:], flags)
	header[8], header[9] = ttl, byte(p.Flow.Protocol)
	copy(header[12:16], p.Flow.Source.Addr().AsSlice())
	copy(header[16:20], p.Flow.Destination.Addr().AsSlice())
	binary.BigEndian.PutUint16(header[10:], ^fold(sum(header)))
	return header
}

func (p Packet) ipv6Header(payloadBytes, offset int, more bool) []byte {
	header := make([]byte, p.headerBytes())
	header[0] = 6 << 4
	binary.BigEndian.PutUint16(header[4:], uint16(len(header)-ipv6Bytes+payloadBytes))
	header[6], header[7] = byte(p.Flow.Protocol), ttl
	copy(header[8:24], p.Flow.Source.Addr().AsSlice())
	copy(header[24:40], p.Flow.Destination.Addr().AsSlice())
	if p.Fragment {
		header[6] = ipv6FragmentNext
		word := uint16(offset) // in units of eight bytes, three bits further left
		if more {
			word |= ipv6MoreFragments
		}
		header[40] = byte(p.Flow.Protocol)
		binary.BigEndian.PutUint16(header[42:], word)
		binary.BigEndian.PutUint32(header[44:], p.ID)
	}
	return header
}

// sum of 16-bit words (RFC 1071), not yet folded.
func sum(bytes []byte) uint64 {
	total := uint64(0)
	for ; len(bytes) >= 2; bytes = bytes[2:] {
		total += uint64(binary.BigEndian.Uint16(bytes))
	}
	if len(bytes) == 1 {
		total += uint64(bytes[0]) << 8
	}
	return total
}

func fold(total uint64) uint16 {
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}
