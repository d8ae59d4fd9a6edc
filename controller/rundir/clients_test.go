package rundir

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// conn of a user and a process, used at a time.
func conn(l *clients, uid uint32, pid int32, used int64) *Conn {
	c := &Conn{Peer: Peer{UID: uid, PID: pid}, clients: l}
	c.used.Store(used)
	return c
}

func TestIdleConnectionsOfOneUserKeepNoOtherUserOut(t *testing.T) {
	l := &clients{}
	controller := conn(l, 998, 1, 0)
	l.enter(controller)
	for i := range 2 * connectionsMax {
		if former := l.enter(conn(l, 1000, int32(i+2), int64(i+1))); former == controller {
			t.Fatal("another user's connection ended")
		}
	}
	l.leave(controller)
	l.enter(conn(l, 1000, 1, 0))
	if former := l.enter(conn(l, 998, 2, 0)); former == nil || former.Peer.UID != 1000 || len(l.open) != connectionsMax {
		t.Errorf("for a new controller %v ended, and %d are open", former, len(l.open))
	}
}

func TestTheIdlestConnectionOfTheBusiestProcessEnds(t *testing.T) {
	l := &clients{}
	idlest := conn(l, 1000, 1, 3)
	for _, c := range []*Conn{conn(l, 1000, 1, 5), conn(l, 1000, 2, 1), conn(l, 998, 3, 0), idlest} {
		l.enter(c)
	}
	if found := dispensable(l.open); found != idlest {
		t.Errorf("%+v", found.Peer)
	}
}

func TestAListenersConnectionsKnowTheirPeerAndEndForOthers(t *testing.T) {
	dir, err := os.MkdirTemp("", "gw") // short, for sockets' paths
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "x.sock")
	listener, _, err := Listen(path, ViewGroup)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var first net.Conn
	for range connectionsMax + 1 {
		client, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		if first == nil {
			first = client
		}
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if peer := accepted.(*Conn).Peer; peer != (Peer{UID: uint32(os.Geteuid()), PID: int32(os.Getpid())}) {
			t.Fatalf("peer %+v", peer)
		}
		defer accepted.Close()
	}
	_ = first.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := first.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the idlest connection is still open: %v", err)
	}
}
