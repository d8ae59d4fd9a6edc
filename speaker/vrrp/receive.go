package vrrp

// Turns packets from each kind of socket into events for the election.

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/speaker/vrrp/election"
	"github.com/guideway/guideway/speaker/vrrp/packet"
)

// receiveIPv4 reads a whole datagram, as raw sockets of IPv4 have it.
func (s *Speaker) receiveIPv4(from *segment) (election.Event, error) {
	datagram, about, err := s.receiveAdvertisement(from, false)
	if err != nil {
		return nil, err
	}
	a, source, err := packet.ParseIPv4(datagram)
	return election.AdvertisementHeard{Source: source, Advertisement: a, Age: about.age}, err
}

// receiveIPv6 reads the payload; of the header the kernel says what was asked for.
func (s *Speaker) receiveIPv6(from *segment) (election.Event, error) {
	message, about, err := s.receiveAdvertisement(from, true)
	if err != nil {
		return nil, err
	}
	a, err := packet.ParseIPv6(message, about.source, about.destination, about.hopLimit)
	return election.AdvertisementHeard{Source: about.source, Advertisement: a, Age: about.age}, err
}

// about a datagram, as the kernel says beside it.
type about struct {
	// How long ago it came.
	age time.Duration
	// Of IPv6; 0 and not valid: it does not say.
	hopLimit            int
	source, destination netip.Addr
}

func (s *Speaker) receiveAdvertisement(from *segment, ipv6 bool) ([]byte, about, error) {
	sockets, err := from.of(ipv6)
	if err != nil {
		return nil, about{}, err
	}
	control := make([]byte, 256)
	n, controlBytes, _, sender, err := unix.Recvmsg(sockets.advertisements, s.buffer, control, 0)
	if err != nil {
		return nil, about{}, err
	}
	about := readControl(control[:controlBytes])
	if sender, ok := sender.(*unix.SockaddrInet6); ok {
		about.source = netip.AddrFrom16(sender.Addr)
	}
	return s.buffer[:n], about, nil
}

func readControl(control []byte) (about about) {
	for len(control) >= unix.CmsgLen(0) {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			break
		}
		switch {
		case header.Level == unix.SOL_SOCKET && header.Type == unix.SCM_TIMESTAMPNS && len(data) >= 16:
			at := time.Unix(int64(binary.NativeEndian.Uint64(data)), int64(binary.NativeEndian.Uint64(data[8:])))
			about.age = time.Since(at)
		case header.Level != unix.IPPROTO_IPV6:
		case header.Type == unix.IPV6_HOPLIMIT && len(data) >= 4:
			about.hopLimit = int(binary.NativeEndian.Uint32(data))
		case header.Type == unix.IPV6_PKTINFO && len(data) >= 16:
			about.destination = netip.AddrFrom16([16]byte(data))
		}
		control = rest
	}
	return about
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
