package check

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// serveTCP has each connection served.
func serveTCP(t *testing.T, serve func(net.Conn)) uint16 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for conn, err := listener.Accept(); err == nil; conn, err = listener.Accept() {
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return uint16(listener.Addr().(*net.TCPAddr).Port)
}

func TestTCPAnswers(t *testing.T) {
	const silence = "another text, and silence"
	text := func(s string) *string { return &s }
	says := func(parts ...string) func(net.Conn) {
		return func(conn net.Conn) {
			for _, part := range parts {
				io.WriteString(conn, part)
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
	echo := func(conn net.Conn) { io.Copy(conn, conn) }
	drips := func(conn net.Conn) {
		for {
			if _, err := io.WriteString(conn, "x"); err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	stays := func(conn net.Conn) {
		io.WriteString(conn, "-LOADING\r\n")
		io.Copy(io.Discard, conn)
	}
	for _, c := range []struct {
		name  string
		given *configv1.TcpCheck
		serve func(net.Conn)
		text  string
		ok    bool
	}{
		{"accepted", &configv1.TcpCheck{}, says(), "connected", true},
		{"whatever it says", &configv1.TcpCheck{Send: text("PING\r\n")}, echo, "connected", true},
		{"the wanted text", &configv1.TcpCheck{Send: text("PING\r\n"), Expect: text("ING")}, echo, "answered 6 bytes", true},
		{"the wanted bytes", &configv1.TcpCheck{SendHex: text("00 ff"), ExpectHex: text("ff")}, echo, "answered 2 bytes", true},
		{"in two parts", &configv1.TcpCheck{Expect: text("220 mail")}, says("220 ", "mail\r\n"), "answered 10 bytes", true},
		{"a banner", &configv1.TcpCheck{ExpectRegex: text(`^220[ -].*ESMTP`)}, says("220 mail.example ESMTP\r\n"), "answered 24 bytes", true},
		{"bytes by an expression", &configv1.TcpCheck{ExpectRegex: text(`(?s)^...\x00\x0a`)}, says("\x4a\x00\x00\x00\x0a8.0.40"), "answered 11 bytes", true},
		{"another text", &configv1.TcpCheck{Expect: text("+PONG")}, says("-ERR\r\n"), `the answer lacks "+PONG": it is "-ERR\r\n"`, false},
		{silence, &configv1.TcpCheck{Expect: text("+PONG")}, stays, `the answer lacks "+PONG": it is "-LOADING\r\n"`, false},
		{"no match", &configv1.TcpCheck{ExpectRegex: text("^220")}, says("554 no"), `the answer lacks a match of ^220: it is "554 no"`, false},
		{"nothing", &configv1.TcpCheck{Expect: text("220")}, says(), "the server closed the connection without an answer", false},
		{"far too much", &configv1.TcpCheck{Expect: text("220")}, says(strings.Repeat("x", 2*saidBytesMax)), `the answer lacks "220" in its first 6`, false},
		{"in far too many pieces", &configv1.TcpCheck{Expect: text("220")}, drips, `the answer lacks "220" in its first `, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.given.Port = uint32(serveTCP(t, c.serve))
			timeout := time.Minute
			if c.name == silence {
				timeout = 3 * time.Second // has to pass
			}
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			answer, err := readTCP(c.given, reader{t: t}).Probe(ctx, loopback)
			text := answer.Text
			if err != nil {
				text = err.Error()
			}
			if (err == nil) != c.ok || !strings.HasPrefix(text, c.text) {
				t.Errorf("got %q, wanted %q", text, c.text)
			}
		})
	}
}

func TestTCPThatStaysSilent(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	silent := TCP{Port: serveTCP(t, func(conn net.Conn) { io.Copy(io.Discard, conn) }), Expect: "220"}
	if _, err := silent.Probe(ctx, loopback); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}

func TestMistakesInTCPFieldsAreReported(t *testing.T) {
	text := func(s string) *string { return &s }
	for _, c := range []struct {
		given *configv1.TcpCheck
		text  string
	}{
		{&configv1.TcpCheck{Send: text("a"), SendHex: text("00")}, "tcp.send_hex is given beside tcp.send: give one of the two"},
		{&configv1.TcpCheck{Expect: text("a"), ExpectHex: text("00")}, "tcp.expect_hex is given beside tcp.expect"},
		{&configv1.TcpCheck{Expect: text("a"), ExpectRegex: text("a")}, "tcp.expect_regex is given beside tcp.expect: give one of the two"},
		{&configv1.TcpCheck{ExpectHex: text("0")}, `tcp.expect_hex is "0": give two hexadecimal digits for each byte`},
		{&configv1.TcpCheck{ExpectRegex: text("(")}, "tcp.expect_regex is no regular expression: error parsing regexp"},
	} {
		problems := problemsOf(t, &configv1.HealthCheck{Tcp: c.given}, nil)
		if len(problems) != 1 || !strings.HasPrefix(problems[0], c.text) {
			t.Errorf("got %q, wanted %q", problems, c.text)
		}
	}
}
