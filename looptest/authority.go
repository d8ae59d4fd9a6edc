package looptest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority signs certificates for tests.
type Authority struct {
	t           testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	serial      int64
	// PEM.
	Certificate []byte
}

// NewAuthority is like no other.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, key: newKey(t), serial: 1}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().AddDate(-1, 0, 0), NotAfter: time.Now().AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// Issue a certificate that is as the template where that says something; else
// it is for 127.0.0.1 as a server, and for clients, from a day ago for a day.
func (a *Authority) Issue(template x509.Certificate) (certificate, key []byte) {
	a.t.Helper()
	a.serial++
	template.SerialNumber = big.NewInt(a.serial)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(24 * time.Hour)
	}
	if template.NotBefore.IsZero() {
		template.NotBefore = time.Now().Add(-24 * time.Hour)
	}
	if template.IPAddresses == nil {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	own := newKey(a.t)
	der, err := x509.CreateCertificate(rand.Reader, &template, a.certificate, &own.PublicKey, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(own)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
}

// IssueTLS is Issue for use in this process.
func (a *Authority) IssueTLS(template x509.Certificate) tls.Certificate {
	a.t.Helper()
	certificate, err := tls.X509KeyPair(a.Issue(template))
	if err != nil {
		a.t.Fatal(err)
	}
	return certificate
}

// Client of 127.0.0.1 that shows a certificate, and trusts this authority.
func (a *Authority) Client(template x509.Certificate) *tls.Config {
	a.t.Helper()
	return &tls.Config{Certificates: []tls.Certificate{a.IssueTLS(template)}, RootCAs: a.Pool()}
}

// Pool has this authority.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// WriteFiles api.crt, api.key and ca.crt of a server, for the names of template.
func (a *Authority) WriteFiles(dir string, template x509.Certificate) {
	a.t.Helper()
	certificate, key := a.Issue(template)
	for name, data := range map[string][]byte{"api.crt": certificate, "api.key": key, "ca.crt": a.Certificate} {
		WriteFile(a.t, filepath.Join(dir, name), data)
	}
}

// WriteFile whole, as programs that renew certificates do.
func WriteFile(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// Named has a common name.
func Named(name string) x509.Certificate {
	return x509.Certificate{Subject: pkix.Name{CommonName: name}}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
