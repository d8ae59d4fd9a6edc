package check

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/guideway/guideway/looptest"
)

// A probe comes from the address and port that it is given; ended by RST, the
// next one may have the same at once.
func TestASourcePortCanBeUsedAgainAtOnce(t *testing.T) {
	var from string
	port := listenHTTP(t, func(_ http.ResponseWriter, r *http.Request) { from = r.RemoteAddr })
	dialer := Dialer{Address: loopback.Address, From: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), looptest.FreePort(t)), Reset: true}
	for range 5 {
		if _, err := (HTTP{Port: port, Method: "GET", Path: "/", Status: StatusesOf(200)}).Probe(t.Context(), dialer); err != nil {
			t.Fatal(err)
		}
		if from != dialer.From.String() {
			t.Errorf("came from %s, wanted %s", from, dialer.From)
		}
		if _, err := (TCP{Port: port}).Probe(t.Context(), dialer); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReadsEndWithTheContext(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := loopback.Dial(ctx, "tcp", uint16(listener.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}
