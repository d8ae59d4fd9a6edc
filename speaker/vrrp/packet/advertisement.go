package packet

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Of VRRP in IP (RFC 9568 sections 5.1 and 5.2).
const (
	ProtocolVRRP = 112
	HopLimit     = 255

	version3          = 3
	typeAdvertisement = 1
	fixedBytes        = 8
	// AddressesMax of an advertisement: their count has eight bits.
	AddressesMax = 255
	// IntervalUnit of the Max Advertise Interval, which has twelve bits.
	IntervalUnit = 10 * time.Millisecond
	IntervalMax  = 4095 * IntervalUnit

	ipv4HeaderBytes = 20
	ipv6HeaderBytes = 40
)

// Groups that advertisements are sent to (RFC 9568 sections 5.1.1.2 and 5.1.2.2).
var (
	GroupIPv4 = netip.AddrFrom4([4]byte{224, 0, 0, 18})
	GroupIPv6 = netip.MustParseAddr("ff02::12")
)

// Advertisement of VRRP, the only message there is.
type Advertisement struct {
	// VRID 1 to 255: the virtual router, together with the family.
	VRID uint8
	// Priority 1 to 255; 0: the sender resigns.
	Priority uint8
	// Interval (Max Advertise Interval): the sender advertises as often, 10 ms to
	// 40.95 s, in units of 10 ms.
	Interval time.Duration
	// Addresses of the virtual router, 1 to 255, all of one family.
	Addresses []netip.Addr
	// PseudoHeader: an IPv4 checksum covers the pseudo-header as well. RFC 9568 section
	// 5.2.8 leaves it out for IPv4 and takes it in for IPv6. RFC 5798 could be read
	// either way, and keepalived (without v3_checksum_as_v2) and FRR (without `no vrrp N
	// checksum-with-ipv4-pseudoheader`, and always before 8.5) take it in, and refuse
	// what does not. Both kinds are received.
	PseudoHeader bool
}

// IsIPv6 reports the family of the virtual router.
func (a Advertisement) IsIPv6() bool { return len(a.Addresses) > 0 && a.Addresses[0].Is6() }

// AddressesThatFit into an advertisement on a link of that MTU: it may not be fragmented,
// as only a whole datagram shows its hop limit and its checksum.
func AddressesThatFit(mtu int, ipv6 bool) int {
	room := (mtu - ipv4HeaderBytes - fixedBytes) / 4
	if ipv6 {
		room = (mtu - ipv6HeaderBytes - fixedBytes) / 16
	}
	return max(0, min(room, AddressesMax))
}

// Message is the IP payload, as it is sent from the source to the family's group.
func (a Advertisement) Message(source netip.Addr) []byte {
	message := make([]byte, fixedBytes, fixedBytes+16*len(a.Addresses))
	message[0] = version3<<4 | typeAdvertisement
	message[1], message[2], message[3] = a.VRID, a.Priority, uint8(len(a.Addresses))
	binary.BigEndian.PutUint16(message[4:], uint16(a.Interval/IntervalUnit)&0xfff)
	for _, address := range a.Addresses {
		message = append(message, address.AsSlice()...)
	}
	var pseudo []byte
	if source.Is6() {
		pseudo = pseudoHeader(source, GroupIPv6, ProtocolVRRP, len(message))
	} else if a.PseudoHeader {
		pseudo = pseudoHeader(source, GroupIPv4, ProtocolVRRP, len(message))
	}
	binary.BigEndian.PutUint16(message[6:], checksum(pseudo, message))
	return message
}

// ParseIPv4 takes a whole IPv4 datagram, whose header checksum the kernel has verified.
func ParseIPv4(datagram []byte) (a Advertisement, source netip.Addr, err error) {
	if len(datagram) < ipv4HeaderBytes {
		return a, source, TooShort
	}
	header, total := int(datagram[0]&0xf)*4, int(binary.BigEndian.Uint16(datagram[2:]))
	source, destination := netip.AddrFrom4([4]byte(datagram[12:16])), netip.AddrFrom4([4]byte(datagram[16:20]))
	switch {
	case datagram[0]>>4 != 4 || datagram[9] != ProtocolVRRP:
		return a, source, OtherProtocol
	case header < ipv4HeaderBytes || header > total || total > len(datagram):
		return a, source, WrongLength
	case destination != GroupIPv4:
		return a, source, WrongDestination
	case datagram[8] != HopLimit:
		return a, source, WrongHopLimit
	case !isHost(source):
		return a, source, WrongSource
	}
	a, err = parseAdvertisement(datagram[header:total], source, destination)
	return a, source, err
}

// ParseIPv6 takes the payload of an IPv6 datagram, and what its header says.
func ParseIPv6(message []byte, source, destination netip.Addr, hopLimit int) (Advertisement, error) {
	switch {
	case destination != GroupIPv6:
		return Advertisement{}, WrongDestination
	case hopLimit != HopLimit:
		return Advertisement{}, WrongHopLimit
	case !source.IsLinkLocalUnicast(): // RFC 9568 section 5.1.2.1
		return Advertisement{}, WrongSource
	}
	return parseAdvertisement(message, source, destination)
}

// The checks of RFC 9568 section 7.1.
func parseAdvertisement(message []byte, source, destination netip.Addr) (a Advertisement, err error) {
	if len(message) < fixedBytes {
		return a, TooShort
	}
	addressBytes := source.BitLen() / 8
	count := int(message[3])
	interval := time.Duration(binary.BigEndian.Uint16(message[4:])&0xfff) * IntervalUnit
	withPseudo := checksum(pseudoHeader(source, destination, ProtocolVRRP, len(message)), message) == 0
	switch {
	case message[0]>>4 != version3:
		return a, WrongVersion
	case message[0]&0xf != typeAdvertisement:
		return a, WrongType
	case count == 0:
		return a, NoAddresses
	case len(message) != fixedBytes+count*addressBytes:
		return a, WrongLength
	case !withPseudo && (source.Is6() || checksum(message) != 0):
		return a, WrongChecksum
	case interval == 0:
		return a, NoInterval
	}
	a = Advertisement{
		VRID: message[1], Priority: message[2], Interval: interval,
		Addresses: make([]netip.Addr, 0, count), PseudoHeader: withPseudo && source.Is4(),
	}
	for list := message[fixedBytes:]; len(list) > 0; list = list[addressBytes:] {
		address, _ := netip.AddrFromSlice(list[:addressBytes])
		a.Addresses = append(a.Addresses, address)
	}
	return a, nil
}

// VirtualLinkLocal is the link-local address that belongs to an IPv6 virtual router, which
// advertisements list first (RFC 9568 section 5.2.9): that of the virtual router's MAC
// address, 00-00-5E-00-02-{VRID}, by RFC 4291 appendix A.
func VirtualLinkLocal(vrid uint8) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: 0x02, 9: 0x00, 10: 0x5e, 11: 0xff, 12: 0xfe, 13: 0x00, 14: 0x02, 15: vrid})
}
