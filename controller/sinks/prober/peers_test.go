package prober

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/controller/compile"
	"github.com/guideway/guideway/looptest"
)

func peerTarget(from, to, source, vip string) compile.PeerTarget {
	return compile.PeerTarget{
		Peer: "lb-2", From: netip.MustParseAddr(from), To: netip.MustParseAddr(to),
		Source: netip.MustParseAddr(source), VIP: netip.MustParseAddr(vip),
	}
}

// From its last answer until the brain knows: half a second, less what a plan
// takes.
func TestADeadPeerIsToldWithin350Milliseconds(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			answered := time.Now()
			failed := make(chan time.Duration, 100)
			peers := newPeers(func(ctx context.Context, _ *asker) error {
				if answered.IsZero() || time.Since(answered) < time.Second {
					return nil
				}
				<-ctx.Done()
				return ctx.Err()
			}, func(r PeerResult) {
				if r.Err != nil {
					failed <- time.Since(answered) - time.Second
				}
			})
			peers.Set([]compile.PeerTarget{{Peer: "lb-2"}})
			for range 2 {
				<-failed
			}
			if after := <-failed; after > 350*time.Millisecond {
				t.Errorf("the third probe without an answer %v after its death", after)
			}
			peers.Stop()
		})
	}
}

func TestATunnelledEchoIsWhatAPeerUnwraps(t *testing.T) {
	echo := &icmp.Echo{ID: 7, Seq: 9, Data: []byte("hello")}
	packet, err := tunnelledEcho(peerTarget("10.0.0.1", "10.0.0.2", "10.0.0.1", "203.0.113.10"), echo)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%x", packet[:4]); got != "01000800" {
		t.Errorf("GRE header %s", got)
	}
	header, err := ipv4.ParseHeader(packet[4:])
	if err != nil || header.TotalLen != len(packet)-4 || header.Protocol != 1 || !header.Src.Equal(net.IPv4(10, 0, 0, 1)) || !header.Dst.Equal(net.IPv4(203, 0, 113, 10)) {
		t.Errorf("%v %v", header, err)
	}
	// A header with its own checksum sums to zero.
	if sum := onesComplement(packet[4:24]); sum != 0 {
		t.Errorf("checksum is off by %#x", sum)
	}
	message, err := icmp.ParseMessage(1, packet[24:])
	if err != nil || message.Type != ipv4.ICMPTypeEcho || message.Body.(*icmp.Echo).Seq != 9 {
		t.Errorf("%v %v", message, err)
	}

	spilled := peerTarget("10.0.0.1", "198.51.100.10", "10.0.0.1", "203.0.113.10")
	spilled.Spill = true
	if packet, err = tunnelledEcho(spilled, echo); err != nil || fmt.Sprintf("%x", packet[:4]) != "02000800" {
		t.Errorf("GRE header of what is spilled %x, %v", packet[:4], err)
	}

	packet, err = tunnelledEcho(peerTarget("10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8:a::10"), echo)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%x", packet[:4]); got != "010086dd" {
		t.Errorf("GRE header %s", got)
	}
	header6, err := ipv6.ParseHeader(packet[4:])
	if err != nil || header6.PayloadLen != len(packet)-44 || header6.NextHeader != 58 || header6.Dst.String() != "2001:db8:a::10" {
		t.Errorf("%v %v", header6, err)
	}
}

func TestEachPeerIsAskedTwelveTimesASecondUntilItIsNoLongerWanted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		peers := newPeers(func(_ context.Context, a *asker) error {
			if a.target.Peer == "dead" {
				return os.ErrDeadlineExceeded
			}
			return nil
		}, func(r PeerResult) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprint(r.Peer, " ", r.Err))
		})
		count := func(what string) int {
			mu.Lock()
			defer mu.Unlock()
			return len(slices.DeleteFunc(slices.Clone(told), func(s string) bool { return s != what }))
		}
		peers.Set([]compile.PeerTarget{{Peer: "alive"}, {Peer: "dead"}, {Peer: "far", Spill: true}, {Peer: "odd", Problem: "no address"}})
		time.Sleep(10 * time.Second)
		for what, want := range map[string]int{"alive <nil>": 125, "dead i/o timeout": 125, "far <nil>": 10, "odd no address": 10} {
			if n := count(what); n < want*9/10 || n > want*12/10 {
				t.Errorf("%q %d times in 10 s", what, n)
			}
		}
		peers.Set([]compile.PeerTarget{{Peer: "alive"}})
		before := count("dead i/o timeout")
		time.Sleep(5 * time.Second)
		if after := count("dead i/o timeout"); after != before {
			t.Errorf("asked %d times after it was removed", after-before)
		}
		peers.Stop()
	})
}

