package output

// Describes the beginning of a packet in words. A truncated or malformed packet is
// described as far as possible; whether it is valid is for the forwarder to say.

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

const (
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
	etherTypeVLAN = 0x8100

	protocolICMP   = 1
	protocolTCP    = 6
	protocolUDP    = 17
	protocolGRE    = 47
	protocolICMPv6 = 58
)

// DescribeFrame: `tcp 192.0.2.7:40000 > 203.0.113.10:80`.
func DescribeFrame(frame []byte) string {
	if len(frame) < 14 {
		return fmt.Sprintf("%d bytes, no Ethernet header", len(frame))
	}
	return describePayload(binary.BigEndian.Uint16(frame[12:]), frame[14:])
}

func describePayload(etherType uint16, packet []byte) string {
	switch {
	case etherType == etherTypeIPv4 && len(packet) >= 20 && packet[0]>>4 == 4:
		return describeIPv4(packet)
	case etherType == etherTypeIPv6 && len(packet) >= 40 && packet[0]>>4 == 6:
		return describeIPv6(packet)
	case etherType == etherTypeIPv4 || etherType == etherTypeIPv6:
		return fmt.Sprintf("a malformed packet of type %#04x", etherType)
	case etherType == etherTypeVLAN:
		return "a VLAN-tagged frame"
	}
	return fmt.Sprintf("a frame of type %#04x", etherType)
}

func describeIPv4(packet []byte) string {
	source, _ := netip.AddrFromSlice(packet[12:16])
	destination, _ := netip.AddrFromSlice(packet[16:20])
	offset := binary.BigEndian.Uint16(packet[6:]) & 0x1fff
	if offset != 0 {
		return fmt.Sprintf("protocol %d %s > %s, fragment at %d", packet[9], source, destination, int(offset)*8)
	}
	payload := packet[min(len(packet), int(packet[0]&15)*4):]
	return describeTransport(packet[9], source, destination, payload)
}

// Extension headers are not walked: they are rare, and their number is told.
func describeIPv6(packet []byte) string {
	source, _ := netip.AddrFromSlice(packet[8:24])
	destination, _ := netip.AddrFromSlice(packet[24:40])
	return describeTransport(packet[6], source, destination, packet[40:])
}

func describeTransport(protocol byte, source, destination netip.Addr, payload []byte) string {
	name := map[byte]string{protocolTCP: "tcp", protocolUDP: "udp", protocolICMP: "icmp", protocolICMPv6: "icmpv6", protocolGRE: "gre"}[protocol]
	if name == "" {
		name = fmt.Sprintf("protocol %d", protocol)
	}
	switch {
	case (protocol == protocolTCP || protocol == protocolUDP) && len(payload) >= 4:
		return fmt.Sprintf("%s %s > %s", name,
			netip.AddrPortFrom(source, binary.BigEndian.Uint16(payload)), netip.AddrPortFrom(destination, binary.BigEndian.Uint16(payload[2:])))
	case (protocol == protocolICMP || protocol == protocolICMPv6) && len(payload) >= 2:
		return fmt.Sprintf("%s %s > %s type %d code %d", name, source, destination, payload[0], payload[1])
	case protocol == protocolGRE && len(payload) >= 4:
		return fmt.Sprintf("gre %s > %s: %s", source, destination, describePayload(binary.BigEndian.Uint16(payload[2:]), payload[4:]))
	}
	return fmt.Sprintf("%s %s > %s", name, source, destination)
}
