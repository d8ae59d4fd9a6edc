package check

import (
	"cmp"
	"context"
	"net"
	"net/netip"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// HTTPS passes when the certificate is good, and a request over TLS is answered
// as HTTP demands.
type HTTPS struct {
	HTTP
	Certificate Certificate
}

func readHTTPS(given *configv1.HttpsCheck, reader Reader) HTTPS {
	check := HTTPS{
		HTTP:        readRequest("https", given, reader),
		Certificate: readCertificate("https.tls", given.GetTls(), reader),
	}
	check.Certificate.ServerName = cmp.Or(check.Certificate.ServerName, hostName(check.Host))
	return check
}

// hostName of a Host header, without port; empty for an address, which is no
// name to be sent (RFC 6066 section 3).
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	return host
}

func (c HTTPS) Probe(ctx context.Context, dialer Dialer) (Answer, error) {
	conn, answer, err := c.Certificate.dial(ctx, dialer, c.Port, "http/1.1")
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	text, err := c.exchange(conn, "https", dialer)
	answer.Text = text + ", " + answer.Text
	return answer, err
}
