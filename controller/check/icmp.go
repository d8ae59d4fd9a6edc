package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// ICMP passes when an echo request is answered. Its requests have no ports: the
// dialer's source port and mark have no effect.
type ICMP struct {
	// Bytes of data.
	Size uint16
}

const echoBytesDefault = 56

func readICMP(given *configv1.IcmpCheck, _ Reader) ICMP {
	if given.Size == nil {
		return ICMP{Size: echoBytesDefault}
	}
	return ICMP{Size: uint16(*given.Size)}
}

// family is what differs between IPv4 and IPv6.
type family struct {
	request, reply icmp.Type
	protocol       int // of the messages, as icmp.ParseMessage has it
	ping, raw, any string
}

var (
	family4 = family{ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply, 1, "udp4", "ip4:icmp", "0.0.0.0"}
	family6 = family{ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, 58, "udp6", "ip6:ipv6-icmp", "::"}
)

func (c ICMP) Probe(ctx context.Context, dialer Dialer) (Answer, error) {
	f := family4
	if dialer.Address.Is6() {
		f = family6
	}
	socket, err := f.open(ctx, dialer)
	if err != nil {
		return Answer{}, err
	}
	defer socket.Close()
	sent := &icmp.Echo{ID: int(rand.Uint32() & 0xffff), Seq: int(rand.Uint32() & 0xffff), Data: bytes.Repeat([]byte("guideway"), int(c.Size)/8+1)[:c.Size]}
	message := icmp.Message{Type: f.request, Body: sent}
	request, err := message.Marshal(nil) // the kernel fills in ICMPv6's checksum
	if err != nil {
		return Answer{}, fmt.Errorf("make the echo request: %w", err)
	}
	if err := socket.send(request); err != nil {
		return Answer{}, err
	}
	if err := f.await(socket, sent); err != nil {
		return Answer{}, err
	}
	return Answer{Text: "echo reply"}, nil
}

// echoSocket hears of one target only.
type echoSocket struct {
	net.PacketConn
	send func([]byte) error
	// The request's identifier comes back; else the kernel sets its own, by which
	// it finds the socket.
	raw bool
}

// open takes a ping socket, which needs no capability where the sysctl allows it
// to one of the process's groups, else a raw one.
func (f family) open(ctx context.Context, dialer Dialer) (echoSocket, error) {
	from := f.any
	if dialer.From.Addr().IsValid() {
		from = dialer.From.Addr().String()
	}
	to := &net.UDPAddr{IP: dialer.Address.AsSlice(), Zone: dialer.Address.Zone()}
	conn, err := icmp.ListenPacket(f.ping, from)
	if err == nil {
		send := func(request []byte) error { _, err := conn.WriteTo(request, to); return err }
		return echoSocket{endPacketsWith(ctx, conn), send, false}, nil
	}
	// Connected: the kernel gives it no messages of other hosts.
	local := net.Dialer{Control: dialer.control}
	if dialer.From.Addr().IsValid() {
		local.LocalAddr = &net.IPAddr{IP: dialer.From.Addr().AsSlice()}
	}
	raw, rawErr := local.DialContext(ctx, f.raw, dialer.Address.String())
	if errors.Is(rawErr, os.ErrPermission) {
		return echoSocket{}, fmt.Errorf("the controller needs CAP_NET_RAW, or a group of its own in net.ipv4.ping_group_range: %w", os.ErrPermission)
	}
	if rawErr != nil {
		return echoSocket{}, rawErr
	}
	send := func(request []byte) error { _, err := raw.Write(request); return err }
	return echoSocket{endPacketsWith(ctx, raw.(*net.IPConn)), send, true}, nil
}

// await the reply to what was sent. A raw socket hears others' replies too.
func (f family) await(socket echoSocket, sent *icmp.Echo) error {
	buffer := make([]byte, 2048)
	for {
		n, _, err := socket.ReadFrom(buffer)
		if err != nil {
			return err
		}
		message, err := icmp.ParseMessage(f.protocol, buffer[:n])
		if err != nil || message.Type != f.reply {
			continue
		}
		reply, isEcho := message.Body.(*icmp.Echo)
		if isEcho && reply.Seq == sent.Seq && bytes.Equal(reply.Data, sent.Data) && (!socket.raw || reply.ID == sent.ID) {
			return nil
		}
	}
}
