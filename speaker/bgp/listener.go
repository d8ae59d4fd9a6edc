package bgp

// Passive neighbors connect to us. GoBGP listens for all of its neighbors or for
// none, and decides so when it starts; and it takes connections from any address,
// to close them. The kernel answers passive neighbors alone instead, by a filter
// on GoBGP's sockets: to all others the port is as closed as without a passive
// neighbor, so that a session that we open meets none that the router opens.

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	bgpPort = 179 // RFC 4271 section 8.2.1

	// Why nothing is announced to passive neighbors, in the words that `doctor`
	// looks for.
	PortTaken = "port 179, to which passive neighbors connect, is in use"

	tcpListen = "0A" // TCP_LISTEN in /proc/net/tcp
)

// portProblem is why GoBGP could not listen now; empty: it can.
func portProblem() string {
	for _, network := range []string{"tcp4", "tcp6"} {
		listener, err := net.Listen(network, ":"+strconv.Itoa(bgpPort))
		switch {
		case err == nil:
			_ = listener.Close()
		case errors.Is(err, syscall.EAFNOSUPPORT): // no IPv6 here: GoBGP says so
		case errors.Is(err, syscall.EACCES):
			return fmt.Sprintf("port %d, to which passive neighbors connect, may not be listened on by this user: that takes CAP_NET_BIND_SERVICE, which the unit guideway-speaker.service gives", bgpPort)
		default:
			return PortTaken + " by " + PortHolder() + ": stop that program (as root `ss -ltnp 'sport = :179'` shows it), or let no neighbor be passive"
		}
	}
	return ""
}

// PortHolder names the program that listens on BGP's port, as far as this user
// may know.
func PortHolder() string {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			// sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == tcpListen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", bgpPort)) {
				return holderOf(f[7], f[9])
			}
		}
	}
	return "another program"
}

func holderOf(uid, inode string) string {
	name := "user " + uid
	if account, err := user.LookupId(uid); err == nil {
		name = "user " + account.Username
	}
	processes, _ := os.ReadDir("/proc") // the user alone is told
	for _, process := range processes {
		descriptors, _ := os.ReadDir("/proc/" + process.Name() + "/fd")
		for _, fd := range descriptors {
			if what, _ := os.Readlink("/proc/" + process.Name() + "/fd/" + fd.Name()); what == "socket:["+inode+"]" {
				command, _ := os.ReadFile("/proc/" + process.Name() + "/comm")
				return fmt.Sprintf("%s (process %s, %s)", strings.TrimSpace(string(command)), process.Name(), name)
			}
		}
	}
	return "a program of " + name
}

// answerOnly the passive ones of these neighbors on the port.
func (s *Speaker) answerOnly(neighbors []Neighbor) error {
	if !s.listening {
		return nil
	}
	var passive []sender
	for _, n := range neighbors {
		if n.Passive {
			passive = append(passive, sender{address: n.Address, only255: n.TTLSecurity})
		}
	}
	if slices.Equal(passive, s.answered) && s.filtered {
		return nil
	}
	count := 0
	err := eachSocket(isListener, func(fd, _ int) error {
		count++
		// GoBGP 4.8 does so for IPv4 alone; routers with TTL security demand it of
		// the answer to their SYN. Accepted connections get what is theirs.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, 255) // of IPv6 sockets
		return attach(fd, passive)
	})
	if err == nil && count == 0 {
		err = errNoSocket
	}
	if err != nil {
		return fmt.Errorf("answer passive BGP neighbors only: %w", err)
	}
	s.answered, s.filtered = passive, true
	return nil
}

// forgetPassword takes a neighbor's password off the sockets that listen: GoBGP
// 4.8 leaves it there, and who has none any more could not connect.
func forgetPassword(address netip.Addr) error {
	key := &unix.TCPMD5Sig{}
	if address.Is4() {
		key.Addr.Family = unix.AF_INET
		bytes := address.As4()
		copy(key.Addr.Data[2:], bytes[:]) // sockaddr_in: the port comes first
	} else {
		key.Addr.Family = unix.AF_INET6
		bytes := address.As16()
		copy(key.Addr.Data[6:], bytes[:]) // sockaddr_in6: port and flow label
	}
	return eachSocket(isListener, func(fd, _ int) error {
		err := unix.SetsockoptTCPMD5Sig(fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, key)
		// ENOENT: there was none; EINVAL: the socket is of the other family.
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("forget the password of %s: %w", address, err)
		}
		return nil
	})
}

func isListener(fd int) bool {
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_TCP {
		return false
	}
	listens, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || listens == 0 {
		return false
	}
	local, err := unix.Getsockname(fd)
	return err == nil && portOf(local) == bgpPort
}
