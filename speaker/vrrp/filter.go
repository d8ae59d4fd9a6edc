package vrrp

// The kernel filters of the sockets. They pass packets that concern our virtual routers and
// VIPs, so that a flood of others takes no room in a socket. While the link seems to receive
// nothing, they pass all ARP and neighbour discovery.

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/speaker/vrrp/election"
	"github.com/guideway/guideway/speaker/vrrp/packet"
)

const (
	// More addresses than this are not looked for in the kernel, but here: a filter has
	// 4096 instructions, and these take four each.
	filteredAddressesMax = 512
	// Of a packet that passes, as many bytes: all.
	wholePacket = 1 << 18
)

var drop, pass = bpf.RetConstant{}, bpf.RetConstant{Val: wholePacket}

// filter anew, if the virtual routers or addresses are others than before.
func (s *sockets) filter(config election.Config, heard heard, advertisements func([]uint8) []bpf.Instruction, frames func(heard) []bpf.Instruction) error {
	var vrids []uint8
	for _, g := range config.Groups {
		vrids = append(vrids, g.VRID)
	}
	if !slices.Equal(vrids, s.vrids) {
		if err := attachFilter(s.advertisements, advertisements(vrids)); err != nil {
			return err
		}
		s.vrids = vrids
	}
	if heard.all != s.heard.all || !slices.Equal(heard.addresses, s.heard.addresses) {
		if err := attachFilter(s.frames, frames(heard)); err != nil {
			return err
		}
		s.heard = heard
	}
	return nil
}

func attachFilter(fd int, program []bpf.Instruction) error {
	assembled, err := bpf.Assemble(program)
	if err != nil {
		return fmt.Errorf("assemble the filter: %w", err)
	}
	instructions := make([]unix.SockFilter, 0, len(assembled))
	for _, i := range assembled {
		instructions = append(instructions, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	filter := unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter); err != nil {
		return fmt.Errorf("attach the filter: %w", err)
	}
	return nil
}

func nothing() []bpf.Instruction { return []bpf.Instruction{drop} }

// passIfAny of the values is what was loaded.
func passIfAny(values []uint32) (program []bpf.Instruction) {
	for _, v := range values {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: v, SkipTrue: 1}, pass)
	}
	return program
}

// vridsIPv4 of datagrams that begin with the IPv4 header, whose length varies.
func vridsIPv4(vrids []uint8) []bpf.Instruction {
	return append([]bpf.Instruction{bpf.LoadMemShift{Off: 0}, bpf.LoadIndirect{Off: 1, Size: 1}}, passIfVRID(vrids)...)
}

// vridsIPv6 of payloads.
func vridsIPv6(vrids []uint8) []bpf.Instruction {
	return append([]bpf.Instruction{bpf.LoadAbsolute{Off: 1, Size: 1}}, passIfVRID(vrids)...)
}

func passIfVRID(vrids []uint8) []bpf.Instruction {
	var values []uint32
	for _, v := range vrids {
		values = append(values, uint32(v))
	}
	return append(passIfAny(values), drop)
}

// forUs begins a filter of frames: not those for other hosts, which a device hands on that
// is in promiscuous mode or has no such VLAN, and not those that are sent.
func forUs() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: unix.PACKET_MULTICAST, SkipTrue: 1}, drop,
	}
}

// arpOf frames whose sender or target is one of these.
func arpOf(heard heard) []bpf.Instruction {
	const sender, target = 14 + 14, 14 + 24
	values := lowWords(heard.addresses, false)
	if heard.all || len(values) > filteredAddressesMax {
		return append(forUs(), pass)
	}
	program := append(forUs(), bpf.LoadAbsolute{Off: target, Size: 4})
	program = append(append(program, passIfAny(values)...), bpf.LoadAbsolute{Off: sender, Size: 4})
	return append(append(program, passIfAny(values)...), drop)
}

// neighborsOf frames that are solicitations or advertisements whose target ends as one of
// these.
func neighborsOf(heard heard) []bpf.Instruction {
	const nextHeader, icmpType, targetEnd = 14 + 6, 14 + 40, 14 + 40 + 8 + 12
	program := append(forUs(),
		bpf.LoadAbsolute{Off: nextHeader, Size: 1}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: packet.ProtocolICMPv6, SkipTrue: 1}, drop,
		bpf.LoadAbsolute{Off: icmpType, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: packet.TypeNeighborSolicitation, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: packet.TypeNeighborAdvertisement, SkipTrue: 1}, drop,
	)
	values := lowWords(heard.addresses, true)
	if heard.all || len(values) > filteredAddressesMax {
		return append(program, pass)
	}
	program = append(program, bpf.LoadAbsolute{Off: targetEnd, Size: 4})
	return append(append(program, passIfAny(values)...), drop)
}

// lowWords are the last 32 bits of the family's addresses.
func lowWords(addresses []netip.Addr, ipv6 bool) (words []uint32) {
	for _, a := range addresses {
		if b := a.AsSlice(); a.Is6() == ipv6 {
			words = append(words, binary.BigEndian.Uint32(b[len(b)-4:]))
		}
	}
	return words
}

func bigEndian16(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
