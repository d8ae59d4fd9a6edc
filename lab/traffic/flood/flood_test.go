package flood

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
)

// Ends of a flow in each family; the odd length of a datagram's text matters
// to the checksum.
var ends = []struct{ source, destination netip.AddrPort }{
	{netip.MustParseAddrPort("10.41.1.7:4242"), netip.MustParseAddrPort("203.0.113.20:7000")},
	{netip.MustParseAddrPort("[2001:db8:41:1::7]:4242"), netip.MustParseAddrPort("[2001:db8:a::20]:7000")},
}

// plainSum is RFC 1071's own words: add, and carry around the end.
func plainSum(parts ...[]byte) uint16 {
	var all []byte
	for _, part := range parts {
		all = append(all, part...)
	}
	if len(all)%2 == 1 {
		all = append(all, 0)
	}
	var sum uint32
	for i := 0; i < len(all); i += 2 {
		sum += uint32(all[i])<<8 | uint32(all[i+1])
		if sum > 0xffff {
			sum = sum&0xffff + 1
		}
	}
	return uint16(sum)
}

func TestEveryPacketHasRightLengthsAndChecksums(t *testing.T) {
	for _, end := range ends {
		for _, kind := range Kinds {
			t.Run(fmt.Sprintf("%v from %s", kind, end.source.Addr()), func(t *testing.T) {
				packet := Packet(kind, end.source, end.destination)
				header, protocol := 40, packet[6]
				if end.source.Addr().Is4() {
					header, protocol = 20, packet[9]
					if got := plainSum(packet[:20]); got != 0xffff {
						t.Errorf("the header's sum is %#x", got)
					}
					if got := int(binary.BigEndian.Uint16(packet[2:])); got != len(packet) {
						t.Errorf("length %d of %d", got, len(packet))
					}
				} else if got := int(binary.BigEndian.Uint16(packet[4:])); got != len(packet)-40 {
					t.Errorf("length %d of %d", got, len(packet)-40)
				}
				segment := packet[header:]
				pseudo := []byte{0, protocol, 0, byte(len(segment))}
				if got := plainSum(end.source.Addr().AsSlice(), end.destination.Addr().AsSlice(), pseudo, segment); got != 0xffff {
					t.Errorf("the segment's sum is %#x", got)
				}
				if source, destination := binary.BigEndian.Uint16(segment), binary.BigEndian.Uint16(segment[2:]); source != 4242 || destination != 7000 {
					t.Errorf("ports %d, %d", source, destination)
				}
			})
		}
	}
}

func TestGRESaysWhatIsInsideAndHowOftenItMayBeWrapped(t *testing.T) {
	inner4, inner6 := Packet(SYN, ends[0].source, ends[0].destination), Packet(SYN, ends[1].source, ends[1].destination)
	for _, test := range []struct {
		inner     []byte
		recursion uint8
		want      string
	}{{inner4, 0, "00000800"}, {inner6, 0, "000086dd"}, {inner4, 2, "02000800"}} {
		packet := GRE(ends[0].source.Addr(), ends[0].destination.Addr(), test.recursion, test.inner)
		if got := fmt.Sprintf("%x", packet[20:24]); got != test.want || packet[9] != 47 || string(packet[24:]) != string(test.inner) {
			t.Errorf("header %s, protocol %d, want %s", got, packet[9], test.want)
		}
	}
}

func TestGREBehindOptionsIsWhatLinuxMakes(t *testing.T) {
	inner := Packet(SYN, ends[1].source, ends[1].destination)
	packet := GREBehindOptions(ends[1].source.Addr(), ends[1].destination.Addr(), inner)
	if got := fmt.Sprintf("%d %x", packet[6], packet[40:52]); got != "60 2f00040104010100000086dd" || string(packet[52:]) != string(inner) {
		t.Errorf("next header, options and GRE header: %s", got)
	}
	if got := int(binary.BigEndian.Uint16(packet[4:])); got != len(packet)-40 {
		t.Errorf("length %d of %d", got, len(packet)-40)
	}
}
