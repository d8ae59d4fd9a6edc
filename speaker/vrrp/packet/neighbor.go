package packet

import (
	"encoding/binary"
	"net/netip"
)

// Of neighbour discovery (RFC 4861 sections 4.3 and 4.4).
const (
	ProtocolICMPv6 = 58

	TypeNeighborSolicitation  = 135
	TypeNeighborAdvertisement = 136

	neighborBytes = 24

	flagSolicited = 1 << 6
	flagOverride  = 1 << 5

	optionSourceLink = 1
	optionTargetLink = 2
)

var allNodes = netip.MustParseAddr("ff02::1")

// Neighbor is a neighbour solicitation or advertisement.
type Neighbor struct {
	// Solicitation, or else an advertisement.
	Solicitation bool
	// Source is unspecified in a solicitation for duplicate address detection (RFC 4862).
	Source, Destination netip.Addr
	Target              netip.Addr
	// Sender is the MAC address that the link-layer address option gives for the source
	// (solicitation) or the target (advertisement), else that of the frame.
	Sender MAC
}

// ParseNeighbor takes an Ethernet frame, with the checks of RFC 4861 sections 7.1.1 and
// 7.1.2. One with extension headers is of OtherProtocol: nothing that hosts send has them.
func ParseNeighbor(frame []byte) (n Neighbor, err error) {
	b, sender, err := payloadOf(frame, EtherTypeIPv6)
	if err != nil {
		return n, err
	}
	if len(b) < ipv6HeaderBytes+neighborBytes {
		return n, TooShort
	}
	length := int(binary.BigEndian.Uint16(b[4:]))
	n.Source, n.Destination = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	switch {
	case b[0]>>4 != 6 || b[6] != ProtocolICMPv6:
		return n, OtherProtocol
	case length < neighborBytes || length > len(b)-ipv6HeaderBytes:
		return n, WrongLength
	case b[7] != HopLimit:
		return n, WrongHopLimit
	}
	message := b[ipv6HeaderBytes : ipv6HeaderBytes+length]
	if checksum(pseudoHeader(n.Source, n.Destination, ProtocolICMPv6, length), message) != 0 {
		return n, WrongChecksum
	}
	n.Sender = sender
	return n, n.parseMessage(message)
}

func (n *Neighbor) parseMessage(message []byte) error {
	n.Solicitation = message[0] == TypeNeighborSolicitation
	n.Target = netip.AddrFrom16([16]byte(message[8:24]))
	option := byte(optionTargetLink)
	if n.Solicitation {
		option = optionSourceLink
	}
	link, hasLink, err := linkOption(message[neighborBytes:], option)
	switch {
	case !n.Solicitation && message[0] != TypeNeighborAdvertisement || message[1] != 0:
		return WrongType
	case n.Target.IsMulticast():
		return WrongTarget
	case err != nil:
		return err
	case n.Source.IsMulticast() || n.Source.IsUnspecified() && !n.Solicitation:
		return WrongSource
	case n.Source.IsUnspecified() && hasLink:
		return WrongOption
	case n.Source.IsUnspecified() && n.Destination != SolicitedNode(n.Target):
		return WrongDestination
	case !n.Solicitation && n.Destination.IsMulticast() && message[4]&flagSolicited != 0:
		return WrongDestination
	}
	if hasLink {
		n.Sender = link
	}
	return nil
}

// linkOption of that type among the options; the first counts.
func linkOption(options []byte, wanted byte) (mac MAC, found bool, err error) {
	for len(options) > 0 {
		if len(options) < 8 {
			return mac, false, WrongOption
		}
		length := int(options[1]) * 8
		if length == 0 || length > len(options) {
			return mac, false, WrongOption
		}
		if options[0] == wanted && !found {
			if length != 8 || !MAC(options[2:8]).IsUnicast() {
				return mac, false, WrongOption
			}
			mac, found = MAC(options[2:8]), true
		}
		options = options[length:]
	}
	return mac, found, nil
}

// SolicitedNode is the group that solicitations for an address are sent to (RFC 4291
// section 2.7.1).
func SolicitedNode(address netip.Addr) netip.Addr {
	b := address.As16()
	return netip.AddrFrom16([16]byte{0xff, 0x02, 11: 0x01, 12: 0xff, 13: b[13], 14: b[14], 15: b[15]})
}

// AnnounceNeighbor is an unsolicited advertisement to all nodes: override set, router flag
// clear (RFC 9568 section 6.4.2 sets that; we route nothing).
func AnnounceNeighbor(address netip.Addr, mac MAC) []byte {
	return advertise(address, mac, allNodes, allNodesMAC, flagOverride)
}

// AnswerNeighbor is the advertisement that answers a solicitation: to its source, or to
// all nodes in duplicate address detection, which has none (RFC 4861 section 7.2.4).
func AnswerNeighbor(solicitation Neighbor, mac MAC) []byte {
	if solicitation.Source.IsUnspecified() {
		return AnnounceNeighbor(solicitation.Target, mac)
	}
	return advertise(solicitation.Target, mac, solicitation.Source, solicitation.Sender, flagOverride|flagSolicited)
}

func advertise(target netip.Addr, mac MAC, destination netip.Addr, destinationMAC MAC, flags byte) []byte {
	message := append([]byte{TypeNeighborAdvertisement, 0, 0, 0, flags, 0, 0, 0}, target.AsSlice()...)
	message = append(append(message, optionTargetLink, 1), mac[:]...)
	return neighborFrame(message, target, mac, destination, destinationMAC)
}

// SolicitNeighbor asks for an address by its solicited-node group.
func SolicitNeighbor(target, source netip.Addr, mac MAC) []byte {
	message := append([]byte{TypeNeighborSolicitation, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice()...)
	message = append(append(message, optionSourceLink, 1), mac[:]...)
	group := SolicitedNode(target)
	low := group.As16()
	return neighborFrame(message, source, mac, group, MAC{0x33, 0x33, low[12], low[13], low[14], low[15]})
}

func neighborFrame(message []byte, source netip.Addr, mac MAC, destination netip.Addr, destinationMAC MAC) []byte {
	binary.BigEndian.PutUint16(message[2:], checksum(pseudoHeader(source, destination, ProtocolICMPv6, len(message)), message))
	f := ethernet(destinationMAC, mac, EtherTypeIPv6)
	f = append(f, 0x60, 0, 0, 0)
	f = binary.BigEndian.AppendUint16(f, uint16(len(message)))
	f = append(f, ProtocolICMPv6, HopLimit)
	f = append(append(f, source.AsSlice()...), destination.AsSlice()...)
	return append(f, message...)
}
