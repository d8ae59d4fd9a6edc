package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/looptest"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// logText is what a log says.
type logText struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (t *logText) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.data.Write(data)
}

func (t *logText) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.data.String()
}

// remoteAPI is served on 127.0.0.1 with the files of a directory.
type remoteAPI struct {
	*Remote
	host      *host
	authority *looptest.Authority
	dir       string
	config    config.API
	log       *logText
}

func serveRemote(t *testing.T) *remoteAPI {
	t.Helper()
	a := &remoteAPI{host: &host{}, authority: looptest.NewAuthority(t), dir: t.TempDir(), log: &logText{}}
	a.authority.WriteFiles(a.dir, looptest.Named("lb-1"))
	file := func(name string) string { return filepath.Join(a.dir, name) }
	a.config = config.API{
		Listen: looptest.FreeAddress(t), TLS: config.TLSFiles{CertFile: file("api.crt"), KeyFile: file("api.key"), CAFile: file("ca.crt")},
		Roles: config.Roles{View: []string{"victor", "alice@example.org"}, Operate: []string{"olga.example.org", "spiffe://example.org/oscar"}, Admin: []string{"ada"}},
	}
	log := slog.New(slog.NewTextHandler(a.log, nil))
	audit, err := OpenAudit(a.dir, log)
	if err != nil {
		t.Fatal(err)
	}
	a.Remote = NewRemote(Settings{Host: a.host, Audit: audit}, log)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); a.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done; audit.Close() })
	a.Set(&a.config)
	a.logged(t, "serving the API over TCP")
	return a
}

