package speaker

// BFD takes packets from its sessions' routers only, and only those with TTL
// 255: no host off the link can send these (RFC 5881 section 5, RFC
// 5082). GoBGP 4.8 looks at neither, and listens on every address; the kernel
// does it instead, by a filter on GoBGP's socket.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	bfdPort = 3784 // RFC 5881 section 4
	// GoBGP opens its socket up to a second after the first neighbor with BFD
	// was added, and not at our request.
	guardPause = 20 * time.Millisecond
	// A socket that is guarded may be closed, and another one opened.
	guardedPause = time.Second
)

// guardBFD keeps the filter on GoBGP's socket until the context ends.
func (s *Speaker) guardBFD(ctx context.Context) {
	guarded := guardedSocket{}
	for {
		pause := guardedPause
		if routers := s.bfdRouters(); len(routers) > 0 && !guarded.holds(routers) {
			var err error
			if guarded, err = guardSocket(bfdPort, routers); err != nil {
				pause = guardPause
			}
			if err != nil && !errors.Is(err, errNoSocket) {
				s.log.Error("BFD packets are not filtered by TTL and source", "error", err)
				pause = guardedPause
			}
		} else if len(routers) == 0 {
			pause = guardPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

func (s *Speaker) bfdRouters() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	var routers []netip.Addr
	for address, n := range s.neighbors {
		if n.BFD != (BFD{}) {
			routers = append(routers, address)
		}
	}
	slices.SortFunc(routers, netip.Addr.Compare)
	return routers
}

// guardedSocket is what the filter is on, and whom it lets through.
type guardedSocket struct {
	fd      int
	inode   uint64
	routers []netip.Addr
}

// holds: the same socket is still open, for the same routers.
func (g guardedSocket) holds(routers []netip.Addr) bool {
	var stat unix.Stat_t
	return g.inode != 0 && slices.Equal(g.routers, routers) && unix.Fstat(g.fd, &stat) == nil && stat.Ino == g.inode
}

var errNoSocket = errors.New("no socket on the port")

// guardSocket finds this process's UDP socket on the port and puts the filter
// on it.
func guardSocket(port int, routers []netip.Addr) (guardedSocket, error) {
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return guardedSocket{}, fmt.Errorf("look for the socket of port %d: %w", port, err)
	}
	for _, entry := range descriptors {
		fd, err := strconv.Atoi(entry.Name())
		what, _ := os.Readlink("/proc/self/fd/" + entry.Name()) // gone meanwhile: not it
		if err != nil || !strings.HasPrefix(what, "socket:") {
			continue
		}
		// The number may be another file's by now: from here on it is ours.
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			continue
		}
		inode, err := guard(own, port, routers)
		_ = unix.Close(own)
		if !errors.Is(err, errNoSocket) {
			return guardedSocket{fd, inode, routers}, err
		}
	}
	return guardedSocket{}, errNoSocket
}

func guard(fd, port int, routers []netip.Addr) (inode uint64, err error) {
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_UDP {
		return 0, errNoSocket
	}
	local, err := unix.Getsockname(fd)
	if err != nil || portOf(local) != port {
		return 0, errNoSocket
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, &fs.PathError{Op: "fstat", Path: "BFD socket", Err: err}
	}
	program, err := bpf.Assemble(bfdFilter(routers))
	if err != nil {
		return 0, fmt.Errorf("assemble the filter: %w", err)
	}
	instructions := make([]unix.SockFilter, 0, len(program))
	for _, i := range program {
		instructions = append(instructions, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	filter := unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter); err != nil {
		return 0, fmt.Errorf("attach the filter: %w", err)
	}
	return stat.Ino, nil
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

// Loads beyond this begin at the IP header (SKF_NET_OFF of linux/filter.h).
const networkHeader = 0xfff0_0000

// bfdFilter lets a packet through whose TTL (hop limit) is 255 and whose
// source is one of these.
func bfdFilter(routers []netip.Addr) []bpf.Instruction {
	byteAt := func(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: networkHeader + offset, Size: 1} }
	wordAt := func(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: networkHeader + offset, Size: 4} }
	drop, pass := bpf.RetConstant{}, bpf.RetConstant{Val: 0xffff}

	only255 := func(offset uint32) []bpf.Instruction {
		return []bpf.Instruction{byteAt(offset), bpf.JumpIf{Cond: bpf.JumpEqual, Val: 255, SkipTrue: 1}, drop}
	}
	ipv4, ipv6 := append(only255(8), wordAt(12)), only255(7)
	for _, router := range routers {
		if router.Is4() {
			address := router.As4()
			ipv4 = append(ipv4, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(address[:]), SkipTrue: 1}, pass)
			continue
		}
		address := router.As16()
		for i := range uint32(4) {
			rest := uint8(2*(3-i) + 1) // to the next router
			ipv6 = append(ipv6, wordAt(8+4*i), bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(address[4*i:]), SkipTrue: rest})
		}
		ipv6 = append(ipv6, pass)
	}
	ipv4, ipv6 = append(ipv4, drop), append(ipv6, drop)
	program := []bpf.Instruction{
		byteAt(0), bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 4, SkipTrue: 1}, bpf.Jump{Skip: uint32(len(ipv4))},
	}
	program = append(program, ipv4...)
	return append(program, ipv6...)
}
