// Package flood makes packets with chosen headers, as attackers and others do: whole IP packets
// with correct checksums, sent by a raw socket.
//
// It guarantees that the packets are well formed (a lab counts a wrong checksum anywhere as a
// fault). It does not know what happens to them.
package flood

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Kind of a packet.
type Kind int

// What floods are made of.
const (
	SYN Kind = iota
	// ACK of a connection that does not exist.
	ACK
	Datagram
)

// Kinds are all there are.
var Kinds = []Kind{SYN, ACK, Datagram}

func (k Kind) String() string { return [...]string{"SYN", "ACK", "UDP"}[k] }

const (
	protocolTCP = 6
	protocolUDP = 17
	hopLimit    = 64
	window      = 1024
)

// Packet of that kind. Sequence numbers differ with the source's port.
func Packet(kind Kind, source, destination netip.AddrPort) []byte {
	segment, protocol, checksumAt := tcp(kind), uint8(protocolTCP), 16
	if kind == Datagram {
		segment, protocol, checksumAt = udp(), protocolUDP, 6
	}
	binary.BigEndian.PutUint16(segment, source.Port())
	binary.BigEndian.PutUint16(segment[2:], destination.Port())
	packet := IP(source.Addr(), destination.Addr(), protocol, segment)
	payload := packet[len(packet)-len(segment):]
	sum := ^fold(pseudoHeader(source.Addr(), destination.Addr(), protocol, len(segment)) + add(payload))
	binary.BigEndian.PutUint16(payload[checksumAt:], sum)
	return packet
}

func tcp(kind Kind) []byte {
	const syn, ack = 0x02, 0x10
	segment := make([]byte, 20)
	binary.BigEndian.PutUint32(segment[4:], 0x10203040)
	segment[12], segment[13] = 5<<4, syn
	if kind == ACK {
		binary.BigEndian.PutUint32(segment[8:], 0x50607080)
		segment[13] = ack
	}
	binary.BigEndian.PutUint16(segment[14:], window)
	return segment
}

func udp() []byte {
	const text = "flood"
	segment := append(make([]byte, 8), text...)
	binary.BigEndian.PutUint16(segment[4:], uint16(len(segment)))
	return segment
}

// IP packet around a payload. Not to be fragmented, if it is IPv4.
func IP(source, destination netip.Addr, protocol uint8, payload []byte) []byte {
	if source.Is4() {
		return ipv4(source, destination, protocol, payload)
	}
	header := make([]byte, 40, 40+len(payload))
	header[0] = 6 << 4
	binary.BigEndian.PutUint16(header[4:], uint16(len(payload)))
	header[6], header[7] = protocol, hopLimit
	copy(header[8:], source.AsSlice())
	copy(header[24:], destination.AsSlice())
	return append(header, payload...)
}

func ipv4(source, destination netip.Addr, protocol uint8, payload []byte) []byte {
	const dontFragment = 0x4000
	header := make([]byte, 20, 20+len(payload))
	header[0] = 4<<4 | 5
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+len(payload)))
	binary.BigEndian.PutUint16(header[6:], dontFragment)
	header[8], header[9] = hopLimit, protocol
	copy(header[12:], source.AsSlice())
	copy(header[16:], destination.AsSlice())
	binary.BigEndian.PutUint16(header[10:], ^fold(add(header)))
	return append(header, payload...)
}

const protocolGRE = 47

// GRE packet (RFC 2784) around an IP packet, permitted to be wrapped so often
// more (RFC 1701's recursion control; routers leave it zero).
func GRE(source, destination netip.Addr, recursion uint8, inner []byte) []byte {
	return IP(source, destination, protocolGRE, gre(recursion, inner))
}

// GREBehindOptions is a GRE packet over IPv6 as Linux's ip6gre makes it by
// default: behind a Destination Options header with a Tunnel Encapsulation
// Limit of 4 (RFC 2473, section 5.1), padded to eight bytes.
func GREBehindOptions(source, destination netip.Addr, inner []byte) []byte {
	const protocolDestinationOptions = 60
	options := []byte{protocolGRE, 0, 4, 1, 4, 1, 1, 0}
	return IP(source, destination, protocolDestinationOptions, append(options, gre(0, inner)...))
}

func gre(recursion uint8, inner []byte) []byte {
	const typeIPv4, typeIPv6 = 0x0800, 0x86dd
	header := make([]byte, 4, 4+len(inner))
	header[0] = recursion & 7 // bits 5 to 7
	etherType := uint16(typeIPv4)
	if inner[0]>>4 == 6 {
		etherType = typeIPv6
	}
	binary.BigEndian.PutUint16(header[2:], etherType)
	return append(header, inner...)
}

func pseudoHeader(source, destination netip.Addr, protocol uint8, length int) uint32 {
	return add(source.AsSlice()) + add(destination.AsSlice()) + uint32(protocol) + uint32(length)
}

// add 16-bit words (RFC 1071), not yet folded.
func add(bytes []byte) uint32 {
	var sum uint32
	for ; len(bytes) >= 2; bytes = bytes[2:] {
		sum += uint32(binary.BigEndian.Uint16(bytes))
	}
	if len(bytes) == 1 {
		sum += uint32(bytes[0]) << 8
	}
	return sum
}

func fold(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// Socket sends IP packets as they are, both families; the kernel finds the
// way, in the namespace of the thread that opened it.
type Socket struct {
	v4, v6 int
}

// Open a socket. Close it.
func Open() (*Socket, error) {
	v4, err := raw(unix.AF_INET, unix.IPPROTO_IP, unix.IP_HDRINCL)
	if err != nil {
		return nil, err
	}
	v6, err := raw(unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_HDRINCL)
	if err != nil {
		_ = unix.Close(v4) // what failed matters more
		return nil, err
	}
	return &Socket{v4: v4, v6: v6}, nil
}

func raw(family, level, option int) (int, error) {
	socket, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return 0, fmt.Errorf("open raw socket: %w", err)
	}
	if err := unix.SetsockoptInt(socket, level, option, 1); err != nil {
		_ = unix.Close(socket) // what failed matters more
		return 0, fmt.Errorf("bring own headers: %w", err)
	}
	return socket, nil
}

// Send an IP packet.
func (s *Socket) Send(packet []byte) error {
	var err error
	if packet[0]>>4 == 4 {
		err = unix.Sendto(s.v4, packet, 0, &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])})
	} else {
		err = unix.Sendto(s.v6, packet, 0, &unix.SockaddrInet6{Addr: [16]byte(packet[24:40])})
	}
	if err != nil {
		return fmt.Errorf("send packet: %w", err)
	}
	return nil
}

// Close the socket.
func (s *Socket) Close() {
	_ = unix.Close(s.v4)
	_ = unix.Close(s.v6)
}