// A forwarder's stand-in: the real one is tried in the lab.
func TestAPeerAnswersThroughTheTunnel(t *testing.T) {
	looptest.InNamespace(t, "addr add 10.9.0.1/32 dev lo", "addr add 10.9.0.2/32 dev lo", "addr add 203.0.113.10/32 dev lo",
		"addr add 2001:db8::1/128 dev lo nodad", "addr add 2001:db8::2/128 dev lo nodad", "addr add 2001:db8:a::10/128 dev lo nodad", "link set lo up")
	for _, target := range []compile.PeerTarget{
		peerTarget("10.9.0.1", "10.9.0.2", "10.9.0.1", "203.0.113.10"),
		peerTarget("2001:db8::1", "2001:db8::2", "2001:db8::1", "2001:db8:a::10"),
		peerTarget("10.9.0.1", "10.9.0.2", "2001:db8::1", "2001:db8:a::10"),
	} {
		a := &asker{target: target}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := askPeer(ctx, a)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "does not have this machine's "+target.From.String()+" as a peer") {
			t.Errorf("no peer is there, yet: %v", err)
		}
		stop := standIn(t, target, 0)
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
		if err := askPeer(ctx, a); err != nil {
			t.Errorf("%v: %v", target, err)
		}
		cancel()
		a.close()
		stop()
	}
}

// A peer that is slow, or a machine too busy to read in time, is not dead.
func TestLateAnswersAreAnswers(t *testing.T) {
	looptest.InNamespace(t, "addr add 10.9.0.1/32 dev lo", "addr add 10.9.0.2/32 dev lo", "addr add 203.0.113.10/32 dev lo", "link set lo up")
	target := peerTarget("10.9.0.1", "10.9.0.2", "10.9.0.1", "203.0.113.10")
	a := &asker{target: target}
	defer a.close()
	stop := standIn(t, target, 400*time.Millisecond)
	defer stop()
	// The first is not answered in time; its answer comes in that of the second.
	for i, limit := range []time.Duration{300 * time.Millisecond, 20 * time.Second, 20 * time.Second} {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		if err := askPeer(ctx, a); (err == nil) != (i > 0) {
			t.Errorf("question %d: %v", i, err)
		}
		cancel()
	}
}

func TestWithoutTheCapabilityTheCureIsNamed(t *testing.T) {
	err := permission(fmt.Errorf("socket: %w", unix.EPERM))
	if !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_RAW") {
		t.Error(err)
	}
}

// standIn unwraps packets and answers each so late; its sockets are made by the
// caller's thread, in the caller's namespace.
func standIn(t *testing.T, target compile.PeerTarget, late time.Duration) (stop func()) {
	t.Helper()
	network := map[bool]string{true: "ip4:47", false: "ip6:47"}[target.To.Is4()]
	tunnel, err := net.ListenIP(network, &net.IPAddr{IP: target.To.AsSlice()})
	if err != nil {
		t.Fatal(err)
	}
	network = map[bool]string{true: "ip4:icmp", false: "ip6:ipv6-icmp"}[target.VIP.Is4()]
	vip, err := icmp.ListenPacket(network, target.VIP.String())
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			packet := make([]byte, 1500)
			n, _, err := tunnel.ReadFromIP(packet)
			if err != nil {
				return
			}
			if answer := answerTo(target, packet[:n]); answer != nil {
				work.Go(func() {
					time.Sleep(late)
					_, _ = vip.WriteTo(answer, &net.IPAddr{IP: target.Source.AsSlice()})
				})
			}
		}
	})
	return func() { tunnel.Close(); vip.Close(); work.Wait() }
}

// answerTo the echo request in a GRE packet; nil: a peer would not unwrap it.
func answerTo(target compile.PeerTarget, packet []byte) []byte {
	if binary.BigEndian.Uint16(packet)>>8&7 == 0 {
		return nil
	}
	inner, protocol, reply := packet[4+20:], 1, icmp.Type(ipv4.ICMPTypeEchoReply)
	if target.VIP.Is6() {
		inner, protocol, reply = packet[4+40:], 58, ipv6.ICMPTypeEchoReply
	}
	message, err := icmp.ParseMessage(protocol, inner)
	if err != nil {
		return nil
	}
	message.Type = reply
	answer, err := message.Marshal(nil)
	if err != nil {
		return nil
	}
	return answer
}
