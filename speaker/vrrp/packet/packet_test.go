package packet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

var (
	us     = MAC{0x02, 0, 0, 0, 0, 0x01}
	client = MAC{0x02, 0, 0, 0, 0, 0x99}
	vip4   = netip.MustParseAddr("203.0.113.1")
	vip6   = netip.MustParseAddr("2001:db8::1")
	lower  = netip.MustParseAddr("192.0.2.1")
	local  = netip.MustParseAddr("fe80::1")
)

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Bytes that were worked out apart, by the RFCs.
var golden = struct{ ipv4, ipv4Pseudo, ipv6, announce6, answer6, solicitation string }{
	ipv4:         "3133fa02000a5cbacb007101cb007102",
	ipv4Pseudo:   "3133fa02000aba25cb007101cb007102",
	ipv6:         "3133fa02000a4922fe8000000000000002005efffe00023320010db8000000000000000000000001",
	announce6:    "33330000000102000000000186dd6000000000203aff20010db8000000000000000000000001ff0200000000000000000000000000018800f92a2000000020010db80000000000000000000000010201020000000001",
	answer6:      "02000000009902000000000186dd6000000000203aff20010db800000000000000000000000120010db8000000000000000000000099880089dc6000000020010db80000000000000000000000010201020000000001",
	solicitation: "3333ff00000102000000009986dd6000000000203aff20010db8000000000000000000000099ff0200000000000000000001ff00000187001af90000000020010db80000000000000000000000010101020000000099",
}

func example(ipv6, pseudo bool) Advertisement {
	a := Advertisement{VRID: 51, Priority: 250, Interval: 100 * time.Millisecond, Addresses: []netip.Addr{vip4, vip4.Next()}, PseudoHeader: pseudo}
	if ipv6 {
		a.Addresses = []netip.Addr{VirtualLinkLocal(51), vip6}
	}
	return a
}

// datagram that an IPv4 raw socket reads.
func datagram(source, destination netip.Addr, ttl byte, options int, message []byte) []byte {
	b := make([]byte, ipv4HeaderBytes+options)
	b[0], b[8], b[9] = 0x40|byte(len(b)/4), ttl, ProtocolVRRP
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)+len(message)))
	copy(b[12:], source.AsSlice())
	copy(b[16:], destination.AsSlice())
	return append(b, message...)
}

func TestAdvertisementsHaveTheBytesOfTheRFC(t *testing.T) {
	for _, c := range []struct {
		name   string
		a      Advertisement
		source netip.Addr
		want   string
	}{
		{"IPv4: no pseudo-header", example(false, false), lower, golden.ipv4},
		{"IPv4 as keepalived and FRR have it", example(false, true), lower, golden.ipv4Pseudo},
		{"IPv6: pseudo-header", example(true, false), local, golden.ipv6},
	} {
		message := c.a.Message(c.source)
		if got := hex.EncodeToString(message); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.name, got, c.want)
		}
		got, source, err := Advertisement{}, c.source, error(nil)
		if c.source.Is4() {
			got, source, err = ParseIPv4(datagram(c.source, GroupIPv4, HopLimit, 8, append(message, 0)[:len(message)]))
		} else {
			got, err = ParseIPv6(message, c.source, GroupIPv6, HopLimit)
		}
		if err != nil || source != c.source || !reflect.DeepEqual(got, c.a) {
			t.Errorf("%s is read as %+v from %s, %v", c.name, got, source, err)
		}
	}
}

// reseal a message that was changed: its checksum is right again.
func reseal(message []byte, source, destination netip.Addr, protocol byte, at int) {
	message[at], message[at+1] = 0, 0
	var pseudo []byte
	if source.Is6() {
		pseudo = pseudoHeader(source, destination, protocol, len(message))
	}
	binary.BigEndian.PutUint16(message[at:], checksum(pseudo, message))
}

