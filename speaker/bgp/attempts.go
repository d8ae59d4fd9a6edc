package bgp

// Finds out why a session is not established.
//
// GoBGP 4.8 reports sessions that end; a failed attempt only appears in its log, without the
// router's answer. The goroutine of the attempt writes that log and waits for the log handler.
// So the handler can look at the router's next message on GoBGP's socket before GoBGP reads it.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/controller/outside"
)

const (
	bgpPort = 179
	// Until the first attempt has an outcome.
	notConnectedYet = "not connected yet"
	// A router that has a connection sends its OPEN at once, and answers ours.
	answerTimeout = 5 * time.Second
	lookPause     = 10 * time.Millisecond
	// Of the text that a router may send with the end of a session (RFC 9003: 255).
	communicationMax = 128
)

// Records of GoBGP's log about an attempt, in their order.
const (
	logConnecting = "try to connect"
	logFailed     = "failed to connect"
	logConnected  = "outgoing connection established"
	logOpened     = "open message received on outgoing connection"
)

// watched is a neighbor whose attempts are looked at.
type watched struct {
	Neighbor
	own Identity
	// The neighbor is no longer wanted.
	removed chan struct{}
	// What the kernel had dropped when the attempt began.
	before atomic.Pointer[kernelDrops]
	// An attempt has no outcome yet.
	trying atomic.Bool
}

// attemptLog is the handler of GoBGP's log.
type attemptLog struct {
	slog.Handler
	speaker  *Speaker
	neighbor netip.Addr
}

// Enabled for all records: those that are looked at are for debugging.
func (l attemptLog) Enabled(context.Context, slog.Level) bool { return true }

func (l attemptLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		if address, err := netip.ParseAddr(a.Value.String()); a.Key == "Key" && err == nil {
			l.neighbor = address
		}
	}
	l.Handler = l.Handler.WithAttrs(attrs)
	return l
}

func (l attemptLog) WithGroup(name string) slog.Handler {
	l.Handler = l.Handler.WithGroup(name)
	return l
}

func (l attemptLog) Handle(ctx context.Context, record slog.Record) error {
	l.look(record)
	if !l.Handler.Enabled(ctx, record.Level) {
		return nil
	}
	return l.Handler.Handle(ctx, record)
}

func (l attemptLog) look(record slog.Record) {
	switch record.Message {
	case logConnecting, logFailed, logConnected, logOpened:
	default:
		return
	}
	w := l.speaker.watchedOne(l.neighbor)
	if w == nil {
		return
	}
	reason := ""
	switch wasTrying := w.trying.Swap(record.Message == logConnecting); record.Message {
	case logConnecting:
		w.before.Store(countDrops())
		if wasTrying { // it could not send its OPEN any more, which GoBGP does not tell
			reason = closedByRouter
		}
	case logFailed:
		record.Attrs(func(a slog.Attr) bool {
			reason = w.whyNotConnected(a.Value.String())
			return false
		})
	default:
		reason = w.whyRefused(w.nextMessage())
	}
	if reason != "" {
		l.speaker.explain(w, reason)
	}
}

func (s *Speaker) watchedOne(neighbor netip.Addr) *watched {
	s.statesMu.Lock()
	defer s.statesMu.Unlock()
	return s.watched[neighbor]
}

// explain why a session is not established, whatever its state is.
func (s *Speaker) explain(w *watched, reason string) {
	s.statesMu.Lock()
	state, known := s.states[w.Address]
	if !known || s.watched[w.Address] != w || state.Established() || state.Reason == reason {
		s.statesMu.Unlock()
		return
	}
	state.Reason = reason
	s.states[w.Address] = state
	s.statesMu.Unlock()
	s.onState(state)
}

// whyNotConnected in the words of the socket's error, which GoBGP gives as text.
func (w *watched) whyNotConnected(failure string) string {
	is := func(errno unix.Errno) bool { return strings.HasSuffix(failure, errno.Error()) }
	switch {
	case is(unix.ECONNREFUSED):
		return fmt.Sprintf("connection refused: no BGP daemon listens on port %d there, or a firewall rejects the connection", bgpPort)
	case is(unix.ECONNRESET): // before connect returned
		return closedByRouter
	case is(unix.EHOSTUNREACH):
		return w.whyUnreachable()
	case is(unix.ENETUNREACH):
		return "unreachable: network is unreachable: this machine has no route to the router"
	case is(unix.EADDRNOTAVAIL) && w.Source.IsValid():
		return noSource(w.Source)
	case strings.HasSuffix(failure, os.ErrDeadlineExceeded.Error()):
		return w.whyNoAnswer()
	}
	return failure
}

