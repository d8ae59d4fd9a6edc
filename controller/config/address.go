package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// parseAddress takes an address that a packet can be sent to, or says why not.
func parseAddress(text string) (netip.Addr, string) {
	address, err := netip.ParseAddr(text)
	switch {
	case err != nil && strings.Contains(text, "/"):
		return netip.Addr{}, fmt.Sprintf("is %q: give one address, without a prefix length", text)
	case err != nil:
		return netip.Addr{}, fmt.Sprintf("is %q: give an IPv4 or IPv6 address, like 203.0.113.10 or 2001:db8::10", text)
	case address.Zone() != "":
		return netip.Addr{}, fmt.Sprintf("is %s: give an address that needs no interface, so without %%%s", text, address.Zone())
	case address.Is4In6():
		return netip.Addr{}, fmt.Sprintf("is %s: write it as IPv4, %s", text, address.Unmap())
	}
	if kind := notUnicast(address); kind != "" {
		return netip.Addr{}, fmt.Sprintf("is %s, %s: give a unicast address", text, kind)
	}
	return address, ""
}

// notUnicast says what an address is that no single host on a network has.
func notUnicast(address netip.Addr) string {
	switch {
	case address.IsUnspecified():
		return "the unspecified address"
	case address.Is4() && address.As4()[0] == 0:
		return "an address of \"this network\" (RFC 1122)"
	case address.IsLoopback():
		return "a loopback address"
	case address.IsMulticast():
		return "a multicast address"
	case address == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return "the broadcast address"
	case address.Is6() && address.IsLinkLocalUnicast():
		return "a link-local address"
	}
	return ""
}

// parsePrefix takes a CIDR prefix without host bits, or says what is wrong.
func parsePrefix(text string) (netip.Prefix, string) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil && !strings.Contains(text, "/"):
		if address, addressErr := netip.ParseAddr(text); addressErr == nil {
			return netip.Prefix{}, fmt.Sprintf("is %s without a length: for this address alone write %s/%d", text, text, address.BitLen())
		}
		fallthrough
	case err != nil:
		return netip.Prefix{}, fmt.Sprintf("is %q: give a prefix, like 203.0.113.0/24 or 2001:db8::/48", text)
	case prefix.Addr().Is4In6():
		return netip.Prefix{}, fmt.Sprintf("is %s: write it as IPv4", text)
	case prefix != prefix.Masked():
		return netip.Prefix{}, fmt.Sprintf("is %s, which has bits set beyond its length: write %s", text, prefix.Masked())
	}
	if kind := notUnicast(prefix.Addr()); kind != "" && prefix.Bits() > 0 && !prefix.Addr().IsUnspecified() {
		return netip.Prefix{}, fmt.Sprintf("is %s, which begins at %s: give a prefix of unicast addresses", text, kind)
	}
	return prefix, ""
}

func family(address netip.Addr) string {
	if address.Is4() {
		return "IPv4"
	}
	return "IPv6"
}
