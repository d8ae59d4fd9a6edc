package load

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"
)

// openConversations begins the long-lived connections, not all at once.
func (l *Load) openConversations() {
	const perSecond = 250
	for index := range l.spec.Connections {
		l.work.Go(func() { l.converse(uint64(index)) })
		time.Sleep(time.Second / perSecond)
	}
}

// converse on one long-lived connection until it breaks or the load stops.
func (l *Load) converse(index uint64) {
	outcome := Failure{Kind: KindEcho, Begun: time.Now()}
	if err := l.tryConverse(index, &outcome); err != nil {
		outcome.Reason = reasonOf(err)
		l.broke(outcome)
	}
}

func (l *Load) tryConverse(index uint64, outcome *Failure) error {
	flow, err := l.sources.next(l.spec.Echo)
	if err != nil {
		return err
	}
	outcome.Flow = flow
	connection, err := l.dial(flow)
	if err != nil {
		return err
	}
	defer connection.Close()
	reader := bufio.NewReader(connection)
	if outcome.Backend, err = greeting(connection, reader, l.spec.TimeLimit); err != nil {
		return err
	}
	live := Live{Kind: KindEcho, Flow: flow, Backend: outcome.Backend}
	l.began(live)
	defer l.ended(live)
	return l.sayAll(connection, reader, index)
}

func greeting(connection net.Conn, reader *bufio.Reader, limit time.Duration) (string, error) {
	if err := connection.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", fmt.Errorf("set deadline: %w", err)
	}
	line, err := reader.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("greeting: %w", err)
	}
	return strings.TrimSpace(line), nil
}

// sayAll messages at the connection's rate; the last one after the load was
// told to stop, so that no break goes unseen.
func (l *Load) sayAll(connection net.Conn, reader *bufio.Reader, index uint64) error {
	random := rand.New(rand.NewPCG(l.spec.Seed, index))
	for number := uint64(1); ; number++ {
		// Up to a quarter more or less, so that connections do not keep step.
		interval := time.Duration(float64(time.Second) / l.spec.MessageRate * (0.75 + random.Float64()/2))
		goOn := l.sleep(interval)
		begun := time.Now()
		if err := say(connection, reader, message(index, number, random), l.spec.TimeLimit); err != nil {
			return fmt.Errorf("message %d: %w", number, err)
		}
		l.said(time.Since(begun))
		if !goOn {
			return nil
		}
	}
}

func (l *Load) said(pause time.Duration) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.report.Messages++
	l.report.LongestPause = max(l.report.LongestPause, pause)
}

// message: connection, number, length, then content that no other message
// has. One in ten is larger than two segments.
func message(index, number uint64, random *rand.Rand) []byte {
	length := 8 + random.IntN(256)
	if number%10 == 0 {
		length += 4_000
	}
	content := binary.BigEndian.AppendUint64(nil, index)
	content = binary.BigEndian.AppendUint64(content, number)
	content = binary.BigEndian.AppendUint32(content, uint32(length))
	for range (length + 7) / 8 {
		content = binary.BigEndian.AppendUint64(content, random.Uint64())
	}
	return content[:20+length]
}

// say a message and hear it again.
func say(connection net.Conn, reader io.Reader, content []byte, limit time.Duration) error {
	if err := connection.SetDeadline(time.Now().Add(limit)); err != nil {
		return fmt.Errorf("set deadline: %w", err)
	}
	if _, err := connection.Write(content); err != nil {
		return err
	}
	heard := make([]byte, len(content))
	if _, err := io.ReadFull(reader, heard); err != nil {
		return err
	}
	if !bytes.Equal(heard, content) {
		return fmt.Errorf("came back changed, first at byte %d of %d", firstDifference(heard, content), len(content))
	}
	return nil
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return len(a)
}
