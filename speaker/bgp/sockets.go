package bgp

// Finds GoBGP's sockets, to which it offers no access, among this process's descriptors, and
// sets the kernel's filter by sender on one.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var errNoSocket = errors.New("no socket on the port")

// eachSocket of this process that is one of those. `fd` is a copy, good until `do`
// returns; the original's number may be another file's by then.
func eachSocket(isOne func(fd int) bool, do func(fd, original int) error) error {
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("look for a socket: %w", err)
	}
	var failed []error
	for _, entry := range descriptors {
		original, err := strconv.Atoi(entry.Name())
		what, _ := os.Readlink("/proc/self/fd/" + entry.Name()) // gone meanwhile: not it
		if err != nil || !strings.HasPrefix(what, "socket:") {
			continue
		}
		fd, err := unix.FcntlInt(uintptr(original), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue
		}
		if isOne(fd) {
			failed = append(failed, do(fd, original))
		}
		_ = unix.Close(fd)
	}
	return errors.Join(failed...)
}

func portOf(address unix.Sockaddr) int {
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return a.Port
	case *unix.SockaddrInet6:
		return a.Port
	}
	return 0
}

// attach to a socket the filter that lets packets of these routers through alone, and
// only those with TTL (hop limit) 255.
func attach(fd int, routers []netip.Addr) error {
	program, err := bpf.Assemble(routersFilter(routers))
	if err != nil {
		return fmt.Errorf("assemble the filter: %w", err)
	}
	instructions := make([]unix.SockFilter, 0, len(program))
	for _, i := range program {
		instructions = append(instructions, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	filter := unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter); err != nil {
		return fmt.Errorf("attach the filter: %w", err)
	}
	return nil
}

const (
	// Loads beyond this begin at the IP header (SKF_NET_OFF of linux/filter.h).
	networkHeader = 0xfff0_0000
	// Of a packet that passes, as many bytes: all.
	wholePacket = 0xffff_ffff
)

func routersFilter(routers []netip.Addr) []bpf.Instruction {
	byteAt := func(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: networkHeader + offset, Size: 1} }
	wordAt := func(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: networkHeader + offset, Size: 4} }
	drop, pass := bpf.RetConstant{}, bpf.RetConstant{Val: wholePacket}
	verdict := func(ttlAt uint32) []bpf.Instruction {
		return []bpf.Instruction{byteAt(ttlAt), bpf.JumpIf{Cond: bpf.JumpEqual, Val: 255, SkipTrue: 1}, drop, pass}
	}
	var ipv4, ipv6 []bpf.Instruction
	for _, router := range routers {
		if router.Is4() {
			address, verdict := router.As4(), verdict(8)
			ipv4 = append(ipv4, wordAt(12), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(address[:]), SkipTrue: uint8(len(verdict))})
			ipv4 = append(ipv4, verdict...)
			continue
		}
		address, verdict := router.As16(), verdict(7)
		for i := range uint32(4) {
			rest := uint8(2*(3-i)) + uint8(len(verdict)) // to the next router
			ipv6 = append(ipv6, wordAt(8+4*i), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(address[4*i:]), SkipTrue: rest})
		}
		ipv6 = append(ipv6, verdict...)
	}
	ipv4, ipv6 = append(ipv4, drop), append(ipv6, drop)
	program := []bpf.Instruction{
		byteAt(0), bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 4, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(ipv4))},
	}
	program = append(program, ipv4...)
	return append(program, ipv6...)
}
