package prober

// Probes peers, the other load balancers, through the tunnel by which fragments are
// redirected to them; and other clusters through the one by which packets are spilled to
// them.
//
//	us ══ GRE, once more permitted ══► the peer's forwarder ── unwraps ──► echo request to a VIP
//	us ◄────────────── echo reply from the VIP ─────────────────────────────── answers
//
// Only a forwarder with this machine as a peer (or encapsulator) and with that VIP in its
// plan answers; its machine's kernel has neither.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/guideway/guideway/controller/compile"
)

// Three probes without an answer take 0.35 s at most; the plan without the peer
// takes less than 0.1 s to be in force. A probe costs either side some tenths
// of a millisecond of processor time, each second and way a few.
const (
	peerInterval = 80 * time.Millisecond
	peerTimeout  = 80 * time.Millisecond
)

// Other clusters are farther away, and there is no hurry: asked as backends
// are.
const (
	spillInterval = time.Second
	spillTimeout  = 500 * time.Millisecond
)

// PeerResult is the outcome of asking once; Err is nil if the peer answered,
// and wraps os.ErrPermission if this process may not ask.
type PeerResult struct {
	Peer string
	// The tunnel's end that was asked; not valid: none could be.
	To  netip.Addr
	Err error
}

// Peers asks each peer, by each way to it, by a schedule of its own. Like Prober it is a sink.
type Peers struct {
	ask    func(context.Context, *asker) error
	report func(PeerResult)

	mu      sync.Mutex
	running map[compile.PeerTarget]context.CancelFunc
	group   sync.WaitGroup
}

// NewPeers starts without targets; report is called from several goroutines.
func NewPeers(report func(PeerResult)) *Peers { return newPeers(askPeer, report) }

func newPeers(ask func(context.Context, *asker) error, report func(PeerResult)) *Peers {
	return &Peers{ask: ask, report: report, running: map[compile.PeerTarget]context.CancelFunc{}}
}

// Set starts what is new and stops what is no longer wanted.
func (p *Peers) Set(want []compile.PeerTarget) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := make(map[compile.PeerTarget]bool, len(want))
	for _, t := range want {
		wanted[t] = true
	}
	for t, stop := range p.running {
		if !wanted[t] {
			stop()
			delete(p.running, t)
		}
	}
	for t := range wanted {
		if p.running[t] == nil {
			ctx, stop := context.WithCancel(context.Background())
			p.running[t] = stop
			p.group.Go(func() { p.schedule(ctx, t) })
		}
	}
}

// Stop ends every schedule and waits for what is under way.
func (p *Peers) Stop() {
	p.Set(nil)
	p.group.Wait()
}

func (p *Peers) schedule(ctx context.Context, t compile.PeerTarget) {
	a := &asker{target: t}
	defer a.close()
	for {
		started := time.Now()
		err := p.attempt(ctx, a)
		if ctx.Err() != nil {
			return
		}
		p.report(PeerResult{Peer: t.Peer, To: t.To, Err: err})
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(0, spread(intervalOf(t))-time.Since(started))):
		}
	}
}

func (p *Peers) attempt(ctx context.Context, a *asker) error {
	if a.target.Problem != "" {
		return errors.New(a.target.Problem)
	}
	ctx, cancel := context.WithTimeout(ctx, timeoutOf(a.target))
	defer cancel()
	return p.ask(ctx, a)
}

func intervalOf(t compile.PeerTarget) time.Duration {
	if t.Spill || t.Problem != "" {
		return spillInterval
	}
	return peerInterval
}

func timeoutOf(t compile.PeerTarget) time.Duration {
	if t.Spill {
		return spillTimeout
	}
	return peerTimeout
}

// redirectionsPermitted is GRE's recursion control: what fragments that were redirected
// before have, or spilled packets.
func redirectionsPermitted(t compile.PeerTarget) uint16 {
	if t.Spill {
		return greTwiceMore
	}
	return greOnceMore
}

// silenceOf says what to look at.
func silenceOf(t compile.PeerTarget) error {
	if t.Spill {
		return fmt.Errorf("no answer from %s at %s within %v: no forwarder there serves %s and has %s among its encapsulators, or the answer finds no way back", t.Peer, t.To, timeoutOf(t), t.VIP, t.From)
	}
	return fmt.Errorf("no answer from %s at %s within %v: its forwarder does not run, does not have this machine's %s as a peer, or does not serve %s", t.Peer, t.To, timeoutOf(t), t.From, t.VIP)
}

// asker asks one peer by one way, and remembers its latest questions: an answer that is
// late, or that this process was too busy to read in time, is an answer nonetheless.
type asker struct {
	target  compile.PeerTarget
	replies *icmp.PacketConn // nil: not yet, or it failed
	asked   []icmp.Echo
}

// As many questions as it takes without an answer to give a peer up, and one more.
const askedMax = 4

func (a *asker) close() {
	if a.replies != nil {
		a.replies.Close()
		a.replies = nil
	}
}

// askPeer asks once more: an error is that nothing was heard since.
func askPeer(ctx context.Context, a *asker) error {
	err := a.listen()
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err = a.replies.SetDeadline(deadline); err == nil {
		err = a.send()
	}
	if err == nil {
		err = a.awaitReply()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return silenceOf(a.target)
	}
	if err != nil {
		a.close()
	}
	return err
}

func (a *asker) listen() error {
	if a.replies != nil {
		return nil
	}
	replies, err := listenEchoReplies(a.target.Source)
	if err != nil {
		return fmt.Errorf("listen for the reply at %s: %w", a.target.Source, permission(err))
	}
	a.replies = replies
	return nil
}

