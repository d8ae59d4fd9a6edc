package vrrp

// The sockets on one interface: for each address family a raw socket for advertisements and a
// packet socket for ARP or neighbour discovery, and sockets that join the VIPs' solicited-node
// groups.

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/speaker/vrrp/election"
	"github.com/guideway/guideway/speaker/vrrp/packet"
)

const (
	// internetControl is the DSCP of routing protocols, CS6.
	internetControl = 48 << 2
	// Of solicited-node groups; the kernel bounds a socket's (net.core.optmem_max).
	membershipsOfSocket = 128
	// Of each socket before time is looked at. If one had more, the next are read after a
	// pause: a flood takes little processor time, and what its socket has no room for is
	// dropped in the kernel. 16,000 a second.
	receiveMax   = 64
	receivePause = 4 * time.Millisecond
	// The longest advertisement has 4088 bytes.
	receiveBytes = 8192
)

// segment is the sockets on an interface. nil: there are none.
type segment struct {
	index int
	name  string
	// link as it can be used: without an address of a family that has no sockets.
	link election.Link

	ipv4, ipv6 *sockets
	members    []int
	groups     []netip.Addr
}

// sockets of a family.
type sockets struct {
	advertisements, frames int
	// What their filters let through.
	vrids []uint8
	heard heard
}

// heard are ARP and neighbour discovery that are let through: of these addresses, or all.
type heard struct {
	addresses []netip.Addr
	all       bool
}

func (s *sockets) close() *sockets {
	if s != nil {
		_ = unix.Close(s.advertisements)
		_ = unix.Close(s.frames)
	}
	return nil
}

func (s *segment) close() *segment {
	if s != nil {
		s.ipv4.close()
		s.ipv6.close()
		closeAll(s.members)
	}
	return nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func (s *segment) descriptors() (fds []int) {
	if s == nil {
		return nil
	}
	for _, f := range []*sockets{s.ipv4, s.ipv6} {
		if f != nil {
			fds = append(fds, f.advertisements, f.frames)
		}
	}
	return fds
}

// use the link as it is now.
func (s *segment) use(link election.Link) {
	if s.ipv4 == nil {
		link.IPv4 = netip.Addr{}
	}
	if s.ipv6 == nil {
		link.IPv6 = netip.Addr{}
	}
	s.link = link
}

// openIPv4 sockets if there are such VIPs, and have their filters let through what concerns
// them.
func (s *segment) openIPv4(config election.Config, heard heard) error {
	if !wants(config, false) {
		s.ipv4 = s.ipv4.close()
		return nil
	}
	if s.ipv4 == nil {
		opened, err := s.openSockets(unix.AF_INET, unix.ETH_P_ARP, s.setUpIPv4)
		if err != nil {
			return err
		}
		s.ipv4 = opened
	}
	return s.ipv4.filter(config, heard, vridsIPv4, arpOf)
}

// openIPv6 is openIPv4 for IPv6, and joins the solicited-node groups.
func (s *segment) openIPv6(config election.Config, heard heard) error {
	if !wants(config, true) {
		s.ipv6 = s.ipv6.close()
		return s.join(nil)
	}
	if s.ipv6 == nil {
		opened, err := s.openSockets(unix.AF_INET6, unix.ETH_P_IPV6, s.setUpIPv6)
		if err != nil {
			return err
		}
		s.ipv6 = opened
	}
	return errors.Join(s.ipv6.filter(config, heard, vridsIPv6, neighborsOf), s.join(heard.addresses))
}

func (s *segment) openSockets(family, etherType int, setUp func(fd int) error) (*sockets, error) {
	raw, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, packet.ProtocolVRRP)
	if err != nil {
		return nil, s.explain("open a raw socket", err)
	}
	if err := errors.Join(setUp(raw), unix.SetsockoptInt(raw, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)); err != nil {
		_ = unix.Close(raw)
		return nil, s.explain("set up a raw socket", err)
	}
	// Of no protocol yet: nothing comes before there is a filter.
	frames, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		_ = unix.Close(raw)
		return nil, s.explain("open a packet socket", err)
	}
	opened := &sockets{advertisements: raw, frames: frames}
	err = attachFilter(frames, nothing())
	if err == nil {
		err = unix.Bind(frames, &unix.SockaddrLinklayer{Protocol: bigEndian16(uint16(etherType)), Ifindex: s.index})
	}
	if err != nil {
		opened.close()
		return nil, s.explain("set up a packet socket", err)
	}
	return opened, nil
}

