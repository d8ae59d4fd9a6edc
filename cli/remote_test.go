package main

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/looptest"
)

func TestTheServersAndTheOwnCertificateAreToldApart(t *testing.T) {
	authority, dir := looptest.NewAuthority(t), t.TempDir()
	certificate, err := tls.X509KeyPair(authority.Issue(looptest.Named("lb-1")))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Pool(), NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake() // the client says how it went
			conn.Close()
		}
	}()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	files := func(a *looptest.Authority, template x509.Certificate, ca []byte) []string {
		folder := filepath.Join(dir, "alice")
		certificate, key := a.Issue(template)
		looptest.WriteFile(t, folder+".crt", certificate)
		looptest.WriteFile(t, folder+".key", key)
		looptest.WriteFile(t, folder+".ca", ca)
		return []string{"--cert-file", folder + ".crt", "--key-file", folder + ".key", "--ca-file", folder + ".ca"}
	}
	other := looptest.NewAuthority(t)
	expired := looptest.Named("alice")
	expired.NotAfter = time.Now().Add(-time.Hour)
	try := func(what, address, want string, flags []string) {
		t.Helper()
		_, _, err := guideway(t, append([]string{"show", "services", "--server", address}, flags...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	at := listener.Addr().String()
	try("a client of another authority", at, "refuses the certificate", files(other, looptest.Named("alice"), authority.Certificate))
	try("a server of another authority", at, "shows a certificate that is not good", files(authority, looptest.Named("alice"), other.Certificate))
	try("an expired certificate", at, "expired at", files(authority, expired, authority.Certificate))
	try("an authority without a certificate", at, "holds no certificate", files(authority, looptest.Named("alice"), []byte("nothing")))
	try("a closed port", closed.Addr().String(), "does not answer (connect: connection refused): does it run, with `api:", files(authority, looptest.Named("alice"), authority.Certificate))
}
