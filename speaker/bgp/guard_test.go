package bgp

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// sendFrom an address with that TTL.
func sendFrom(t *testing.T, source string, port, ttl int, text string) {
	t.Helper()
	to := net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}
	from := &net.UDPAddr{IP: net.ParseIP(source)}
	if from.IP.To4() == nil {
		to.IP = net.IPv6loopback
	}
	conn, err := net.DialUDP("udp", from, &to)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if from.IP.To4() != nil {
		err = ipv4.NewConn(conn).SetTTL(ttl)
	} else {
		err = ipv6.NewConn(conn).SetHopLimit(ttl)
	}
	if err == nil {
		_, err = conn.Write([]byte(text))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestTheFilterLetsOnlyRoutersWithTTL255Through(t *testing.T) {
	if whyNoBird() == "" { // in a namespace of our own
		run(t, "ip", "link", "set", "lo", "up")
	}
	for _, listen := range []string{"udp", "udp4"} { // dual stack, as GoBGP's, and not
		socket, err := net.ListenUDP(listen, &net.UDPAddr{})
		if err != nil {
			t.Fatal(err)
		}
		defer socket.Close()
		port := socket.LocalAddr().(*net.UDPAddr).Port
		routers := []netip.Addr{netip.MustParseAddr("127.0.0.7"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("::1")}
		guarded, err := guardSocket(port, routers)
		if err != nil || !guarded.holds(routers) || guarded.holds(routers[:1]) {
			t.Fatalf("%+v, %v", guarded, err)
		}
		sendFrom(t, "127.0.0.1", port, 254, "near but one")
		sendFrom(t, "127.0.0.1", port, 64, "far")
		sendFrom(t, "127.0.0.2", port, 255, "a stranger")
		sendFrom(t, "127.0.0.1", port, 255, "the second router")
		sendFrom(t, "127.0.0.7", port, 255, "the first router")
		want := []string{"the second router", "the first router"}
		if listen == "udp" {
			sendFrom(t, "::1", port, 254, "near but one")
			sendFrom(t, "::1", port, 255, "the last router")
			want = append(want, "the last router")
		}
		buffer := make([]byte, 64)
		if err := socket.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		for _, text := range want {
			n, err := socket.Read(buffer)
			if err != nil || string(buffer[:n]) != text {
				t.Errorf("%s: heard %q, %v; want %q", listen, buffer[:n], err, text)
			}
		}
		_ = socket.Close()
		if guarded.holds(routers) {
			t.Error("a socket that is closed counts as guarded")
		}
	}
	if _, err := guardSocket(1, nil); !errors.Is(err, errNoSocket) {
		t.Errorf("%v", err)
	}
}
