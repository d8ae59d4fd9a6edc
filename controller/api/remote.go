package api

// The API over TCP. Its own goroutine checks the certificate files each second, so that new
// certificates come into use without a restart.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/guideway/guideway/controller/config"
)

// How often files are looked at, and an address that could not be had is tried.
const remoteInterval = time.Second

// Remote serves the API to those who have a certificate.
type Remote struct {
	settings Settings
	log      *slog.Logger
	// What the config says; nil: nothing is served.
	wanted  atomic.Pointer[config.API]
	changed chan struct{}
	// In use; nil: none yet.
	identity atomic.Pointer[identity]

	// Of Run's goroutine.
	server  *Server
	tasks   sync.WaitGroup // it runs there
	address string
	problem string // said last
}

// NewRemote serves nothing until Set and Run.
func NewRemote(settings Settings, log *slog.Logger) *Remote {
	return &Remote{settings: settings, log: log, changed: make(chan struct{}, 1)}
}

// Set what is to be served; nil: nothing. It does not wait.
func (r *Remote) Set(wanted *config.API) {
	r.wanted.Store(wanted)
	select {
	case r.changed <- struct{}{}:
	default: // Run will look anyway
	}
}

// Run until the context ends.
func (r *Remote) Run(ctx context.Context) {
	ticker := time.NewTicker(remoteInterval)
	defer ticker.Stop()
	defer r.stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-r.changed:
		}
		r.report(r.follow(r.wanted.Load()))
	}
}

// report a problem once.
func (r *Remote) report(err error) {
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != r.problem {
		state := "it is not served over TCP"
		if r.server != nil {
			state = "the former goes on"
		}
		r.log.Error("API: "+state, "error", problem)
	}
	r.problem = problem
}

// follow the config and the files.
func (r *Remote) follow(wanted *config.API) error {
	if wanted == nil {
		r.stop()
		r.identity.Store(nil)
		return nil
	}
	if err := r.readIdentity(wanted.TLS); err != nil {
		return err
	}
	if r.server != nil && r.address == wanted.Listen {
		return nil
	}
	listener, err := net.Listen("tcp", wanted.Listen)
	if err != nil {
		return fmt.Errorf("api.listen: %w: give another address", err)
	}
	r.stop()
	settings := r.settings
	settings.Admit, settings.Log = r.admit, nil
	r.server, r.address = NewServer(settings), wanted.Listen
	r.server.http.ErrorLog = log.New(&refusedHandshakes{log: r.log, budget: newBudget()}, "", 0)
	server := r.server
	r.tasks.Go(func() {
		if err := server.ServeTLS(listener, &tls.Config{MinVersion: tls.VersionTLS13, GetConfigForClient: r.tlsConfig}); err != nil {
			r.log.Error("API over TCP ended", "error", err)
		}
	})
	r.log.Info("serving the API over TCP", "address", listener.Addr())
	return nil
}

func (r *Remote) stop() {
	if r.server != nil {
		r.server.Stop()
		r.tasks.Wait()
		r.server, r.address = nil, ""
	}
}

// readIdentity anew if a file changed; the former stays if that fails.
func (r *Remote) readIdentity(files config.TLSFiles) error {
	stamps := stampsOf(files)
	former := r.identity.Load()
	if former != nil && former.files == files && slices.Equal(former.stamps, stamps) {
		return nil
	}
	read, err := readIdentity(files)
	if err != nil {
		return err
	}
	read.stamps = stamps
	r.identity.Store(read)
	r.log.Info("API: certificate read", "file", files.CertFile, "serial", read.certificate.Leaf.SerialNumber.Text(16), "expires", read.certificate.Leaf.NotAfter)
	return nil
}

// identity is what a server shows, and by what it knows its clients.
type identity struct {
	files       config.TLSFiles
	stamps      []string
	certificate tls.Certificate
	authorities *x509.CertPool
	// Of the certificate and of the first of the authorities'.
	expiry map[string]time.Time
}

