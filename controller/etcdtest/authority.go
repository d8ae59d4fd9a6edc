package etcdtest

import (
	"path/filepath"
	"testing"

	"github.com/guideway/guideway/looptest"
)

// Authority signs certificates for loopback, for servers and clients.
type Authority struct {
	// Its certificate, in PEM.
	File string

	dir    string
	signer *looptest.Authority
}

// NewAuthority with files in a directory of the test.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{dir: t.TempDir(), signer: looptest.NewAuthority(t)}
	a.File = filepath.Join(a.dir, "ca.pem")
	looptest.WriteFile(t, a.File, a.signer.Certificate)
	return a
}

// Issue a certificate with a common name; returns its file and its key's.
func (a *Authority) Issue(t testing.TB, name string) (certFile, keyFile string) {
	t.Helper()
	certificate, key := a.signer.Issue(looptest.Named(name))
	certFile, keyFile = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem")
	looptest.WriteFile(t, certFile, certificate)
	looptest.WriteFile(t, keyFile, key)
	return certFile, keyFile
}
