package rundir

// The clients of a socket: the kernel identifies each, and none can keep others out.

import (
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Connections at a time over one socket. Each takes some 50 KiB.
const connectionsMax = 256

// Peer is the process at the other end of a connection.
type Peer struct {
	UID uint32
	PID int32
}

// Conn of a client, by whose Peer is decided what it may do.
type Conn struct {
	net.Conn
	Peer Peer

	clients *clients
	// When anything was sent or received last, in nanoseconds since `began`.
	used atomic.Int64
}

// began makes differences to it come from the monotonic clock: the wall clock may be set back.
var began = time.Now()

func (c *Conn) use() { c.used.Store(int64(time.Since(began))) }

func (c *Conn) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	c.use()
	return n, err
}

func (c *Conn) Write(data []byte) (int, error) {
	n, err := c.Conn.Write(data)
	c.use()
	return n, err
}

// Close gives the place back.
func (c *Conn) Close() error {
	c.clients.leave(c)
	return c.Conn.Close()
}

// clients is a listener whose connections are Conns.
type clients struct {
	net.Listener
	mu   sync.Mutex
	open []*Conn
}

// Accept lets in who connects. When there are too many, a connection of the user
// who has the most ends.
func (l *clients) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		peer, err := peerOf(conn)
		if err != nil {
			_ = conn.Close() // the kernel does not say who it is
			continue
		}
		c := &Conn{Conn: conn, Peer: peer, clients: l}
		c.use()
		if former := l.enter(c); former != nil {
			_ = former.Conn.Close() // its server notices
		}
		return c, nil
	}
}

// enter returns who has lost its place; nil: nobody.
func (l *clients) enter(c *Conn) (former *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= connectionsMax {
		former = dispensable(l.open)
		l.open = slices.DeleteFunc(l.open, func(other *Conn) bool { return other == former })
	}
	l.open = append(l.open, c)
	return former
}

func (l *clients) leave(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = slices.DeleteFunc(l.open, func(other *Conn) bool { return other == c })
}

// dispensable is the connection that was used the longest ago, of the process that
// has the most, of the user who has the most.
func dispensable(open []*Conn) *Conn {
	ofUser, ofProcess := map[uint32]int{}, map[Peer]int{}
	for _, c := range open {
		ofUser[c.Peer.UID]++
		ofProcess[c.Peer]++
	}
	return slices.MaxFunc(open, func(a, b *Conn) int {
		if d := ofUser[a.Peer.UID] - ofUser[b.Peer.UID]; d != 0 {
			return d
		}
		if d := ofProcess[a.Peer] - ofProcess[b.Peer]; d != 0 {
			return d
		}
		return int(b.used.Load() - a.used.Load())
	})
}

// peerOf a unix socket's connection (SO_PEERCRED).
func peerOf(conn net.Conn) (Peer, error) {
	socket, is := conn.(*net.UnixConn)
	if !is {
		return Peer{}, errors.New("no unix socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var found *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { found, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, failed); err != nil {
		return Peer{}, err
	}
	return Peer{UID: found.Uid, PID: found.Pid}, nil
}
