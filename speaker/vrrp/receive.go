package vrrp

// A packet from each kind of socket, as the event that the election hears.

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/speaker/vrrp/election"
	"github.com/guideway/guideway/speaker/vrrp/packet"
)

// receiveIPv4 reads a whole datagram, as raw sockets of IPv4 have it.
func (s *Speaker) receiveIPv4(from *segment) (election.Event, error) {
	sockets, err := from.of(false)
	if err != nil {
		return nil, err
	}
	n, err := unix.Read(sockets.advertisements, s.buffer)
	if err != nil {
		return nil, err
	}
	a, source, err := packet.ParseIPv4(s.buffer[:n])
	return election.AdvertisementHeard{Source: source, Advertisement: a}, err
}

// receiveIPv6 reads the payload; of the header the kernel says what was asked for.
func (s *Speaker) receiveIPv6(from *segment) (election.Event, error) {
	sockets, err := from.of(true)
	if err != nil {
		return nil, err
	}
	control := make([]byte, 128)
	n, controlBytes, _, sender, err := unix.Recvmsg(sockets.advertisements, s.buffer, control, 0)
	if err != nil {
		return nil, err
	}
	hopLimit, destination := readControl(control[:controlBytes])
	source := netip.Addr{}
	if sender, ok := sender.(*unix.SockaddrInet6); ok {
		source = netip.AddrFrom16(sender.Addr)
	}
	a, err := packet.ParseIPv6(s.buffer[:n], source, destination, hopLimit)
	return election.AdvertisementHeard{Source: source, Advertisement: a}, err
}

// readControl messages: the hop limit, 0 if it is not there, and the destination.
func readControl(control []byte) (hopLimit int, destination netip.Addr) {
	for len(control) >= unix.CmsgLen(0) {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			break
		}
		switch {
		case header.Level != unix.IPPROTO_IPV6:
		case header.Type == unix.IPV6_HOPLIMIT && len(data) >= 4:
			hopLimit = int(binary.NativeEndian.Uint32(data))
		case header.Type == unix.IPV6_PKTINFO && len(data) >= 16:
			destination = netip.AddrFrom16([16]byte(data))
		}
		control = rest
	}
	return hopLimit, destination
}

func (s *Speaker) receiveARP(from *segment) (election.Event, error) {
	frame, err := s.receiveFrame(from, false)
	if err != nil {
		return nil, err
	}
	a, err := packet.ParseARP(frame)
	return election.ARPHeard{ARP: a}, err
}

func (s *Speaker) receiveNeighbor(from *segment) (election.Event, error) {
	frame, err := s.receiveFrame(from, true)
	if err != nil {
		return nil, err
	}
	n, err := packet.ParseNeighbor(frame)
	return election.NeighborHeard{Neighbor: n}, err
}

func (s *Speaker) receiveFrame(from *segment, ipv6 bool) ([]byte, error) {
	sockets, err := from.of(ipv6)
	if err != nil {
		return nil, err
	}
	n, err := unix.Read(sockets.frames, s.buffer)
	if err != nil {
		return nil, err
	}
	return s.buffer[:n], nil
}