func readIdentity(files config.TLSFiles) (*identity, error) {
	read := &identity{files: files, authorities: x509.NewCertPool()}
	var err error
	if read.certificate, err = config.LoadKeyPair(files.CertFile, files.KeyFile); err != nil {
		return nil, fmt.Errorf("api.tls: cert_file %s, key_file %s: %w", files.CertFile, files.KeyFile, err)
	}
	data, _, err := config.ReadFromDisk(files.CAFile)
	if err != nil {
		return nil, fmt.Errorf("api.tls.ca_file: %w", err)
	}
	authorities, err := certificatesOf(data)
	if err != nil {
		return nil, fmt.Errorf("api.tls.ca_file: %s: %w", files.CAFile, err)
	}
	read.expiry = map[string]time.Time{"cert_file": read.certificate.Leaf.NotAfter}
	for _, authority := range authorities {
		read.authorities.AddCert(authority)
		if first, known := read.expiry["ca_file"]; !known || authority.NotAfter.Before(first) {
			read.expiry["ca_file"] = authority.NotAfter
		}
	}
	return read, nil
}

func certificatesOf(data []byte) (certificates []*x509.Certificate, err error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certificates = append(certificates, certificate)
	}
	if len(certificates) == 0 {
		return nil, errors.New("holds no certificate: give those of authorities as PEM, blocks of BEGIN CERTIFICATE")
	}
	return certificates, nil
}

// stampsOf files change with them.
func stampsOf(files config.TLSFiles) (stamps []string) {
	for _, path := range []string{files.CertFile, files.KeyFile, files.CAFile} {
		info, err := os.Stat(path)
		if err != nil {
			stamps = append(stamps, err.Error())
			continue
		}
		var inode uint64
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			inode = stat.Ino
		}
		stamps = append(stamps, fmt.Sprint(inode, info.Size(), info.ModTime().UnixNano()))
	}
	return stamps
}

// Expiry of what is in use: when each ends to be good. Empty: nothing is.
func (r *Remote) Expiry() map[string]time.Time {
	current := r.identity.Load()
	if current == nil {
		return nil
	}
	return current.expiry
}

func (r *Remote) tlsConfig(*tls.ClientHelloInfo) (*tls.Config, error) {
	current := r.identity.Load()
	if current == nil {
		return nil, errors.New("the API is no longer served")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{current.certificate},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: current.authorities,
		SessionTicketsDisabled: true, // who comes again is verified again
	}, nil
}

// admit by what holds now: a connection may be older than the files.
func (r *Remote) admit(request *http.Request, conn *clientConn) Caller {
	wanted, current := r.wanted.Load(), r.identity.Load()
	if wanted == nil || current == nil {
		return Caller{From: request.RemoteAddr}
	}
	caller := Certificates(roleIn(wanted.Roles))(request, conn)
	if err := verify(request.TLS, current.authorities); err != nil {
		caller.Role, caller.invalid = NoRole, err
	}
	return caller
}

func verify(state *tls.ConnectionState, authorities *x509.CertPool) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("there is none")
	}
	between := x509.NewCertPool()
	for _, certificate := range state.PeerCertificates[1:] {
		between.AddCert(certificate)
	}
	_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: authorities, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

func roleIn(roles config.Roles) func(string) Role {
	return func(name string) Role {
		switch {
		case slices.Contains(roles.Admin, name):
			return Admin
		case slices.Contains(roles.Operate, name):
			return Operate
		case slices.Contains(roles.View, name):
			return View
		}
		return NoRole
	}
}

// refusedHandshakes gets what net/http writes about them, a line each.
type refusedHandshakes struct {
	log *slog.Logger

	mu     sync.Mutex
	budget budget
}

func (w *refusedHandshakes) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := strings.TrimSpace(string(line))
	// A connection without a byte is a port that was tried.
	if silent := strings.HasSuffix(text, io.EOF.Error()); !silent && w.budget.take(time.Now()) {
		w.log.Warn("API over TCP: "+strings.TrimPrefix(text, "http: "), "not_logged", w.budget.unwritten())
	}
	return len(line), nil
}
