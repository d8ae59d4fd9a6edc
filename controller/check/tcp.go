package check

import (
	"context"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// TCP passes when a connection is accepted.
type TCP struct {
	Port uint16
}

func readTCP(given *configv1.TcpCheck, _ Reader) TCP {
	return TCP{Port: uint16(given.GetPort())}
}

func (c TCP) Probe(ctx context.Context, dialer Dialer) (Answer, error) {
	conn, err := dialer.Dial(ctx, "tcp", c.Port)
	if err != nil {
		return Answer{}, err
	}
	conn.Close()
	return Answer{Text: "connected"}, nil
}
