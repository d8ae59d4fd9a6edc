package check

import (
	"context"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// TLS passes when a handshake succeeds and the certificate is good.
type TLS struct {
	Port        uint16
	Certificate Certificate
}

func readTLS(given *configv1.TlsCheck, reader Reader) TLS {
	certificate := &configv1.Tls{ServerName: given.ServerName, CaFile: given.CaFile, Verify: given.Verify, ExpiryDays: given.ExpiryDays}
	return TLS{Port: uint16(given.GetPort()), Certificate: readCertificate("tls", certificate, reader)}
}

func (c TLS) Probe(ctx context.Context, dialer Dialer) (Answer, error) {
	conn, answer, err := c.Certificate.dial(ctx, dialer, c.Port)
	if err != nil {
		return Answer{}, err
	}
	conn.Close()
	return answer, nil
}
