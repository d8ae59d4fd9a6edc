package packet

import (
	"encoding/binary"
	"net/netip"
)

// Operations of ARP.
const (
	ARPRequest = 1
	ARPReply   = 2

	arpBytes = 28
)

// ARP of IPv4 over Ethernet.
type ARP struct {
	Operation uint16
	// SenderMAC belongs to Sender, which is 0.0.0.0 in a probe (RFC 5227).
	SenderMAC MAC
	Sender    netip.Addr
	TargetMAC MAC
	Target    netip.Addr
}

// ParseARP takes an Ethernet frame.
func ParseARP(frame []byte) (ARP, error) {
	b, _, err := payloadOf(frame, EtherTypeARP)
	if err != nil {
		return ARP{}, err
	}
	if len(b) < arpBytes {
		return ARP{}, TooShort
	}
	const ethernetIPv4 = 0x0001_0800_0604 // hardware and protocol types, their lengths
	if binary.BigEndian.Uint64(b)>>16 != ethernetIPv4 {
		return ARP{}, OtherProtocol
	}
	a := ARP{
		Operation: binary.BigEndian.Uint16(b[6:]),
		SenderMAC: MAC(b[8:14]), Sender: netip.AddrFrom4([4]byte(b[14:18])),
		TargetMAC: MAC(b[18:24]), Target: netip.AddrFrom4([4]byte(b[24:28])),
	}
	if a.Operation != ARPRequest && a.Operation != ARPReply {
		return ARP{}, WrongType
	}
	if !a.SenderMAC.IsUnicast() || !isHost(a.Sender) && !a.Sender.IsUnspecified() {
		return ARP{}, WrongSource
	}
	return a, nil
}

// frame to that destination, from the sender.
func (a ARP) frame(destination MAC) []byte {
	f := ethernet(destination, a.SenderMAC, EtherTypeARP)
	f = append(f, 0, 1, 8, 0, 6, 4)
	f = binary.BigEndian.AppendUint16(f, a.Operation)
	f = append(append(f, a.SenderMAC[:]...), a.Sender.AsSlice()...)
	return append(append(f, a.TargetMAC[:]...), a.Target.AsSlice()...)
}

// AnnounceARP is a gratuitous ARP frame, a request or a reply: there are hosts that learn
// from only one of the two. Trap: Linux takes a reply for gratuitous only if the target's
// MAC address is the sender's, and else ignores it for a second after the last change.
func AnnounceARP(address netip.Addr, mac MAC, operation uint16) []byte {
	a := ARP{Operation: operation, SenderMAC: mac, Sender: address, Target: address}
	if operation == ARPReply {
		a.TargetMAC = mac
	}
	return a.frame(broadcastMAC)
}

// AnswerARP is the reply to a request, to its sender alone.
func AnswerARP(request ARP, mac MAC) []byte {
	reply := ARP{Operation: ARPReply, SenderMAC: mac, Sender: request.Target, TargetMAC: request.SenderMAC, Target: request.Sender}
	return reply.frame(request.SenderMAC)
}

// RequestARP asks everybody for an address.
func RequestARP(target, sender netip.Addr, mac MAC) []byte {
	return ARP{Operation: ARPRequest, SenderMAC: mac, Sender: sender, Target: target}.frame(broadcastMAC)
}
