package topology

import (
	"net/netip"
	"slices"
	"testing"
)

func TestSubflowsAreReadFromWhatSsPrints(t *testing.T) {
	const printed = `0      0      10.10.0.1:51318 203.0.113.20:7   bbr wscale:10,10 bytes_sent:5 bytes_acked:6 bytes_received:10 segs_out:5 tcp-ulp-mptcp flags:Mmec token:0000(id:0)/7427f911(id:0) seq:b45021dab8181cd0
0      0      10.11.0.1%eth1:34001 203.0.113.20:7   cubic bytes_received:4 tcp-ulp-mptcp flags:JjecM token:c176ca0d(id:1)/7427f911(id:2) seq:0
0      0      [2001:db8:10::1]:40000 [2001:db8:a::20]:7   cubic bytes_acked:1 tcp-ulp-mptcp flags:Mmec token:0000(id:0)/0a(id:0) seq:0
0      0      10.10.0.1:40001 203.0.113.10:80   cubic bytes_acked:99
`
	got, err := parseSubflows(printed)
	at := netip.MustParseAddrPort
	want := []Subflow{
		{at("10.10.0.1:51318"), at("203.0.113.20:7"), "7427f911", 16},
		{at("10.11.0.1:34001"), at("203.0.113.20:7"), "7427f911", 4},
		{at("[2001:db8:10::1]:40000"), at("[2001:db8:a::20]:7"), "0a", 1},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("read %+v, %v", got, err)
	}
}
