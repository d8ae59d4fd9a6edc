package check

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// serveUDP answers each datagram by answer of it; nil: not at all.
func serveUDP(t *testing.T, answer func([]byte) []byte) uint16 {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buffer := make([]byte, datagramBytesMax)
		for n, from, err := conn.ReadFrom(buffer); err == nil; n, from, err = conn.ReadFrom(buffer) {
			if reply := answer(buffer[:n]); reply != nil {
				conn.WriteTo(reply, from)
			}
		}
	}()
	return uint16(conn.LocalAddr().(*net.UDPAddr).Port)
}

func TestUDPAnswers(t *testing.T) {
	text := func(s string) *string { return &s }
	echo := func(sent []byte) []byte { return append([]byte{0xff, 0}, sent...) }
	for _, c := range []struct {
		name   string
		given  *configv1.UdpCheck
		answer func([]byte) []byte
		text   string
		ok     bool
	}{
		{"any answer", &configv1.UdpCheck{Payload: text("PING\r\n")}, echo, "answered 8 bytes", true},
		{"an empty one to an empty one", &configv1.UdpCheck{}, func([]byte) []byte { return []byte{} }, "answered 0 bytes", true},
		{"the wanted text", &configv1.UdpCheck{Payload: text("PING"), Answer: text("ING")}, echo, "answered 6 bytes", true},
		{"the wanted bytes", &configv1.UdpCheck{PayloadHex: text("00 0A"), AnswerHex: text("ff00000a")}, echo, "answered 4 bytes", true},
		{"another text", &configv1.UdpCheck{Payload: text("PING"), Answer: text("PONG")}, echo, `the answer lacks "PONG": it is "\xff\x00PING"`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.given.Port = uint32(serveUDP(t, c.answer))
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			answer, err := readUDP(c.given, reader{t: t}).Probe(ctx, loopback)
			text := answer.Text
			if err != nil {
				text = err.Error()
			}
			if (err == nil) != c.ok || text != c.text {
				t.Errorf("got %q, wanted %q", text, c.text)
			}
		})
	}
}

func TestUDPWithoutAnAnswer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	silent := UDP{Port: serveUDP(t, func([]byte) []byte { return nil })}
	if _, err := silent.Probe(ctx, loopback); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a silent server: %v", err)
	}
	closed, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	port := uint16(closed.LocalAddr().(*net.UDPAddr).Port)
	if _, err := (UDP{Port: port}).Probe(t.Context(), loopback); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a closed port: %v", err)
	}
}

func TestMistakesInUDPFieldsAreReported(t *testing.T) {
	text := func(s string) *string { return &s }
	for _, c := range []struct {
		given *configv1.UdpCheck
		text  string
	}{
		{&configv1.UdpCheck{Payload: text("a"), PayloadHex: text("00")}, "udp.payload_hex is given beside udp.payload: give one of the two"},
		{&configv1.UdpCheck{Answer: text("a"), AnswerHex: text("00")}, "udp.answer_hex is given beside udp.answer"},
		{&configv1.UdpCheck{PayloadHex: text("0")}, `udp.payload_hex is "0": give two hexadecimal digits for each byte`},
		{&configv1.UdpCheck{AnswerHex: text("zz")}, `udp.answer_hex is "zz": give two hexadecimal digits`},
	} {
		problems := problemsOf(t, &configv1.HealthCheck{Udp: c.given}, nil)
		if len(problems) != 1 || !strings.HasPrefix(problems[0], c.text) {
			t.Errorf("got %q, wanted %q", problems, c.text)
		}
	}
}