// explain an error, with the cure where it is known.
func (s *segment) explain(operation string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("vrrp on %s needs CAP_NET_RAW: give it to the speaker (`AmbientCapabilities=CAP_NET_RAW` and `CapabilityBoundingSet=CAP_NET_RAW` in its unit), or run it as root: %s: %w", s.name, operation, err)
	}
	return fmt.Errorf("vrrp on %s: %s: %w", s.name, operation, err)
}

func (s *segment) setUpIPv4(fd int) error {
	group := unix.IPMreqn{Multiaddr: packet.GroupIPv4.As4(), Ifindex: int32(s.index)}
	return errors.Join(
		unix.BindToDevice(fd, s.name),
		unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &group),
		unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_IF, &unix.IPMreqn{Ifindex: int32(s.index)}),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_TTL, packet.HopLimit),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MULTICAST_LOOP, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_TOS, internetControl),
	)
}

func (s *segment) setUpIPv6(fd int) error {
	return errors.Join(
		unix.BindToDevice(fd, s.name),
		unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: packet.GroupIPv6.As16(), Interface: uint32(s.index)}),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, s.index),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, packet.HopLimit),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_LOOP, 0),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, internetControl),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1),
	)
}

// join the solicited-node groups of these addresses of IPv6, owner or not: a switch that
// snoops needs time to learn of members. New sockets join before the former ones leave.
func (s *segment) join(addresses []netip.Addr) error {
	var groups []netip.Addr
	for _, a := range addresses {
		if a.Is6() {
			groups = append(groups, packet.SolicitedNode(a))
		}
	}
	slices.SortFunc(groups, netip.Addr.Compare)
	groups = slices.Compact(groups)
	if slices.Equal(groups, s.groups) {
		return nil
	}
	var members []int
	for some := range slices.Chunk(groups, membershipsOfSocket) {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			closeAll(members)
			return s.explain("open a socket for multicast groups", err)
		}
		members = append(members, fd)
		for _, group := range some {
			if err := unix.SetsockoptIPv6Mreq(fd, unix.IPPROTO_IPV6, unix.IPV6_JOIN_GROUP, &unix.IPv6Mreq{Multiaddr: group.As16(), Interface: uint32(s.index)}); err != nil {
				closeAll(members)
				return s.explain("join "+group.String(), err)
			}
		}
	}
	closeAll(s.members)
	s.members, s.groups = members, groups
	return nil
}

var errClosed = errors.New("no socket of this family")

// of the family.
func (s *segment) of(ipv6 bool) (*sockets, error) {
	switch {
	case s == nil, ipv6 && s.ipv6 == nil, !ipv6 && s.ipv4 == nil:
		return nil, errClosed
	case ipv6:
		return s.ipv6, nil
	}
	return s.ipv4, nil
}

// advertise to the group, from the source that the checksum has.
func (s *segment) advertise(a election.Advertise) error {
	sockets, err := s.of(a.Source.Is6())
	if err != nil {
		return err
	}
	control, to := unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(s.index), Spec_dst: [4]byte(a.Source.AsSlice()[:4])}), unix.Sockaddr(&unix.SockaddrInet4{Addr: packet.GroupIPv4.As4()})
	if a.Source.Is6() {
		control = unix.PktInfo6(&unix.Inet6Pktinfo{Ifindex: uint32(s.index), Addr: a.Source.As16()})
		to = &unix.SockaddrInet6{Addr: packet.GroupIPv6.As16(), ZoneId: uint32(s.index)}
	}
	if err := unix.Sendmsg(sockets.advertisements, a.Advertisement.Message(a.Source), control, to, 0); err != nil {
		return s.explain(fmt.Sprintf("advertise VRID %d from %s", a.Advertisement.VRID, a.Source), err)
	}
	return nil
}

func (s *segment) announce(a election.Announce) error {
	if a.VIP.Is6() {
		return s.sendFrame(true, packet.AnnounceNeighbor(a.VIP, s.link.MAC))
	}
	return s.sendFrame(false, packet.AnnounceARP(a.VIP, s.link.MAC, a.Operation))
}

func (s *segment) probe(target netip.Addr) error {
	if target.Is6() {
		return s.sendFrame(true, packet.SolicitNeighbor(target, s.link.IPv6, s.link.MAC))
	}
	return s.sendFrame(false, packet.RequestARP(target, s.link.IPv4, s.link.MAC))
}

func (s *segment) sendFrame(ipv6 bool, frame []byte) error {
	sockets, err := s.of(ipv6)
	if err != nil {
		return err
	}
	if _, err := unix.Write(sockets.frames, frame); err != nil {
		return s.explain("send a frame", err)
	}
	return nil
}
