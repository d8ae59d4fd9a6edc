package echo

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTCPSaysItsNameThenReturnsEveryByteInOrder(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() { _ = Server{Name: "be-7"}.serveTCP(t.Context(), listener) }()

	connection, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	reader := bufio.NewReader(connection)
	if name, err := reader.ReadString('\n'); err != nil || name != "be-7\n" {
		t.Fatalf("greeting %q, %v", name, err)
	}
	sent := strings.Repeat("0123456789", 10_000)
	go func() { fmt.Fprint(connection, sent) }()
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(reader, got); err != nil || string(got) != sent {
		t.Fatalf("echo differs, %v", err)
	}
}

func TestUDPPutsItsNameBeforeEachDatagram(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() { _ = Server{Name: "be-7"}.serveUDP(server) }()

	client, err := net.Dial("udp", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, datagram := range []string{"one", "", "three"} {
		if _, err := client.Write([]byte(datagram)); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 100)
		n, err := client.Read(buffer)
		if err != nil || string(buffer[:n]) != "be-7\n"+datagram {
			t.Fatalf("got %q, %v", buffer[:n], err)
		}
	}
}

func TestUDPListensOnAddressesThatComeLater(t *testing.T) {
	for _, address := range []string{"192.0.2.1:7000", "[2001:db8::1]:7000"} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := (Server{Name: "be-1", UDP: []string{address}}).Run(ctx); err != nil {
			t.Error(err)
		}
		cancel()
	}
}
