package prober

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestTheGatewayIsToldOfOnlyWhenItAnsweredOnce(t *testing.T) {
	cases := []struct {
		name    string
		answers string // + or - for each ping
		want    []string
	}{
		{"never answers", "-----", nil},
		{"answers", "+++", []string{"true"}},
		{"one miss is nothing", "+-+-+", []string{"true"}},
		{"two misses in a row", "+--", []string{"true", "false"}},
		{"comes back", "+---+", []string{"true", "false", "true"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var g gateway
			var told []string
			for _, answer := range c.answers {
				ping := func(context.Context, netip.Addr) error {
					if answer == '+' {
						return nil
					}
					return errors.New("timeout")
				}
				g.probe(t.Context(), func() netip.Addr { return netip.MustParseAddr("10.0.0.254") }, ping,
					func(_ string, answers bool) { told = append(told, fmt.Sprint(answers)) })
			}
			if !slices.Equal(told, c.want) {
				t.Errorf("told %v, want %v", told, c.want)
			}
		})
	}
}

func TestALostDefaultRouteLeavesTheFormerGatewayToAsk(t *testing.T) {
	var g gateway
	var told []bool
	report := func(_ string, answers bool) { told = append(told, answers) }
	up := func(context.Context, netip.Addr) error { return nil }
	unreachable := func(context.Context, netip.Addr) error { return errors.New("network is unreachable") }
	g.probe(t.Context(), func() netip.Addr { return netip.MustParseAddr("10.0.0.254") }, up, report)
	for range gatewayFall {
		g.probe(t.Context(), func() netip.Addr { return netip.Addr{} }, unreachable, report)
	}
	if !slices.Equal(told, []bool{true, false}) {
		t.Errorf("told %v", told)
	}
}

func TestPingOfTheLoopback(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("ping test: needs root, for ICMP sockets")
	}
	for _, address := range []string{"127.0.0.1", "::1"} {
		if err := ping(t.Context(), netip.MustParseAddr(address)); err != nil {
			t.Errorf("ping %s: %v", address, err)
		}
	}
}

func TestGatewayOfARoute(t *testing.T) {
	_, everything, _ := net.ParseCIDR("0.0.0.0/0")
	_, some, _ := net.ParseCIDR("10.0.0.0/8")
	via := net.ParseIP("192.0.2.254")
	cases := []struct {
		name  string
		route netlink.Route
		want  string
	}{
		{"default without a destination", netlink.Route{Gw: via}, "192.0.2.254"},
		{"default as a prefix", netlink.Route{Dst: everything, Gw: via}, "192.0.2.254"},
		{"another prefix", netlink.Route{Dst: some, Gw: via}, ""},
		{"no gateway", netlink.Route{Dst: everything}, ""},
	}
	for _, c := range cases {
		got, ok := gatewayOf(c.route)
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("%s: %v %v", c.name, got, ok)
		}
	}
}
