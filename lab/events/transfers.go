package events

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guideway/guideway/lab/topology"
)

const (
	// Each round of a transfer, there and back, and the pause until the next.
	roundBytes = 32 << 10
	roundPause = 100 * time.Millisecond
	// A round that takes longer has failed: a link that is cut costs a subflow some
	// repetitions before the other one goes on for it.
	roundLimit = 30 * time.Second
	dialLimit  = 10 * time.Second
)

// transfer is a connection of Multipath TCP to the echo service, by which random bytes
// go there and back, round after round.
type transfer struct {
	connection net.Conn
	reader     *bufio.Reader
	backend    string
	random     *rand.ChaCha8
	rounds     atomic.Int64
	// Why it ended before it was told to; nil: it did not.
	broken error
	// Rounds whose bytes came back changed.
	digestErrors int
}

func openTransfer(ctx context.Context, namespace string, vip netip.Addr, seed [32]byte) (*transfer, error) {
	dialer := net.Dialer{Timeout: dialLimit}
	dialer.SetMultipathTCP(true)
	connection, err := topology.DialInside(ctx, namespace, dialer, "tcp", netip.AddrPortFrom(vip, topology.EchoPort).String())
	if err != nil {
		return nil, err
	}
	t := &transfer{connection: connection, reader: bufio.NewReaderSize(connection, roundBytes), random: rand.NewChaCha8(seed)}
	if err := connection.SetDeadline(time.Now().Add(dialLimit)); err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	greeting, err := t.reader.ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("greeting of %s: %w", vip, err), connection.Close())
	}
	t.backend = strings.TrimSpace(greeting)
	return t, nil
}

// local end of the subflow that the connection began with.
func (t *transfer) local() netip.AddrPort {
	end := t.connection.LocalAddr().(*net.TCPAddr).AddrPort() // of a TCP connection
	return netip.AddrPortFrom(end.Addr().Unmap(), end.Port())
}

// run rounds until it is told to stop; the last one begins after that.
func (t *transfer) run(stop <-chan struct{}) {
	for last := false; !last; {
		select {
		case <-stop:
			last = true
		case <-time.After(roundPause):
		}
		same, err := t.round()
		if err != nil {
			t.broken = fmt.Errorf("%s at %s, in round %d: %w", t.connection.LocalAddr(), t.backend, t.rounds.Load()+1, err)
			return
		}
		if !same {
			t.digestErrors++
		}
		t.rounds.Add(1)
	}
}

// round is true if the bytes that came back have the digest of those that were sent.
func (t *transfer) round() (same bool, err error) {
	if err := t.connection.SetDeadline(time.Now().Add(roundLimit)); err != nil {
		return false, err
	}
	sent, wrote := make([]byte, roundBytes), make(chan error, 1)
	_, _ = t.random.Read(sent) // never fails
	go func() {
		_, err := t.connection.Write(sent)
		wrote <- err
	}()
	back := sha256.New()
	n, err := io.CopyN(back, t.reader, roundBytes)
	if err != nil {
		_ = t.connection.Close() // ends the writer as well
		<-wrote
		return false, fmt.Errorf("%d of %d bytes came back: %w", n, roundBytes, err)
	}
	return [sha256.Size]byte(back.Sum(nil)) == sha256.Sum256(sent), <-wrote
}

// transfers that run together.
type transfers struct {
	all       []*transfer
	namespace string
	stop      chan struct{}
	running   sync.WaitGroup
	// Of subflows that a connection was joined by, the most that was seen, by the
	// local ends of the connection's first subflow and of its own.
	bytes map[netip.AddrPort]map[netip.AddrPort]uint64
	// firstBytes of the subflows that connections began with.
	firstBytes map[netip.AddrPort]uint64
}

// startTransfers to the VIPs in turn.
func startTransfers(ctx context.Context, namespace string, count int, random *rand.Rand) (*transfers, error) {
	ts := &transfers{
		namespace: namespace, stop: make(chan struct{}),
		bytes: map[netip.AddrPort]map[netip.AddrPort]uint64{}, firstBytes: map[netip.AddrPort]uint64{},
	}
	for i := range count {
		var seed [32]byte
		for at := range seed {
			seed[at] = byte(random.Uint32())
		}
		t, err := openTransfer(ctx, namespace, topology.EchoVIPs[i%len(topology.EchoVIPs)], seed)
		if err != nil {
			ts.end()
			return nil, fmt.Errorf("transfer %d: %w", i+1, err)
		}
		ts.all = append(ts.all, t)
		ts.running.Go(func() { t.run(ts.stop) })
	}
	return ts, nil
}

// readSubflows as they are now: of those that end nothing more is known.
func (ts *transfers) readSubflows(ctx context.Context) error {
	found, err := topology.Subflows(ctx, ts.namespace)
	if err != nil {
		return err
	}
	tokens := map[string]netip.AddrPort{}
	first := map[netip.AddrPort]bool{}
	for _, t := range ts.all {
		first[t.local()] = true
	}
	for _, s := range found {
		if first[s.Local] {
			tokens[s.Token] = s.Local
			ts.firstBytes[s.Local] = max(ts.firstBytes[s.Local], s.Bytes)
		}
	}
	for _, s := range found {
		connection, ours := tokens[s.Token]
		if !ours || first[s.Local] {
			continue
		}
		if ts.bytes[connection] == nil {
			ts.bytes[connection] = map[netip.AddrPort]uint64{}
		}
		ts.bytes[connection][s.Local] = max(ts.bytes[connection][s.Local], s.Bytes)
	}
	return nil
}

// joinedBytes of all connections, by subflows that they were joined by.
func (ts *transfers) joinedBytes() (sum uint64) {
	for _, t := range ts.all {
		sum += ts.joinedBytesOf(t)
	}
	return sum
}

func (ts *transfers) joinedBytesOf(t *transfer) (sum uint64) {
	for _, bytes := range ts.bytes[t.local()] {
		sum += bytes
	}
	return sum
}

// finish all, each with one more round.
func (ts *transfers) finish() {
	close(ts.stop)
	ts.running.Wait()
}

// end whatever still runs, and close all.
func (ts *transfers) end() {
	for _, t := range ts.all {
		_ = t.connection.Close() // it has done its work, or something else is told
	}
	select {
	case <-ts.stop:
	default:
		close(ts.stop)
	}
	ts.running.Wait()
}