// logged waits for a line.
func (a *remoteAPI) logged(t *testing.T, part string) {
	t.Helper()
	eventually(t, "the log says "+part, func() bool { return strings.Contains(a.log.String(), part) })
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (a *remoteAPI) client(t *testing.T, shown *tls.Config) controllerv1.ControllerClient {
	t.Helper()
	conn, err := grpc.NewClient(a.config.Listen, grpc.WithTransportCredentials(credentials.NewTLS(shown)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return controllerv1.NewControllerClient(conn)
}

func TestNamesOfCertificatesHaveRoles(t *testing.T) {
	a := serveRemote(t)
	oscar, _ := url.Parse("spiffe://example.org/oscar")
	for name, c := range map[string]struct {
		certificate         x509.Certificate
		view, operate, rest codes.Code
	}{
		"a common name":  {looptest.Named("victor"), codes.OK, codes.PermissionDenied, codes.PermissionDenied},
		"a mail address": {x509.Certificate{EmailAddresses: []string{"alice@example.org"}}, codes.OK, codes.PermissionDenied, codes.PermissionDenied},
		"a DNS name":     {x509.Certificate{DNSNames: []string{"x.example.org", "olga.example.org"}}, codes.OK, codes.OK, codes.PermissionDenied},
		"a URI":          {x509.Certificate{URIs: []*url.URL{oscar}}, codes.OK, codes.OK, codes.PermissionDenied},
		"an admin":       {looptest.Named("ada"), codes.OK, codes.OK, codes.OK},
		"no role":        {looptest.Named("mallory"), codes.PermissionDenied, codes.PermissionDenied, codes.PermissionDenied},
		"almost a name":  {looptest.Named("ada "), codes.PermissionDenied, codes.PermissionDenied, codes.PermissionDenied},
	} {
		client := a.client(t, a.authority.Client(c.certificate))
		_, view := client.GetState(t.Context(), &controllerv1.GetStateRequest{})
		_, operate := client.DrainBackend(t.Context(), &controllerv1.DrainBackendRequest{Backend: "web-1", Drain: true})
		_, apply := client.ReplaceConfig(t.Context(), &controllerv1.ReplaceConfigRequest{Files: []*controllerv1.ConfigFile{configFile("a", "1")}})
		if status.Code(view) != c.view || status.Code(operate) != c.operate || status.Code(apply) != c.rest {
			t.Errorf("%s: %v, %v, %v", name, view, operate, apply)
		}
		if c.view == codes.PermissionDenied && !strings.Contains(view.Error(), "has no role here: give one of its names") {
			t.Errorf("%s: %v", name, view)
		}
	}
	var line map[string]any
	for _, l := range auditLines(t, a.dir) {
		if l["user"] == "spiffe://example.org/oscar" && l["result"] == "done" {
			line = l
		}
	}
	if line == nil || line["role"] != "operate" || line["certificate"] == "" || !strings.HasPrefix(line["from"].(string), "127.0.0.1:") || line["uid"] != nil {
		t.Errorf("the audit log has %v", line)
	}
}

func TestBadCertificatesAreRefusedInWords(t *testing.T) {
	a := serveRemote(t)
	other := looptest.NewAuthority(t)
	foreign := other.Client(looptest.Named("ada"))
	foreign.RootCAs = a.authority.Pool()
	expired := looptest.Named("ada")
	expired.NotAfter = time.Now().Add(-time.Hour)
	server := looptest.Named("ada")
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for name, c := range map[string]struct {
		shown          *tls.Config
		client, logged string
	}{
		"none":              {&tls.Config{RootCAs: a.authority.Pool()}, "certificate required", "client didn't provide a certificate"},
		"another authority": {foreign, "unknown certificate authority", "certificate signed by unknown authority"},
		"expired":           {a.authority.Client(expired), "expired certificate", "certificate has expired"},
		"for servers":       {a.authority.Client(server), "bad certificate", "incompatible key usage"},
		"old TLS":           {&tls.Config{RootCAs: a.authority.Pool(), MaxVersion: tls.VersionTLS12, Certificates: a.authority.Client(looptest.Named("ada")).Certificates}, "protocol version", "unsupported versions"},
	} {
		_, err := a.client(t, c.shown).GetState(t.Context(), &controllerv1.GetStateRequest{})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		// One that writes at once may find the connection closed before it reads why.
		conn, err := tls.Dial("tcp", a.config.Listen, c.shown)
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.client) {
			t.Errorf("%s: %v", name, err)
		}
		a.logged(t, c.logged)
	}
	if len(a.host.drained) > 0 {
		t.Errorf("drained %v", a.host.drained)
	}
}

func TestJSONOverTLSByHTTP2AndHTTP1(t *testing.T) {
	a := serveRemote(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: a.authority.Client(looptest.Named("victor")), ForceAttemptHTTP2: true}}
	for range 2 {
		answer, err := client.Post("https://"+a.config.Listen+"/guideway.controller.v1.Controller/GetState", "application/json", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK || !strings.HasPrefix(string(body), `{"version":"test",`) {
			t.Errorf("%s %s %s", answer.Proto, answer.Status, body)
		}
		client = &http.Client{Transport: &http.Transport{TLSClientConfig: a.authority.Client(looptest.Named("victor"))}} // HTTP/1.1
	}
}

func TestFilesThatChangeComeIntoUse(t *testing.T) {
	a := serveRemote(t)
	shown := func() string {
		conn, err := tls.Dial("tcp", a.config.Listen, &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if name := shown(); name != "lb-1" {
		t.Fatalf("it shows %q", name)
	}
	old := a.client(t, a.authority.Client(looptest.Named("ada")))
	if _, err := old.GetState(t.Context(), &controllerv1.GetStateRequest{}); err != nil {
		t.Fatal(err)
	}
	// A certificate before its key: the former pair goes on.
	certificate, key := a.authority.Issue(looptest.Named("lb-1 renewed"))
	looptest.WriteFile(t, a.config.TLS.CertFile, certificate)
	a.logged(t, "private key does not match public key")
	if name := shown(); name != "lb-1" {
		t.Errorf("half renewed, it shows %q", name)
	}
	looptest.WriteFile(t, a.config.TLS.KeyFile, key)
	eventually(t, "the renewed certificate", func() bool { return shown() == "lb-1 renewed" })

	// Another authority: who has a connection by the former is refused, too.
	next := looptest.NewAuthority(t)
	looptest.WriteFile(t, a.config.TLS.CAFile, next.Certificate)
	eventually(t, "the former authority's certificate refused", func() bool {
		_, err := old.GetState(t.Context(), &controllerv1.GetStateRequest{})
		return status.Code(err) == codes.PermissionDenied && strings.Contains(err.Error(), "signed by unknown authority")
	})
	newer := next.Client(looptest.Named("ada"))
	newer.RootCAs = a.authority.Pool()
	if _, err := a.client(t, newer).GetState(t.Context(), &controllerv1.GetStateRequest{}); err != nil {
		t.Error(err)
	}
	expiry := a.Expiry()
	if days := time.Until(expiry["cert_file"]).Hours() / 24; days < 0.9 || days > 1 || expiry["ca_file"].IsZero() {
		t.Errorf("expiry %v", expiry)
	}
	if err := os.Remove(a.config.TLS.CAFile); err != nil {
		t.Fatal(err)
	}
	a.logged(t, "ca.crt: no such file or directory")
	if _, err := a.client(t, newer).GetState(t.Context(), &controllerv1.GetStateRequest{}); err != nil {
		t.Errorf("with a file gone: %v", err)
	}
}

func TestRolesAndAddressFollowTheConfig(t *testing.T) {
	a := serveRemote(t)
	shown := a.authority.Client(looptest.Named("victor"))
	client := a.client(t, shown)
	if _, err := client.Reload(t.Context(), &controllerv1.ReloadRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Fatal(err)
	}
	next := a.config
	next.Roles = config.Roles{Operate: []string{"victor"}}
	a.Set(&next)
	if _, err := client.Reload(t.Context(), &controllerv1.ReloadRequest{}); err != nil {
		t.Error(err)
	}
	moved := next
	moved.Listen = looptest.FreeAddress(t)
	a.Set(&moved)
	a.logged(t, "address="+moved.Listen)
	a.config = moved
	if _, err := a.client(t, shown).Reload(t.Context(), &controllerv1.ReloadRequest{}); err != nil {
		t.Error(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	busy := moved
	busy.Listen = taken.Addr().String()
	a.Set(&busy)
	a.logged(t, "address already in use")
	if _, err := a.client(t, shown).Reload(t.Context(), &controllerv1.ReloadRequest{}); err != nil {
		t.Errorf("the former address: %v", err)
	}
	taken.Close()
	a.config = busy
	a.logged(t, "address="+busy.Listen)
	a.Set(nil)
	// The certificate stays until the last connection has ended.
	eventually(t, "it is not served, and has no certificate", func() bool {
		conn, err := net.Dial("tcp", busy.Listen)
		if err == nil {
			conn.Close()
		}
		return err != nil && a.Expiry() == nil
	})
}

func TestSilentAndSlowClientsLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	a := serveRemote(t)
	shown := a.authority.Client(looptest.Named("ada"))
	for i := range 2 * connectionsMax {
		conn, err := net.Dial("tcp", a.config.Listen)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 {
			_, _ = conn.Write([]byte{22, 3, 1}) // the beginning of a handshake
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*headerTimeout)
	defer cancel()
	if _, err := a.client(t, shown).GetState(ctx, &controllerv1.GetStateRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
}
