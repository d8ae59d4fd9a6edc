package tracer

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

var (
	flow4 = Flow{TCP, netip.MustParseAddrPort("192.0.2.1:40000"), netip.MustParseAddrPort("203.0.113.10:80")}
	flow6 = Flow{TCP, netip.MustParseAddrPort("[2001:db8:c::7]:40000"), netip.MustParseAddrPort("[2001:db8:f::10]:443")}
)

func markOfOnes() (mark [MarkBytes]byte) {
	copy(mark[:], bytes.Repeat([]byte{0xa7}, MarkBytes))
	return mark
}

// every packet that can be built.
func everyPacket() (packets []Packet) {
	for _, flow := range []Flow{flow4, flow6} {
		for _, protocol := range []Protocol{TCP, UDP} {
			for _, valid := range []bool{false, true} {
				for _, fragment := range []bool{false, true} {
					flow.Protocol = protocol
					packets = append(packets, Packet{Flow: flow, Mark: markOfOnes(), ID: 0x12345678, ValidChecksum: valid, Fragment: fragment})
				}
			}
		}
	}
	return packets
}

func TestTheFirstPacketHasItsLengthAndEndsWithTheMark(t *testing.T) {
	for _, packet := range everyPacket() {
		first := packet.Bytes()[0]
		mark := markOfOnes()
		if len(first) != PacketBytes || !bytes.HasSuffix(first, mark[:]) {
			t.Errorf("%+v: %d bytes, % x", packet, len(first), first)
		}
	}
}

func TestLengthFieldsAreThoseOfTheBytes(t *testing.T) {
	for _, packet := range everyPacket() {
		for _, one := range packet.Bytes() {
			length := int(binary.BigEndian.Uint16(one[2:]))
			if !packet.isIPv4() {
				length = ipv6Bytes + int(binary.BigEndian.Uint16(one[4:]))
			}
			if length != len(one) {
				t.Errorf("%+v: length field %d, %d bytes", packet, length, len(one))
			}
			if packet.isIPv4() && fold(sum(one[:ipv4Bytes])) != 0xffff {
				t.Errorf("%+v: header checksum is wrong", packet)
			}
		}
	}
}

// reassemble as Linux does: a first fragment is cut to a multiple of eight.
func reassemble(t *testing.T, packet Packet) []byte {
	t.Helper()
	pieces := packet.Bytes()
	header := packet.headerBytes()
	if !packet.Fragment {
		if len(pieces) != 1 {
			t.Fatalf("%+v: %d packets", packet, len(pieces))
		}
		return pieces[0][header:]
	}
	if len(pieces) != 2 {
		t.Fatalf("%+v: %d packets", packet, len(pieces))
	}
	offset, more := make([]int, 2), make([]bool, 2)
	for i, piece := range pieces {
		word := binary.BigEndian.Uint16(piece[6:])
		offset[i], more[i] = int(word&0x1fff)*8, word&0x2000 != 0
		if !packet.isIPv4() {
			if piece[6] != 44 || piece[40] != byte(packet.Flow.Protocol) {
				t.Errorf("%+v: no fragment header in % x", packet, piece)
			}
			word = binary.BigEndian.Uint16(piece[42:])
			offset[i], more[i] = int(word&^7), word&1 != 0
		}
	}
	cut := (len(pieces[0]) - header) &^ 7
	if offset[0] != 0 || !more[0] || offset[1] != cut || more[1] {
		t.Errorf("%+v: offsets %v, more %v, first cut to %d", packet, offset, more, cut)
	}
	return append(bytes.Clone(pieces[0][header:header+cut]), pieces[1][header:]...)
}

func TestTransportChecksumsAreWrongUnlessAskedFor(t *testing.T) {
	for _, packet := range everyPacket() {
		datagram := reassemble(t, packet)
		if packet.Flow.Protocol == UDP && int(binary.BigEndian.Uint16(datagram[4:])) != len(datagram) {
			t.Errorf("%+v: UDP length is not %d", packet, len(datagram))
		}
		valid := fold(packet.pseudoHeader(len(datagram))+sum(datagram)) == 0xffff
		if valid != packet.ValidChecksum {
			t.Errorf("%+v: checksum valid: %v", packet, valid)
		}
	}
}

func TestAUDPChecksumIsNeverAbsent(t *testing.T) {
	flow := flow4
	flow.Protocol = UDP
	seen := 0
	for id := range uint32(1 << 16) {
		// Every value of the sum, by way of a port.
		flow.Source = netip.AddrPortFrom(flow.Source.Addr(), uint16(id))
		for _, valid := range []bool{false, true} {
			packet := Packet{Flow: flow, ID: id, ValidChecksum: valid}.Bytes()[0]
			if binary.BigEndian.Uint16(packet[ipv4Bytes+6:]) == 0 {
				t.Fatalf("port %d, valid %v: no checksum", id, valid)
			}
			if ok := fold(Packet{Flow: flow}.pseudoHeader(len(packet)-ipv4Bytes)+sum(packet[ipv4Bytes:])) == 0xffff; ok != valid {
				t.Fatalf("port %d: valid %v, wanted %v", id, ok, valid)
			}
			seen++
		}
	}
	if seen != 1<<17 {
		t.Errorf("%d packets", seen)
	}
}
