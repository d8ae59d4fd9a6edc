package check

import (
	"context"
	"net"
	"net/netip"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// TCP passes when a connection is accepted.
type TCP struct {
	Port uint16
}

func readTCP(given *configv1.TcpCheck, _ Report) TCP {
	return TCP{Port: uint16(given.GetPort())}
}

func (c TCP) Probe(ctx context.Context, address netip.Addr) (string, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", hostPort(address, c.Port))
	if err != nil {
		return "", err
	}
	conn.Close()
	return "connected", nil
}
