package prober

// Probes the machine's own gateway, so that a machine with a dead uplink finds that it is
// cut off itself, and not that all of its backends are down.

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

const (
	gatewayInterval = time.Second
	gatewayTimeout  = 500 * time.Millisecond
	// Echo requests in a row that stay unanswered.
	gatewayFall = 2
)

// WatchGateway reports every change whether the next hop of the default route
// answers echo requests. Some gateways never do: nothing is told of one that
// did not answer once. It needs ICMP sockets (CAP_NET_RAW, or a group in
// net.ipv4.ping_group_range); without them it reports nothing.
func WatchGateway(ctx context.Context, report func(address string, answers bool)) {
	var watched gateway
	ticker := time.NewTicker(gatewayInterval)
	defer ticker.Stop()
	for {
		watched.probe(ctx, defaultGateway, ping, report)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

type gateway struct {
	address netip.Addr
	proven  bool // it answered once
	answers bool
	missed  int
}

func (g *gateway) probe(ctx context.Context, find func() netip.Addr, ping func(context.Context, netip.Addr) error, report func(string, bool)) {
	// A lost link takes its routes along: then the gateway that we had is
	// still the one to ask.
	if address := find(); address.IsValid() && address != g.address {
		*g = gateway{address: address}
	}
	if !g.address.IsValid() {
		return
	}
	if err := ping(ctx, g.address); err == nil {
		g.missed = 0
		if !g.proven || !g.answers {
			g.proven, g.answers = true, true
			report(g.address.String(), true)
		}
		return
	}
	g.missed++
	if g.proven && g.answers && g.missed >= gatewayFall && ctx.Err() == nil {
		g.answers = false
		report(g.address.String(), false)
	}
}

// defaultGateway of IPv4, else of IPv6.
func defaultGateway() netip.Addr {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nil, family)
		if err != nil {
			continue
		}
		for _, route := range routes {
			if address, ok := gatewayOf(route); ok {
				return address
			}
		}
	}
	return netip.Addr{}
}

func gatewayOf(route netlink.Route) (netip.Addr, bool) {
	if route.Dst != nil {
		if ones, _ := route.Dst.Mask.Size(); ones != 0 {
			return netip.Addr{}, false
		}
	}
	address, ok := netip.AddrFromSlice(route.Gw)
	if !ok {
		return netip.Addr{}, false
	}
	address = address.Unmap()
	if address.IsLinkLocalUnicast() {
		if link, err := net.InterfaceByIndex(route.LinkIndex); err == nil {
			address = address.WithZone(link.Name)
		}
	}
	return address, true
}

// ping sends one echo request and waits for its reply.
func ping(ctx context.Context, to netip.Addr) error {
	conn, raw, err := listenICMP(to)
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline := time.Now().Add(gatewayTimeout)
	if at, ok := ctx.Deadline(); ok && at.Before(deadline) {
		deadline = at
	}
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	var request icmp.Type = ipv4.ICMPTypeEcho
	protocol := 1
	if to.Is6() {
		request, protocol = ipv6.ICMPTypeEchoRequest, 58
	}
	id := os.Getpid() & 0xffff
	message := icmp.Message{Type: request, Body: &icmp.Echo{ID: id, Seq: 1, Data: []byte("guideway")}}
	packet, err := message.Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := conn.WriteTo(packet, destination(to, raw)); err != nil {
		return err
	}
	return awaitReply(conn, to, protocol, id, raw)
}

// Datagram sockets need no capability where the sysctl allows them; raw ones
// are the other way.
func listenICMP(to netip.Addr) (conn *icmp.PacketConn, raw bool, err error) {
	datagram, rawNetwork, any := "udp4", "ip4:icmp", "0.0.0.0"
	if to.Is6() {
		datagram, rawNetwork, any = "udp6", "ip6:ipv6-icmp", "::"
	}
	if conn, err = icmp.ListenPacket(datagram, any); err == nil {
		return conn, false, nil
	}
	conn, rawErr := icmp.ListenPacket(rawNetwork, any)
	return conn, true, errors.Join(rawErr)
}

func destination(to netip.Addr, raw bool) net.Addr {
	if raw {
		return &net.IPAddr{IP: to.AsSlice(), Zone: to.Zone()}
	}
	return &net.UDPAddr{IP: to.AsSlice(), Zone: to.Zone()}
}

// A raw socket hears everybody's ICMP: only the gateway's reply to us counts.
func awaitReply(conn *icmp.PacketConn, from netip.Addr, protocol, id int, raw bool) error {
	buffer := make([]byte, 1500)
	for {
		n, sender, err := conn.ReadFrom(buffer)
		if err != nil {
			return err
		}
		reply, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil || senderOf(sender) != from.WithZone("") {
			continue
		}
		echo, isEcho := reply.Body.(*icmp.Echo)
		isReply := reply.Type == ipv4.ICMPTypeEchoReply || reply.Type == ipv6.ICMPTypeEchoReply
		// A datagram socket's id is the kernel's, and it filters by it.
		if isEcho && isReply && (!raw || echo.ID == id) {
			return nil
		}
	}
}

func senderOf(address net.Addr) netip.Addr {
	var ip net.IP
	switch a := address.(type) {
	case *net.IPAddr:
		ip = a.IP
	case *net.UDPAddr:
		ip = a.IP
	}
	sender, _ := netip.AddrFromSlice(ip)
	return sender.Unmap()
}