// whyNoAnswer to the first packet of a connection.
func (w *watched) whyNoAnswer() string {
	if reason := w.whyDropped(); reason != "" {
		return reason
	}
	onLink, answers := isOnLink(w.Address)
	if onLink && !answers {
		return w.whyUnreachable()
	}
	password := "it may demand a password, and none is configured (password_file)"
	if w.Password != "" {
		password = "the password (password_file) may be another one there, or none"
	}
	text := "connection timed out: the router drops our packets or is unreachable"
	if onLink {
		text = "connection timed out: the router answers " + w.resolution() + ", and drops the packets of the connection"
	}
	text += ": " + password + ", since routers drop a wrong TCP MD5 signature without an answer; or a firewall drops them"
	if !onLink && w.Multihop == 0 && w.ASN != w.own.ASN && !w.TTLSecurity {
		text += "; or it is more than one hop away (multihop)"
	}
	return text
}

// whyUnreachable in the kernel's words, which it has some seconds later than GoBGP waits.
func (w *watched) whyUnreachable() string {
	text := "unreachable: " + unix.EHOSTUNREACH.Error()
	if onLink, answers := isOnLink(w.Address); onLink && !answers {
		return text + ": the router does not answer " + w.resolution() + " on its link"
	}
	return text + ": a router or a firewall on the way rejects the connection"
}

// resolution of the router's address on its link.
func (w *watched) resolution() string {
	if w.Address.Is6() {
		return "neighbor solicitations"
	}
	return "ARP"
}

// whyDropped is what the kernel here dropped in this attempt.
func (w *watched) whyDropped() string {
	before, now := w.before.Load(), countDrops()
	switch {
	case before == nil:
	case w.TTLSecurity && now.minTTL > before.minTTL:
		return "TTL security: the router's packets come with a TTL below 255, and are dropped: it has no ttl_security, or it is not on this link"
	case w.Password != "" && now.md5 > before.md5:
		return "password: the router's packets have another TCP MD5 signature than password_file makes, or none, and are dropped"
	}
	return ""
}

// whyRefused by the router's message, or by what came in its place; empty: it does not
// refuse.
func (w *watched) whyRefused(message []byte, err error) string {
	switch {
	case errors.Is(err, errRemoved):
		return ""
	case errors.Is(err, errNotAcknowledged), errors.Is(err, errSilent):
		if reason := w.whyDropped(); reason != "" {
			return reason
		}
		if errors.Is(err, errNotAcknowledged) && !w.TTLSecurity {
			return err.Error() + ": it may demand TTL 255 (ttl_security)"
		}
		return err.Error()
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, errNoSocket): // one that was reset has no peer
		return closedByRouter
	case err != nil:
		return err.Error()
	}
	parsed, err := bgp.ParseBGPMessage(message)
	if err != nil {
		return fmt.Sprintf("what listens on port %d there does not speak BGP, or not correctly: %.100q", bgpPort, err)
	}
	switch body := parsed.Body.(type) {
	case *bgp.BGPNotification:
		return w.whyNotified(body)
	case *bgp.BGPOpen:
		return w.whyOpenIsRefused(body)
	}
	return ""
}

func (w *watched) whyNotified(n *bgp.BGPNotification) string {
	text := "the router refuses the session: NOTIFICATION " + bgp.NewNotificationErrorCode(n.ErrorCode, n.ErrorSubcode).String()
	switch {
	case n.ErrorCode == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR && n.ErrorSubcode == bgp.BGP_ERROR_SUB_BAD_PEER_AS:
		text = fmt.Sprintf("wrong AS: AS %d, which this machine has by the config (bgp: asn), is not what the router (AS %d) expects of it: %s", w.own.ASN, w.ASN, text)
	case n.ErrorCode == bgp.BGP_ERROR_OPEN_MESSAGE_ERROR && n.ErrorSubcode == bgp.BGP_ERROR_SUB_BAD_BGP_IDENTIFIER:
		text += fmt.Sprintf(": another router has %s, too (bgp: router_id)", w.own.RouterID)
	case n.ErrorCode == bgp.BGP_ERROR_CEASE && n.ErrorSubcode == bgp.BGP_ERROR_SUB_CONNECTION_REJECTED:
		text += ": it may not have this machine's address as a neighbor's"
	}
	if said := communication(n); said != "" {
		text += `: "` + said + `"`
	}
	return text
}

