package keepalived

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Of all virtual servers: as many as the forwarder's filter holds.
const vipsMax = 65_536

// addresses become the service's VIPs. It gives a name made of them, or says why there are none.
func (v *virtualServer) addresses() (name, why string) {
	const noAddress = "packets are matched by address, not by firewall mark: write a virtual_server for each address and port that is marked"
	switch v.item.value(1) {
	case "fwmark":
		return "", noAddress
	case "group":
		group := v.groups[v.item.value(2)]
		if group == nil {
			return "", fmt.Sprintf("there is no virtual_server_group %s", quote(v.item.value(2)))
		}
		v.groupsUsed[v.item.value(2)] = true
		for _, i := range group.items {
			switch {
			case i.keyword() == "fwmark":
				v.note(v.service, LeftOut, i, noAddress)
			case i.skipped != "":
				v.other(v.service, i)
			default:
				v.addRange(i, i.value(0), i.value(1))
			}
		}
		name = v.item.value(2)
	default:
		v.addRange(v.item, v.item.value(1), v.item.value(2))
		name = strings.Join(v.item.words[1:min(2, len(v.item.words))], "") + "-" + v.protocol
		if len(v.ports) > 0 {
			name += "-" + v.ports[0]
		}
	}
	if len(v.service.Vips) == 0 {
		return "", "none of its addresses could be converted"
	}
	return name, ""
}

// addRange of addresses, often of one, with a port; none or 0: all ports. Whether they are
// addresses and ports at all, Settle finds out.
func (v *virtualServer) addRange(at *item, text, port string) {
	first, count, why := addressRange(text)
	if v.vips+count > vipsMax {
		why = fmt.Sprintf("with these there are more than %d VIPs: use `prefix_groups` (docs/config.md)", vipsMax)
	}
	if why != "" {
		v.note(v.service, LeftOut, at, "%s", why)
		return
	}
	v.vips += count
	var ports []string
	if port != "" && port != "0" {
		ports = []string{port}
		v.ports = append(v.ports, port)
	}
	for range count {
		vip := &configv1.Vip{Address: proto.String(text), Ports: ports, Protocol: proto.String(v.protocol)}
		if first.IsValid() {
			vip.Address = proto.String(first.String())
			first = first.Next()
		}
		v.origins[vip] = at
		v.service.Vips = append(v.service.Vips, vip)
	}
}

// addressRange of `192.0.2.1`, `192.0.2.1-9`, `192.0.2.1-192.0.2.9` and `192.0.2.0/29`: the first
// and how many. The first is invalid for one that is no range, whatever it is.
func addressRange(text string) (first netip.Addr, count int, why string) {
	if strings.Contains(text, "/") {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return first, 0, "it is no prefix"
		}
		return prefix.Masked().Addr(), 1 << min(prefix.Addr().BitLen()-prefix.Bits(), 30), ""
	}
	begin, end, isRange := strings.Cut(text, "-")
	if !isRange {
		return first, 1, ""
	}
	first, err := netip.ParseAddr(begin)
	if err != nil || first.Zone() != "" {
		return first, 0, "the range does not begin with an address"
	}
	last, ok := endOfRange(first, end)
	if !ok || last.Less(first) || last.BitLen() != first.BitLen() {
		return first, 0, "the range does not end with an address, or a last number, behind its first"
	}
	return first, distance(first, last), ""
}

// endOfRange is an address, or its last number: decimal of IPv4, hexadecimal of IPv6.
func endOfRange(first netip.Addr, text string) (netip.Addr, bool) {
	if strings.ContainsAny(text, ".:") {
		last, err := netip.ParseAddr(text)
		return last, err == nil && last.Zone() == ""
	}
	base, bits := 10, 8
	if first.Is6() {
		base, bits = 16, 16
	}
	n, err := strconv.ParseUint(text, base, bits)
	if err != nil {
		return first, false
	}
	bytes := first.AsSlice()
	bytes[len(bytes)-1] = byte(n)
	if first.Is6() {
		bytes[len(bytes)-2] = byte(n >> 8)
	}
	last, _ := netip.AddrFromSlice(bytes)
	return last, true
}

// distance counts addresses from first to last, up to more than there may be.
func distance(first, last netip.Addr) int {
	a, b := first.As16(), last.As16()
	n := 0
	for i := range a {
		n = min(n, vipsMax)<<8 + int(b[i]) - int(a[i])
	}
	return n + 1
}

// quote what a person wrote.
func quote(text string) string { return (&item{words: []string{text}}).what() }