func (a *asker) send() error {
	echo := icmp.Echo{ID: rand.IntN(1 << 16), Seq: rand.IntN(1 << 16), Data: []byte("guideway peer")}
	packet, err := tunnelledEcho(a.target, &echo)
	if err != nil {
		return fmt.Errorf("ask %s: %w", a.target.To, err)
	}
	a.asked = append(a.asked[max(0, len(a.asked)-askedMax+1):], echo)
	if err := sendGRE(a.target.From, a.target.To, packet); err != nil {
		return fmt.Errorf("send to %s: %w", a.target.To, permission(err))
	}
	return nil
}

// awaitReply to the latest question, so that none is left in the socket; if only one to
// a former question came until the deadline, that will do.
func (a *asker) awaitReply() error {
	protocol := protocolICMP
	if a.target.VIP.Is6() {
		protocol = protocolICMPv6
	}
	buffer := make([]byte, 1500)
	heard := false
	for {
		n, sender, err := a.replies.ReadFrom(buffer)
		if heard && errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		reply, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil || senderOf(sender) != a.target.VIP {
			continue
		}
		echo, isEcho := reply.Body.(*icmp.Echo)
		if !isEcho {
			continue
		}
		which := slices.IndexFunc(a.asked, func(asked icmp.Echo) bool { return echo.ID == asked.ID && echo.Seq == asked.Seq })
		if which >= 0 && which == len(a.asked)-1 {
			return nil
		}
		heard = heard || which >= 0
	}
}

// permission keeps os.ErrPermission and names the cure.
func permission(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: this takes the capability CAP_NET_RAW", err)
	}
	return err
}

// A bound raw socket hears what is for that address only; the filter leaves
// echo replies.
func listenEchoReplies(at netip.Addr) (*icmp.PacketConn, error) {
	if at.Is4() {
		conn, err := icmp.ListenPacket("ip4:icmp", at.String())
		if err != nil {
			return nil, err
		}
		var filter ipv4.ICMPFilter
		filter.SetAll(true)
		filter.Accept(ipv4.ICMPTypeEchoReply)
		return conn, conn.IPv4PacketConn().SetICMPFilter(&filter)
	}
	conn, err := icmp.ListenPacket("ip6:ipv6-icmp", at.String())
	if err != nil {
		return nil, err
	}
	var filter ipv6.ICMPFilter
	filter.SetAll(true)
	filter.Accept(ipv6.ICMPTypeEchoReply)
	return conn, conn.IPv6PacketConn().SetICMPFilter(&filter)
}

func sendGRE(from, to netip.Addr, packet []byte) error {
	network := "ip4:47"
	if to.Is6() {
		network = "ip6:47"
	}
	conn, err := net.DialIP(network, &net.IPAddr{IP: from.AsSlice()}, &net.IPAddr{IP: to.AsSlice()})
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write(packet)
	return err
}

const (
	protocolICMP   = 1
	protocolICMPv6 = 58
	// RFC 1701, bits 5 to 7: how many further encapsulations are permitted.
	// Zero is for backends: a peer refuses it.
	greOnceMore  = 1 << 8
	greTwiceMore = 2 << 8
	etherTypeIP4 = 0x0800
	etherTypeIP6 = 0x86dd
)

// tunnelledEcho is everything behind the outer IP header, which the kernel
// writes.
func tunnelledEcho(t compile.PeerTarget, echo *icmp.Echo) ([]byte, error) {
	etherType, emit := uint16(etherTypeIP4), echoRequest4
	if t.VIP.Is6() {
		etherType, emit = etherTypeIP6, echoRequest6
	}
	inner, err := emit(t.Source, t.VIP, echo)
	if err != nil {
		return nil, err
	}
	packet := binary.BigEndian.AppendUint16(nil, redirectionsPermitted(t))
	packet = binary.BigEndian.AppendUint16(packet, etherType)
	return append(packet, inner...), nil
}

func echoRequest4(source, destination netip.Addr, echo *icmp.Echo) ([]byte, error) {
	message, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: echo}).Marshal(nil)
	if err != nil {
		return nil, err
	}
	header := make([]byte, 20, 20+len(message))
	header[0] = 4<<4 | 5
	binary.BigEndian.PutUint16(header[2:], uint16(20+len(message)))
	header[6] = 0x40 // do not fragment
	header[8] = 64
	header[9] = protocolICMP
	copy(header[12:], source.AsSlice())
	copy(header[16:], destination.AsSlice())
	binary.BigEndian.PutUint16(header[10:], onesComplement(header))
	return append(header, message...), nil
}

func echoRequest6(source, destination netip.Addr, echo *icmp.Echo) ([]byte, error) {
	pseudo := icmp.IPv6PseudoHeader(source.AsSlice(), destination.AsSlice())
	message, err := (&icmp.Message{Type: ipv6.ICMPTypeEchoRequest, Body: echo}).Marshal(pseudo)
	if err != nil {
		return nil, err
	}
	header := make([]byte, 40, 40+len(message))
	header[0] = 6 << 4
	binary.BigEndian.PutUint16(header[4:], uint16(len(message)))
	header[6] = protocolICMPv6
	header[7] = 64
	copy(header[8:], source.AsSlice())
	copy(header[24:], destination.AsSlice())
	return append(header, message...), nil
}

// onesComplement is the Internet checksum (RFC 1071) of whole words.
func onesComplement(words []byte) uint16 {
	var sum uint32
	for i := 0; i < len(words); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(words[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