// communication is the text of a shutdown or reset (RFC 9003).
func communication(n *bgp.BGPNotification) string {
	shutdown := n.ErrorSubcode == bgp.BGP_ERROR_SUB_ADMINISTRATIVE_SHUTDOWN || n.ErrorSubcode == bgp.BGP_ERROR_SUB_ADMINISTRATIVE_RESET
	if n.ErrorCode != bgp.BGP_ERROR_CEASE || !shutdown || len(n.Data) == 0 || int(n.Data[0]) > len(n.Data)-1 {
		return ""
	}
	return outside.Line(string(n.Data[1:1+int(n.Data[0])]), communicationMax)
}

func (w *watched) whyOpenIsRefused(open *bgp.BGPOpen) string {
	asn, err := bgp.ValidateOpenMsg(open, 0, w.own.ASN, w.own.RouterID)
	switch {
	case err != nil:
		return "the router's OPEN is refused: " + err.Error()
	case asn != w.ASN:
		return fmt.Sprintf("wrong AS: the router is AS %d, the config says asn: %d of it", asn, w.ASN)
	}
	return ""
}

const closedByRouter = "the router closed the connection without a NOTIFICATION: it may not have this machine's address as a neighbor's"

var (
	errRemoved         = errors.New("the neighbor was removed")
	errNotAcknowledged = errors.New("the router opened the connection and acknowledges no packet in it")
	errSilent          = fmt.Errorf("the router opened the connection and sends no BGP message within %v", answerTimeout)
)

// nextMessage of the router, which stays on the socket.
func (w *watched) nextMessage() (message []byte, err error) {
	found := false
	isOne := func(fd int) bool { return !found && isSession(fd, w.Address) }
	failed := eachSocket(isOne, func(fd, _ int) error {
		found = true
		message, err = w.peek(fd)
		return nil
	})
	if err == nil && !found {
		err = errors.Join(errNoSocket, failed)
	}
	return message, err
}

func isSession(fd int, neighbor netip.Addr) bool {
	protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	if err != nil || protocol != unix.IPPROTO_TCP {
		return false
	}
	remote, err := unix.Getpeername(fd)
	return err == nil && portOf(remote) == bgpPort && addressOf(remote) == neighbor
}

func addressOf(address unix.Sockaddr) netip.Addr {
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr).Unmap()
	}
	return netip.Addr{}
}

// peek at one whole message.
func (w *watched) peek(fd int) ([]byte, error) {
	buffer := make([]byte, bgp.BGP_MAX_MESSAGE_LENGTH)
	header := bgp.BGPHeader{}
	timeout := time.After(answerTimeout)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, fmt.Errorf("receive the router's message: %w", err)
		case n == 0:
			return nil, io.EOF
		case n >= bgp.BGP_HEADER_LENGTH:
			if err := header.DecodeFromBytes(buffer[:n]); err != nil || int(header.Len) <= n || int(header.Len) > len(buffer) {
				return buffer[:n], nil
			}
		}
		select {
		case <-time.After(lookPause):
		case <-w.removed:
			return nil, errRemoved
		case <-timeout:
			if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil && info.Unacked > 0 {
				return nil, errNotAcknowledged
			}
			return nil, errSilent
		}
	}
}

func noSource(source netip.Addr) string {
	return "this machine has no address " + source.String() + ", which is the session's source"
}

// isOnLink: the router is on a link of this machine, and has answered there.
func isOnLink(router netip.Addr) (onLink, answers bool) {
	routes, err := netlink.RouteGet(net.IP(router.AsSlice()))
	if err != nil || len(routes) == 0 || routes[0].Gw != nil {
		return false, false
	}
	neighbors, err := netlink.NeighList(routes[0].LinkIndex, routes[0].Family)
	if err != nil {
		return false, false
	}
	for _, n := range neighbors {
		if address, ok := netip.AddrFromSlice(n.IP); ok && address.Unmap() == router {
			return true, n.State&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED) == 0
		}
	}
	return true, false
}

// kernelDrops counts packets of TCP connections that the kernel dropped since it started.
type kernelDrops struct{ minTTL, md5 uint64 }

func countDrops() *kernelDrops {
	drops := &kernelDrops{}
	data, _ := os.ReadFile("/proc/self/net/netstat") // without it, nothing was dropped
	lines := strings.Split(string(data), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		for j := 1; j < min(len(names), len(values)); j++ {
			var value uint64
			switch names[j] {
			case "TCPMinTTLDrop":
				_, _ = fmt.Sscan(values[j], &drops.minTTL)
			case "TCPMD5NotFound", "TCPMD5Failure":
				_, _ = fmt.Sscan(values[j], &value)
				drops.md5 += value
			}
		}
	}
	return drops
}