func TestAdvertisementsThatAreNotAsTheRFCHasThemAreRefusedByReason(t *testing.T) {
	type in struct {
		message             []byte
		source, destination netip.Addr
		ttl                 byte
	}
	for name, c := range map[string]struct {
		change func(*in)
		want   error
	}{
		"as it should be":               {func(*in) {}, nil},
		"reserved bits set":             {func(i *in) { i.message[4] |= 0xf0 }, nil},
		"the longest interval":          {func(i *in) { i.message[4], i.message[5] = 0x0f, 0xff }, nil},
		"a router forwarded it":         {func(i *in) { i.ttl = 254 }, WrongHopLimit},
		"sent to us alone":              {func(i *in) { i.destination = lower.Next() }, WrongDestination},
		"sent to all hosts":             {func(i *in) { i.destination = netip.MustParseAddr("224.0.0.1") }, WrongDestination},
		"from nobody":                   {func(i *in) { i.source = netip.IPv4Unspecified() }, WrongSource},
		"from all":                      {func(i *in) { i.source = netip.MustParseAddr("255.255.255.255") }, WrongSource},
		"from a group":                  {func(i *in) { i.source = GroupIPv4 }, WrongSource},
		"version 2":                     {func(i *in) { i.message[0] = 0x21 }, WrongVersion},
		"another type":                  {func(i *in) { i.message[0] = 0x32 }, WrongType},
		"no addresses":                  {func(i *in) { i.message = i.message[:fixedBytes]; i.message[3] = 0 }, NoAddresses},
		"more addresses than there are": {func(i *in) { i.message[3] = 255 }, WrongLength},
		"fewer addresses":               {func(i *in) { i.message[3] = 1 }, WrongLength},
		"half an address":               {func(i *in) { i.message = i.message[:len(i.message)-2] }, WrongLength},
		"no interval":                   {func(i *in) { i.message[4], i.message[5] = 0xf0, 0 }, NoInterval},
		"cut":                           {func(i *in) { i.message = i.message[:fixedBytes-1] }, TooShort},
		"empty":                         {func(i *in) { i.message = nil }, TooShort},
	} {
		i := in{example(false, false).Message(lower), lower, GroupIPv4, HopLimit}
		c.change(&i)
		if len(i.message) > 8 {
			reseal(i.message, i.source, i.destination, ProtocolVRRP, 6)
		}
		if _, _, err := ParseIPv4(datagram(i.source, i.destination, i.ttl, 0, i.message)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestADamagedAdvertisementIsRefusedWhereverItIsDamaged(t *testing.T) {
	for _, a := range []Advertisement{example(false, false), example(false, true), example(true, false)} {
		source := lower
		if a.IsIPv6() {
			source = local
		}
		message := a.Message(source)
		for bit := range 8 * len(message) {
			damaged := bytes.Clone(message)
			damaged[bit/8] ^= 1 << (bit % 8)
			var err error
			if a.IsIPv6() {
				_, err = ParseIPv6(damaged, source, GroupIPv6, HopLimit)
			} else {
				_, _, err = ParseIPv4(datagram(source, GroupIPv4, HopLimit, 0, damaged))
			}
			if err == nil {
				t.Fatalf("%+v: bit %d", a, bit)
			}
		}
	}
}

func TestAnIPv6AdvertisementIsRefusedIfItsHeaderIsWrong(t *testing.T) {
	message := example(true, false).Message(local)
	global := netip.MustParseAddr("2001:db8::9")
	for name, c := range map[string]struct {
		source, destination netip.Addr
		hopLimit            int
		want                error
	}{
		"hop limit":           {local, GroupIPv6, 64, WrongHopLimit},
		"hop limit not known": {local, GroupIPv6, 0, WrongHopLimit},
		"destination":         {local, allNodes, 255, WrongDestination},
		"global source":       {global, GroupIPv6, 255, WrongSource},
		"another's checksum":  {local.Next(), GroupIPv6, 255, WrongChecksum},
	} {
		if _, err := ParseIPv6(message, c.source, c.destination, c.hopLimit); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestADatagramWhoseLengthsAreWrongIsRefused(t *testing.T) {
	good := datagram(lower, GroupIPv4, HopLimit, 0, example(false, false).Message(lower))
	for name, c := range map[string]struct {
		change func([]byte) []byte
		want   error
	}{
		"padded":                    {func(b []byte) []byte { return append(b, 0, 0, 0, 0) }, nil},
		"cut header":                {func(b []byte) []byte { return b[:19] }, TooShort},
		"header of 16 bytes":        {func(b []byte) []byte { b[0] = 0x44; return b }, WrongLength},
		"header longer than it":     {func(b []byte) []byte { b[0] = 0x4f; return b }, WrongLength},
		"total longer than it":      {func(b []byte) []byte { b[3]++; return b }, WrongLength},
		"total shorter than header": {func(b []byte) []byte { b[3] = 10; return b }, WrongLength},
		"IPv6":                      {func(b []byte) []byte { b[0] = 0x65; return b }, OtherProtocol},
		"UDP":                       {func(b []byte) []byte { b[9] = 17; return b }, OtherProtocol},
	} {
		if _, _, err := ParseIPv4(c.change(bytes.Clone(good))); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestAsManyAddressesAsFitAreAdvertised(t *testing.T) {
	for _, c := range []struct {
		mtu  int
		ipv6 bool
		want int
	}{{1500, false, 255}, {1500, true, 90}, {1280, true, 77}, {9000, true, 255}, {68, false, 10}, {0, false, 0}, {40, true, 0}} {
		if got := AddressesThatFit(c.mtu, c.ipv6); got != c.want {
			t.Errorf("MTU %d, IPv6 %v: %d, want %d", c.mtu, c.ipv6, got, c.want)
		}
	}
}

func TestARPHasItsBytes(t *testing.T) {
	head := "0001080006040001" + "020000000001" + "cb007101"
	for name, c := range map[string]struct {
		frame []byte
		want  string
	}{
		"gratuitous request": {AnnounceARP(vip4, us, ARPRequest), "ffffffffffff020000000001" + "0806" + head + "000000000000" + "cb007101"},
		"gratuitous reply":   {AnnounceARP(vip4, us, ARPReply), "ffffffffffff020000000001" + "0806" + "0001080006040002" + "020000000001" + "cb007101" + "020000000001" + "cb007101"},
		"answer": {
			AnswerARP(ARP{Operation: ARPRequest, SenderMAC: client, Sender: lower, Target: vip4}, us),
			"020000000099020000000001" + "0806" + "0001080006040002" + "020000000001" + "cb007101" + "020000000099" + "c0000201",
		},
		"request": {RequestARP(lower, vip4, us), "ffffffffffff020000000001" + "0806" + head + "000000000000" + "c0000201"},
	} {
		if got := hex.EncodeToString(c.frame); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if _, err := ParseARP(c.frame); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARPThatIsNoneIsRefusedByReason(t *testing.T) {
	good := RequestARP(vip4, lower, client)
	for name, c := range map[string]struct {
		change func([]byte) []byte
		want   error
	}{
		"padded":                 {func(b []byte) []byte { return append(b, make([]byte, 18)...) }, nil},
		"a probe":                {func(b []byte) []byte { return RequestARP(vip4, netip.IPv4Unspecified(), client) }, nil},
		"empty":                  {func([]byte) []byte { return nil }, TooShort},
		"cut":                    {func(b []byte) []byte { return b[:len(b)-1] }, TooShort},
		"another type":           {func(b []byte) []byte { b[13] = 0; return b }, OtherProtocol},
		"another hardware":       {func(b []byte) []byte { b[15] = 6; return b }, OtherProtocol},
		"of addresses of 255":    {func(b []byte) []byte { b[18], b[19] = 255, 255; return b }, OtherProtocol},
		"reverse ARP":            {func(b []byte) []byte { b[21] = 3; return b }, WrongType},
		"from a multicast MAC":   {func(b []byte) []byte { b[6] |= 1; return b }, WrongSource},
		"a multicast sender":     {func(b []byte) []byte { b[22] |= 1; return b }, WrongSource},
		"no sender's MAC":        {func(b []byte) []byte { copy(b[22:28], make([]byte, 6)); return b }, WrongSource},
		"the sender is a group":  {func(b []byte) []byte { b[28] = 224; return b }, WrongSource},
		"the sender is loopback": {func(b []byte) []byte { b[28] = 127; return b }, WrongSource},
	} {
		if _, err := ParseARP(c.change(bytes.Clone(good))); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

func TestNeighborDiscoveryHasItsBytes(t *testing.T) {
	asked, err := ParseNeighbor(unhex(t, golden.solicitation))
	want := Neighbor{Solicitation: true, Source: netip.MustParseAddr("2001:db8::99"), Destination: SolicitedNode(vip6), Target: vip6, Sender: client}
	if err != nil || asked != want {
		t.Fatalf("%+v, %v", asked, err)
	}
	duplicate := asked
	duplicate.Source = netip.IPv6Unspecified()
	for name, c := range map[string]struct {
		frame []byte
		want  string
	}{
		"unsolicited":                 {AnnounceNeighbor(vip6, us), golden.announce6},
		"answer":                      {AnswerNeighbor(asked, us), golden.answer6},
		"duplicate address detection": {AnswerNeighbor(duplicate, us), golden.announce6},
		"solicitation":                {SolicitNeighbor(vip6, want.Source, client), golden.solicitation},
	} {
		if got := hex.EncodeToString(c.frame); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// resealNeighbor of a frame whose length is right.
func resealNeighbor(b []byte) {
	const message = ethernetBytes + ipv6HeaderBytes
	if length := len(b) - message; length >= neighborBytes && int(b[19]) >= neighborBytes && int(b[19]) <= length {
		source, destination := netip.AddrFrom16([16]byte(b[22:38])), netip.AddrFrom16([16]byte(b[38:54]))
		reseal(b[message:message+int(b[19])], source, destination, ProtocolICMPv6, 2)
	}
}

// The checks of RFC 4861 sections 7.1.1 and 7.1.2, one after the other.
func TestNeighborDiscoveryThatIsNoneIsRefusedByReason(t *testing.T) {
	const source, destination, message, target, option = 22, 38, 54, 62, 78
	unspecified := func(b []byte) []byte {
		copy(b[source:], make([]byte, 16))
		b = b[:option]
		b[19] = neighborBytes
		return b
	}
	for name, c := range map[string]struct {
		from   string
		change func([]byte) []byte
		want   error
	}{
		"solicitation":                {golden.solicitation, func(b []byte) []byte { return b }, nil},
		"solicitation to us alone":    {golden.solicitation, func(b []byte) []byte { copy(b[destination:], vip6.AsSlice()); return b }, nil},
		"duplicate address detection": {golden.solicitation, unspecified, nil},
		"an unknown option before": {golden.solicitation, func(b []byte) []byte {
			b[19] += 8
			return append(b[:option:option], append([]byte{99, 1, 0, 0, 0, 0, 0, 0}, b[option:]...)...)
		}, nil},
		"advertisement":                       {golden.announce6, func(b []byte) []byte { return b }, nil},
		"padded":                              {golden.announce6, func(b []byte) []byte { return append(b, 0, 0) }, nil},
		"empty":                               {golden.solicitation, func([]byte) []byte { return nil }, TooShort},
		"cut":                                 {golden.solicitation, func(b []byte) []byte { return b[:option-1] }, TooShort},
		"longer than it is":                   {golden.solicitation, func(b []byte) []byte { b[18], b[19] = 0xff, 0xff; return b }, WrongLength},
		"shorter than a solicitation":         {golden.solicitation, func(b []byte) []byte { b[19] = 23; return b }, WrongLength},
		"IPv4":                                {golden.solicitation, func(b []byte) []byte { b[14] = 0x45; return b }, OtherProtocol},
		"an extension header":                 {golden.solicitation, func(b []byte) []byte { b[20] = 0; return b }, OtherProtocol},
		"a router forwarded it":               {golden.solicitation, func(b []byte) []byte { b[21] = 254; return b }, WrongHopLimit},
		"code":                                {golden.solicitation, func(b []byte) []byte { b[message+1] = 1; return b }, WrongType},
		"router advertisement":                {golden.solicitation, func(b []byte) []byte { b[message] = 134; return b }, WrongType},
		"multicast target":                    {golden.solicitation, func(b []byte) []byte { b[target] = 0xff; return b }, WrongTarget},
		"multicast source":                    {golden.solicitation, func(b []byte) []byte { b[source] = 0xff; return b }, WrongSource},
		"multicast MAC":                       {golden.solicitation, func(b []byte) []byte { b[6] |= 1; return b }, WrongSource},
		"option of no length":                 {golden.solicitation, func(b []byte) []byte { b[option+1] = 0; return b }, WrongOption},
		"option longer than it":               {golden.solicitation, func(b []byte) []byte { b[option+1] = 2; return b }, WrongOption},
		"half an option":                      {golden.solicitation, func(b []byte) []byte { b[19] -= 4; return b[:len(b)-4] }, WrongOption},
		"a multicast link-layer address":      {golden.solicitation, func(b []byte) []byte { b[option+2] |= 1; return b }, WrongOption},
		"no source but a link-layer address":  {golden.solicitation, func(b []byte) []byte { copy(b[source:], make([]byte, 16)); return b }, WrongOption},
		"no source, and not to the group":     {golden.solicitation, func(b []byte) []byte { copy(b[destination:], allNodes.AsSlice()); return unspecified(b) }, WrongDestination},
		"advertisement without a source":      {golden.announce6, func(b []byte) []byte { copy(b[source:], make([]byte, 16)); return b }, WrongSource},
		"advertisement to all, but solicited": {golden.announce6, func(b []byte) []byte { b[message+4] |= flagSolicited; return b }, WrongDestination},
	} {
		b := c.change(unhex(t, c.from))
		resealNeighbor(b)
		if _, err := ParseNeighbor(b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	damaged := unhex(t, golden.solicitation)
	damaged[message+3]++
	if _, err := ParseNeighbor(damaged); !errors.Is(err, WrongChecksum) {
		t.Errorf("damaged: %v", err)
	}
}

func TestEveryReasonHasANameOfItsOwn(t *testing.T) {
	names := map[string]bool{}
	for r := range ReasonsCount {
		names[r.String()] = true
	}
	if len(names) != int(ReasonsCount) || names[""] || names["unknown"] {
		t.Errorf("%v", names)
	}
}

// FuzzAdvertisement: whatever is taken is what its sender meant.
func FuzzAdvertisement(f *testing.F) {
	for _, text := range []string{golden.ipv4, golden.ipv4Pseudo, golden.ipv6} {
		f.Add(unhex(f, text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= fixedBytes { // a fuzzer finds no checksum
			message := bytes.Clone(data)
			reseal(message, lower, GroupIPv4, ProtocolVRRP, 6)
			data = datagram(lower, GroupIPv4, HopLimit, 0, message)
		}
		if a, source, err := ParseIPv4(data); err == nil {
			again, _, err := ParseIPv4(datagram(source, GroupIPv4, HopLimit, 0, a.Message(source)))
			if err != nil || !reflect.DeepEqual(a, again) {
				t.Fatalf("%+v, then %+v, %v", a, again, err)
			}
		}
		if len(data) >= ipv4HeaderBytes+fixedBytes {
			data = data[ipv4HeaderBytes:]
			reseal(data, local, GroupIPv6, ProtocolVRRP, 6)
		}
		if a, err := ParseIPv6(data, local, GroupIPv6, HopLimit); err == nil {
			again, err := ParseIPv6(a.Message(local), local, GroupIPv6, HopLimit)
			if err != nil || !reflect.DeepEqual(a, again) {
				t.Fatalf("%+v, then %+v, %v", a, again, err)
			}
		}
	})
}

// FuzzFrame: whatever is taken of ARP and neighbour discovery can be answered, and its
// answer is right.
func FuzzFrame(f *testing.F) {
	f.Add(RequestARP(vip4, lower, client))
	for _, text := range []string{golden.announce6, golden.answer6, golden.solicitation} {
		f.Add(unhex(f, text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if a, err := ParseARP(data); err == nil {
			answer, err := ParseARP(AnswerARP(a, us))
			if err != nil && isHost(a.Target) || err == nil && (answer.Target != a.Sender || answer.Sender != a.Target) {
				t.Fatalf("%+v is answered by %+v, %v", a, answer, err)
			}
		}
		resealNeighbor(data)
		if n, err := ParseNeighbor(data); err == nil && n.Solicitation && !n.Target.IsUnspecified() {
			answer, err := ParseNeighbor(AnswerNeighbor(n, us))
			if err != nil || answer.Target != n.Target || answer.Sender != us {
				t.Fatalf("%+v is answered by %+v, %v", n, answer, err)
			}
		}
	})
}
