package check

// Verification of server certificates, for all kinds of checks that use TLS.

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/outside"
	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// Certificate says which certificates of a server are good.
type Certificate struct {
	// Sent (SNI), and what the certificate must be for. Empty: the address, which
	// is not sent.
	ServerName string
	// nil: the system's.
	Authorities *Authorities
	// Any certificate is good.
	Unverified bool
	// One that expires in fewer days is warned of.
	ExpiryDays uint32
}

const expiryDaysDefault = 14

func readCertificate(field string, given *configv1.Tls, reader Reader) Certificate {
	certificate := Certificate{ServerName: given.GetServerName(), ExpiryDays: expiryDaysDefault}
	if hasSpace(certificate.ServerName) {
		reader.Errorf(field+".server_name", "is %q: give a host name, without spaces", certificate.ServerName)
	}
	if given != nil && given.Verify != nil {
		certificate.Unverified = !*given.Verify
	}
	if given != nil && given.ExpiryDays != nil {
		certificate.ExpiryDays = *given.ExpiryDays
	}
	switch file := given.GetCaFile(); {
	case file == "":
	case certificate.Unverified:
		reader.Errorf(field+".ca_file", "is given beside verify: false, which lets any certificate pass: remove one of the two")
	default:
		certificate.Authorities = readAuthorities(field+".ca_file", file, reader)
	}
	return certificate
}

// Authorities are certificates that others are signed with. Those of equal
// content are the same pointer, so that checks can be compared.
type Authorities struct {
	// Of the content.
	digest string
	pool   *x509.CertPool
}

// GoString is what Key has of them.
func (a *Authorities) GoString() string {
	if a == nil {
		return "system"
	}
	return a.digest
}

// Those that configs named since the process began, by their digests.
var authorities sync.Map

func readAuthorities(field, file string, reader Reader) *Authorities {
	data, ok := reader.ReadFile(field, file)
	if !ok {
		return nil
	}
	read, err := AuthoritiesOf(data)
	if err != nil {
		reader.Errorf(field, "%s %v: give certificates of authorities as PEM, blocks of BEGIN CERTIFICATE", file, err)
	}
	return read
}

// AuthoritiesOf reads a file's content.
func AuthoritiesOf(data []byte) (*Authorities, error) {
	read := &Authorities{pool: x509.NewCertPool()}
	digest := sha256.New()
	others := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			others++
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("has a certificate that cannot be read (%w)", err)
		}
		read.pool.AddCert(certificate)
		digest.Write(block.Bytes)
	}
	switch {
	case !read.pool.Equal(x509.NewCertPool()):
	case others > 0:
		return nil, errors.New("holds keys or the like, and no certificate")
	default:
		return nil, errors.New("holds no certificate")
	}
	read.digest = hex.EncodeToString(digest.Sum(nil))
	same, _ := authorities.LoadOrStore(read.digest, read)
	return same.(*Authorities), nil
}

// dial connects, and holds the server's certificate against what is good. The
// answer's text says what was agreed.
func (c Certificate) dial(ctx context.Context, dialer Dialer, port uint16, protocols ...string) (*tls.Conn, Answer, error) {
	conn, err := dialer.Dial(ctx, "tcp", port)
	if err != nil {
		return nil, Answer{}, err
	}
	name := cmp.Or(c.ServerName, dialer.Address.String())
	secured := tls.Client(conn, &tls.Config{
		ServerName:         name,
		RootCAs:            c.pool(),
		InsecureSkipVerify: c.Unverified,
		NextProtos:         protocols,
	})
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, Answer{}, c.handshakeError(err)
	}
	return secured, c.judge(secured.ConnectionState(), time.Now()), nil
}

func (c Certificate) pool() *x509.CertPool {
	if c.Authorities == nil {
		return nil
	}
	return c.Authorities.pool
}

// judge says when the certificate, or another one that it hangs on, expires.
func (c Certificate) judge(state tls.ConnectionState, now time.Time) Answer {
	chains := state.VerifiedChains
	if len(chains) == 0 {
		chains = [][]*x509.Certificate{state.PeerCertificates}
	}
	var expires time.Time
	for _, chain := range chains { // one that is good is enough
		if first := firstExpiry(chain); first.After(expires) {
			expires = first
		}
	}
	days := daysUntil(expires, now)
	answer := Answer{
		Text:    fmt.Sprintf("%s, certificate expires in %d days", tls.VersionName(state.Version), days),
		Expires: expires,
	}
	if days < int(c.ExpiryDays) {
		answer.Warning = fmt.Sprintf("the certificate of %s expires in %d days, on %s: renew it",
			subject(state.PeerCertificates[0]), days, expires.UTC().Format("2006-01-02 15:04 MST"))
	}
	return answer
}

func firstExpiry(chain []*x509.Certificate) time.Time {
	first := chain[0].NotAfter
	for _, certificate := range chain[1:] {
		if certificate.NotAfter.Before(first) {
			first = certificate.NotAfter
		}
	}
	return first
}

// daysUntil is negative once it is over (which passes without verification).
func daysUntil(expires, now time.Time) int {
	left := expires.Sub(now)
	if left < 0 {
		left -= 24 * time.Hour
	}
	return int(left / (24 * time.Hour))
}

// Of a certificate: one may have hundreds.
const nameBytesMax = 100

func subject(certificate *x509.Certificate) string {
	name := cmp.Or(certificate.Subject.CommonName, strings.Join(certificate.DNSNames, ", "), certificate.Subject.String(), "no name")
	return outside.Line(name, nameBytesMax)
}

// handshakeError says in words of the config what is wrong.
func (c Certificate) handshakeError(err error) error {
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var noTLS tls.RecordHeaderError
	switch {
	case errors.As(err, &name):
		return fmt.Errorf("the certificate is for %s, not for %s: give the server another one, or correct server_name", namesIn(name.Certificate), name.Host)
	case errors.As(err, &unknown):
		return fmt.Errorf("the certificate of %s is signed by %s, which is not among %s", subject(unknown.Cert), unknown.Cert.Issuer, c.authoritiesText())
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return validityError(invalid.Cert, time.Now())
	case errors.As(err, &invalid):
		return fmt.Errorf("the certificate is not good: %w", invalid)
	case errors.As(err, &noTLS):
		return errors.New("the server does not speak TLS on this port")
	case errors.Is(err, io.EOF):
		return errors.New("the server closed the connection during the TLS handshake")
	}
	return err
}

func (c Certificate) authoritiesText() string {
	if c.Authorities == nil {
		return "the system's authorities: name the authority's file in ca_file"
	}
	return "those of ca_file"
}

func validityError(certificate *x509.Certificate, now time.Time) error {
	const form = "2006-01-02 15:04 MST"
	if now.Before(certificate.NotBefore) {
		return fmt.Errorf("the certificate of %s is valid from %s only: is a clock wrong?", subject(certificate), certificate.NotBefore.UTC().Format(form))
	}
	return fmt.Errorf("the certificate of %s expired on %s: renew it", subject(certificate), certificate.NotAfter.UTC().Format(form))
}

// namesIn a certificate, as one compares them with what was wanted.
func namesIn(certificate *x509.Certificate) string {
	names := certificate.DNSNames
	for _, ip := range certificate.IPAddresses {
		names = append(names[:len(names):len(names)], ip.String())
	}
	const most = 5
	switch {
	case len(names) == 0:
		return "no name or address (its subject, " + certificate.Subject.String() + ", does not count)"
	case len(names) > most:
		return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}
