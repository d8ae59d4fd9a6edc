package check

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// TCP passes when a connection is accepted, and the server says what is wanted.
type TCP struct {
	Port uint16
	// Bytes, in strings because slices could not be compared.
	Send string
	// Bytes, or a regular expression; both empty: nothing is read.
	Expect, ExpectRegex string
}

// How much of what a server says is looked at, and in how many pieces: each has all looked
// at again, which a server that says a byte at a time must not have us do for long.
const (
	saidBytesMax  = 64 << 10
	saidPiecesMax = 256
)

func readTCP(given *configv1.TcpCheck, reader Reader) TCP {
	c := TCP{
		Port:        uint16(given.GetPort()),
		Send:        readBytes("tcp.send", given.GetSend(), given.GetSendHex(), reader),
		Expect:      readBytes("tcp.expect", given.GetExpect(), given.GetExpectHex(), reader),
		ExpectRegex: given.GetExpectRegex(),
	}
	if c.Expect != "" && c.ExpectRegex != "" {
		reader.Errorf("tcp.expect_regex", "is given beside tcp.expect: give one of the two")
	}
	if _, err := regexp.Compile(c.ExpectRegex); err != nil {
		reader.Errorf("tcp.expect_regex", "is no regular expression: %v", err)
	}
	return c
}

func (c TCP) Probe(ctx context.Context, dialer Dialer) (Answer, error) {
	conn, err := dialer.Dial(ctx, "tcp", c.Port)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, c.Send); err != nil {
		return Answer{}, err
	}
	if c.Expect == "" && c.ExpectRegex == "" {
		return Answer{Text: "connected"}, nil
	}
	return c.listen(conn)
}

// listen until the server has said what is wanted.
func (c TCP) listen(conn net.Conn) (Answer, error) {
	wanted, is := excerpt([]byte(c.Expect)), func(said []byte) bool { return bytes.Contains(said, []byte(c.Expect)) }
	if c.ExpectRegex != "" {
		wanted, is = "a match of "+c.ExpectRegex, regexp.MustCompile(c.ExpectRegex).Match
	}
	said, buffer := []byte{}, make([]byte, 4096)
	for pieces := 0; len(said) < saidBytesMax && pieces < saidPiecesMax; pieces++ {
		n, err := conn.Read(buffer)
		said = append(said, buffer[:n]...)
		switch {
		case n > 0 && is(said):
			return Answer{Text: fmt.Sprintf("answered %d bytes", len(said))}, nil
		case err == nil:
		case len(said) > 0: // closed, or silent from now on
			return Answer{}, fmt.Errorf("the answer lacks %s: it is %s", wanted, excerpt(said))
		default:
			return Answer{}, earlyEnd(err)
		}
	}
	return Answer{}, fmt.Errorf("the answer lacks %s in its first %d bytes: it is %s", wanted, len(said), excerpt(said))
}
