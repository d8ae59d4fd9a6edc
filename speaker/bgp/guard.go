package bgp

// BFD accepts packets only from the routers of its sessions, and only with TTL 255, which no
// host beyond the link can send (RFC 5881 section 5, RFC 5082). GoBGP 4.8 checks neither and
// listens on every address, so the kernel does it, by a filter on GoBGP's socket.

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	bfdPort = 3784 // RFC 5881 section 4
	// GoBGP opens its socket up to a second after the first BFD began, and not at
	// our request.
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

// bfdRouters are those whose BFD has begun or is about to.
func (s *Speaker) bfdRouters() []netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	var routers []netip.Addr
	for address, n := range s.neighbors {
		if n.BFD != (BFD{}) && s.state(address).Established() {
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

// guardSocket finds this process's UDP socket on the port and puts the filter
// on it.
func guardSocket(port int, routers []netip.Addr) (guardedSocket, error) {
	guarded := guardedSocket{}
	isOne := func(fd int) bool { return guarded.inode == 0 && isUDP(fd, port) }
	err := eachSocket(isOne, func(fd, original int) error {
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err != nil {
			return &fs.PathError{Op: "fstat", Path: "BFD socket", Err: err}
		}
		if err := attach(fd, routers); err != nil {
			return err
		}
		guarded = guardedSocket{original, stat.Ino, routers}
		return nil
	})
	if err == nil && guarded.inode == 0 {
		err = errNoSocket
	}
	return guarded, err
}

func isUDP(fd, port int) bool {
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_UDP {
		return false
	}
	local, err := unix.Getsockname(fd)
	return err == nil && portOf(local) == port
}
