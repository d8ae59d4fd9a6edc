package vrrp

// The interface: its addresses and state, and notice of changes in them or in routes.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/speaker/vrrp/election"
	"github.com/guideway/guideway/speaker/vrrp/packet"
)

// linkWatch hears from the kernel that links, addresses and routes change.
type linkWatch struct{ fd int }

func watchLinks() (*linkWatch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listen for changes of links: %w", err)
	}
	return &linkWatch{fd}, nil
}

func (w *linkWatch) close() { _ = unix.Close(w.fd) }

// changed reports whether something changed at the interface that is in use, or anything if
// there is none; and whether any route did.
func (w *linkWatch) changed(used *segment, buffer []byte) (link, routes bool) {
	for {
		n, err := unix.Read(w.fd, buffer)
		if errors.Is(err, unix.ENOBUFS) {
			link = true // of what was lost we know nothing
			continue
		}
		if err != nil {
			return link, routes
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		link = link || err != nil // cut
		for _, m := range messages {
			switch {
			case m.Header.Type == unix.RTM_NEWROUTE || m.Header.Type == unix.RTM_DELROUTE:
				routes = true
			// Links and addresses have the index at the same place (rtnetlink(7)).
			case len(m.Data) >= 8 && (used == nil || int(binary.NativeEndian.Uint32(m.Data[4:])) == used.index):
				link = true
			}
		}
	}
}

// foundLink is an interface as it is now.
type foundLink struct {
	election.Link
	index int
	// problem that does not keep it from being used.
	problem error
}

// isGone: there is no such interface, as opposed to that the kernel did not say.
func isGone(err error) bool {
	return errors.As(err, new(netlink.LinkNotFoundError))
}

// lookAtLink as it is now; it had those gateways.
func lookAtLink(name string, config election.Config, gateways []netip.Addr) (foundLink, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return foundLink{}, fmt.Errorf("interface %s: %w", name, err)
	}
	attributes := link.Attrs()
	if len(attributes.HardwareAddr) != len(packet.MAC{}) {
		return foundLink{}, fmt.Errorf("interface %s is no Ethernet: VRRP needs one", name)
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return foundLink{}, fmt.Errorf("addresses of interface %s: %w", name, err)
	}
	found := foundLink{index: attributes.Index, Link: election.Link{
		Up: attributes.RawFlags&unix.IFF_UP != 0 && attributes.RawFlags&unix.IFF_RUNNING != 0,
		// A bridge's or bond's MAC address may change.
		MAC: packet.MAC(attributes.HardwareAddr), MTU: attributes.MTU,
	}}
	for _, a := range addresses {
		address, ok := netip.AddrFromSlice(a.IP)
		if address = address.Unmap(); ok {
			found.add(address, a.Flags, name, config)
		}
	}
	if len(config.Probes) == 0 {
		found.findGateways(config, gateways)
	}
	return found, nil
}

// findGateways of families that VIPs have. A link that is lost takes its routes along, and
// one that receives nothing lets those of router advertisements expire: then the former
// gateways are still the ones to ask. One that is a VIP is ourselves, or may be.
func (f *foundLink) findGateways(config election.Config, former []netip.Addr) {
	for _, ipv6 := range []bool{false, true} {
		if !wants(config, ipv6) {
			continue
		}
		gateways, err := gatewaysOn(f.index, ipv6)
		if err != nil && f.problem == nil {
			f.problem = err
		}
		if len(gateways) == 0 {
			gateways = former
		}
		for _, gateway := range gateways {
			if gateway.Is6() == ipv6 && !isVIP(gateway, config) {
				f.Gateways = append(f.Gateways, gateway)
			}
		}
	}
}

// add an address of the interface: the first that can be used is the primary one.
func (f *foundLink) add(address netip.Addr, flags int, name string, config election.Config) {
	const notYet = unix.IFA_F_TENTATIVE | unix.IFA_F_DADFAILED
	switch {
	case isVIP(address, config):
		f.problem = fmt.Errorf("VIP %s is an address of interface %s: remove it there, or the kernel answers for it whoever owns it", address, name)
	case address.Is4() && !f.IPv4.IsValid():
		f.IPv4 = address
	case address.IsLinkLocalUnicast() && address.Is6() && flags&notYet == 0 && !f.IPv6.IsValid():
		f.IPv6 = address
	}
}

func isVIP(address netip.Addr, config election.Config) bool {
	for _, g := range config.Groups {
		for _, vip := range g.VIPs {
			if vip == address {
				return true
			}
		}
	}
	return false
}
