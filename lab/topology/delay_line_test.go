package topology

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"testing"
	"time"
)

const (
	delayedPort = 7000
	// As many as fit into a socket from which nothing is read for a while.
	delayedFrames = 200
)

// Datagrams from one namespace to another, with the line between.
func TestFramesComeLateAndInOrder(t *testing.T) {
	line, from, to := between(t)
	line.Set(50*time.Millisecond, 0)
	came := exchange(t, from, to)
	if len(came) != delayedFrames {
		t.Fatalf("%d of %d came", len(came), delayedFrames)
	}
	for i, c := range came {
		if c.number != uint32(i) {
			t.Fatalf("at place %d came number %d", i, c.number)
		}
		if c.took < 50*time.Millisecond {
			t.Errorf("number %d came after %v", i, c.took)
		}
	}
}

func TestSomeFramesAreLost(t *testing.T) {
	line, from, to := between(t)
	line.Set(0, 0.25)
	// 50 are expected, 6 is the standard deviation.
	if lost := delayedFrames - len(exchange(t, from, to)); lost < 15 || lost > 85 {
		t.Errorf("%d of %d were lost", lost, delayedFrames)
	}
}

// between two namespaces, in a third.
func between(t *testing.T) (line *DelayLine, from net.Conn, to net.PacketConn) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for network namespaces")
	}
	prefix := fmt.Sprintf("gw-line-%d-", os.Getpid())
	for _, name := range []string{"left", "right", "line"} {
		runIn(t, "ip", "netns", "add", prefix+name)
		t.Cleanup(func() {
			if err := Run(context.Background(), "", "ip", "netns", "delete", prefix+name); err != nil {
				t.Error(err)
			}
		})
	}
	for i, name := range []string{"left", "right"} {
		runIn(t, "ip", "-n", prefix+"line", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", prefix+name)
		runIn(t, "ip", "-n", prefix+"line", "link", "set", name, "up")
		runIn(t, "ip", "-n", prefix+name, "link", "set", "eth0", "up")
		runIn(t, "ip", "-n", prefix+name, "address", "add", fmt.Sprintf("10.0.0.%d/24", i+1), "dev", "eth0")
		// The line hands on what it gets: senders finish their checksums.
		runIn(t, "ip", "netns", "exec", prefix+name, "ethtool", "-K", "eth0", "tx", "off")
	}
	line, err := OpenDelayLine(prefix+"line", [2]string{"left", "right"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := line.Close(); err != nil {
			t.Error(err)
		}
	})
	err = Inside(prefix+"right", func() (err error) {
		to, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", delayedPort))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = to.Close() })
	if from, err = DialInside(t.Context(), prefix+"left", net.Dialer{}, "udp4", fmt.Sprintf("10.0.0.2:%d", delayedPort)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = from.Close() })
	resolve(t, from, to)
	return line, from, to
}

// resolve the neighbor's address while the line loses nothing: without it no datagram
// goes out, and the kernel asks again only after a second.
func resolve(t *testing.T, from net.Conn, to net.PacketConn) {
	t.Helper()
	if _, err := from.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := to.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := to.ReadFrom(make([]byte, 64)); err != nil {
		t.Fatal(err)
	}
}

func runIn(t *testing.T, name string, args ...string) {
	t.Helper()
	if err := Run(t.Context(), "", name, args...); err != nil {
		t.Fatal(err)
	}
}

type arrival struct {
	number uint32
	took   time.Duration
}

// exchange numbered datagrams; what has not come a second after the last is lost.
func exchange(t *testing.T, from net.Conn, to net.PacketConn) (came []arrival) {
	t.Helper()
	if err := to.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	received := make(chan []arrival)
	go func() { received <- receive(to) }()
	for i := range delayedFrames {
		datagram := binary.BigEndian.AppendUint32(nil, uint32(i))
		datagram = binary.BigEndian.AppendUint64(datagram, uint64(time.Now().UnixNano()))
		if _, err := from.Write(datagram); err != nil {
			t.Error(err)
		}
	}
	if err := to.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Error(err)
	}
	return <-received
}

// receive until the deadline.
func receive(to net.PacketConn) (came []arrival) {
	for buffer := make([]byte, 64); ; {
		n, _, err := to.ReadFrom(buffer)
		if err != nil {
			return came
		}
		sent := time.Unix(0, int64(binary.BigEndian.Uint64(buffer[4:n])))
		came = append(came, arrival{binary.BigEndian.Uint32(buffer), time.Since(sent)})
	}
}
