package vrrp

// The interface: what it has, and when that changes.

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

// linkWatch hears from the kernel that links and addresses change.
type linkWatch struct{ fd int }

func watchLinks() (*linkWatch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open a netlink socket: %w", err)
	}
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("listen for changes of links: %w", err)
	}
	return &linkWatch{fd}, nil
}

func (w *linkWatch) close() { _ = unix.Close(w.fd) }

// changed reports whether something changed at the interface that is in use, or anything if
// there is none.
func (w *linkWatch) changed(used *segment, buffer []byte) bool {
	changed := false
	for {
		n, err := unix.Read(w.fd, buffer)
		if errors.Is(err, unix.ENOBUFS) {
			changed = true // of what was lost we know nothing
			continue
		}
		if err != nil {
			return changed
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		changed = changed || err != nil // cut
		for _, m := range messages {
			// Links and addresses have the index at the same place (rtnetlink(7)).
			if len(m.Data) >= 8 && (used == nil || int(binary.NativeEndian.Uint32(m.Data[4:])) == used.index) {
				changed = true
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

// lookAtLink as it is now.
func lookAtLink(name string, config election.Config) (foundLink, error) {
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
	return found, nil
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
