package output

import (
	"encoding/hex"
	"testing"
)

func TestFramesAreDescribedAsFarAsTheyGo(t *testing.T) {
	const ethernet = "0200000000010200000000fe"
	const v4 = "45000028000040004006" + "0000" + "c0000207cb00710a"
	cases := []struct{ name, frame, want string }{
		{"tcp", ethernet + "0800" + v4 + "9c400050", "tcp 192.0.2.7:40000 > 203.0.113.10:80"},
		{"cut behind the addresses", ethernet + "0800" + v4, "tcp 192.0.2.7 > 203.0.113.10"},
		{"a later fragment", ethernet + "0800" + "4500002800000005" + "4011" + "0000" + "c0000207cb00710a", "protocol 17 192.0.2.7 > 203.0.113.10, fragment at 40"},
		{"IPv6", ethernet + "86dd" + "6000000000081140" + "20010db8000000000000000000000007" + "20010db8000a00000000000000000010" + "9c4001bb", "udp [2001:db8::7]:40000 > [2001:db8:a::10]:443"},
		{"ICMP", ethernet + "0800" + "45000028000040004001" + "0000" + "c0000207cb00710a" + "0800", "icmp 192.0.2.7 > 203.0.113.10 type 8 code 0"},
		{"a tunnel", ethernet + "0800" + "4500002800004000402f" + "0000" + "0a0000010a000002" + "01000800" + v4 + "9c400050", "gre 10.0.0.1 > 10.0.0.2: tcp 192.0.2.7:40000 > 203.0.113.10:80"},
		{"a broken one", ethernet + "0800" + "60", "a malformed packet of type 0x0800"},
		{"ARP", ethernet + "0806" + "0001", "a frame of type 0x0806"},
		{"next to nothing", "0200", "2 bytes, no Ethernet header"},
	}
	for _, c := range cases {
		frame, err := hex.DecodeString(c.frame)
		if err != nil {
			t.Fatal(err)
		}
		if got := DescribeFrame(frame); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
