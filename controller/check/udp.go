package check

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// UDP passes when a datagram is answered by one that contains what is wanted.
type UDP struct {
	Port uint16
	// Bytes, in strings because slices could not be compared.
	Payload string
	// Empty: any answer.
	Answer string
}

// The largest datagram there is.
const datagramBytesMax = 65535

func readUDP(given *configv1.UdpCheck, reader Reader) UDP {
	return UDP{
		Port:    uint16(given.GetPort()),
		Payload: readBytes("udp.payload", given.GetPayload(), given.GetPayloadHex(), reader),
		Answer:  readBytes("udp.answer", given.GetAnswer(), given.GetAnswerHex(), reader),
	}
}

// readBytes that are given as text or in hexadecimal.
func readBytes(field, text, digits string, reader Reader) string {
	if digits == "" {
		return text
	}
	if text != "" {
		reader.Errorf(field+"_hex", "is given beside %s: give one of the two", field)
	}
	data, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
	if err != nil {
		reader.Errorf(field+"_hex", "is %q: give two hexadecimal digits for each byte, like 00ff", digits)
	}
	return string(data)
}

func (c UDP) Probe(ctx context.Context, dialer Dialer) (Answer, error) {
	conn, err := dialer.Dial(ctx, "udp", c.Port)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(c.Payload)); err != nil {
		return Answer{}, err
	}
	buffer := make([]byte, datagramBytesMax)
	n, err := conn.Read(buffer)
	if err != nil {
		return Answer{}, err
	}
	if !bytes.Contains(buffer[:n], []byte(c.Answer)) {
		return Answer{}, fmt.Errorf("the answer lacks %s: it is %s", excerpt([]byte(c.Answer)), excerpt(buffer[:n]))
	}
	return Answer{Text: fmt.Sprintf("answered %d bytes", n)}, nil
}
