package machine

// Connects to another machine's controller over TCP, with certificates on both sides.

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/guideway/guideway/controller/outside"
	"github.com/guideway/guideway/controller/sinks/forwarder"
)

// remote says where and as whom.
type remote struct {
	Server, certFile, keyFile, caFile string
}

// AddController adds the flags that say which controller.
func AddController(command *cobra.Command, m *Machine) {
	addRunDir(command, m)
	flags := command.Flags()
	command.PreRunE = func(command *cobra.Command, _ []string) error {
		switch {
		case command.Flags().Changed("server") && command.Flags().Changed("run-dir"):
			return errors.New("--run-dir and --server: give one of the two, this machine's controller or another's")
		case !command.Flags().Changed("server") && !command.Flags().Changed("run-dir"):
			m.Remote.Server = os.Getenv("GUIDEWAY_SERVER")
		}
		return nil
	}
	flags.Var(serverValue{m}, "server", "`ADDRESS:PORT` of another machine's controller (its api.listen) [default: $GUIDEWAY_SERVER]")
	for _, file := range []struct {
		path        *string
		name, usage string
	}{
		{&m.Remote.certFile, "cert-file", "`FILE` with the certificate to show to --server, PEM [default: $GUIDEWAY_CERT_FILE]"},
		{&m.Remote.keyFile, "key-file", "`FILE` with its key, PEM [default: $GUIDEWAY_KEY_FILE]"},
		{&m.Remote.caFile, "ca-file", "`FILE` with the authority of --server's certificate, PEM [default: $GUIDEWAY_CA_FILE]"},
	} {
		flags.StringVar(file.path, file.name, "", file.usage)
		if given := os.Getenv("GUIDEWAY_" + strings.ToUpper(strings.ReplaceAll(file.name, "-", "_"))); given != "" {
			*file.path = given
		}
	}
}

// serverValue is refused without a port.
type serverValue struct{ m *Machine }

func (v serverValue) Type() string   { return "ADDRESS:PORT" }
func (v serverValue) String() string { return "" }
func (v serverValue) Set(text string) error {
	if host, port, err := net.SplitHostPort(text); err != nil || host == "" || port == "" {
		return errors.New("give address and port, like 10.0.0.1:9471 or [2001:db8::1]:9471")
	}
	v.m.Remote.Server = text
	return nil
}

// How long a connection, and then the handshake, may take.
const handshakeTimeout = 5 * time.Second

// A connection with a request under way that is silent for this long is tried: a stream from
// a machine that is gone would never end.
const silentMax = 10 * time.Second

func (r remote) dial(ctx context.Context) (*grpc.ClientConn, string, error) {
	config, err := r.tls()
	if err != nil {
		return nil, "", err
	}
	if err := r.handshake(ctx, config); err != nil {
		return nil, "", fmt.Errorf("the controller at %s %w", r.Server, err)
	}
	conn, err := grpc.NewClient("passthrough:///"+r.Server, append(cleaned, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: silentMax, Timeout: handshakeTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(forwarder.MessageBytesMax)))...)
	return conn, r.Server, err
}

// tls shows the certificate that the flags name.
func (r remote) tls() (*tls.Config, error) {
	for flag, file := range map[string]string{"--cert-file": r.certFile, "--key-file": r.keyFile, "--ca-file": r.caFile} {
		if file == "" {
			return nil, fmt.Errorf("--server needs %s: give a certificate, its key, and the authority that signed the server's", flag)
		}
	}
	certificate, err := tls.LoadX509KeyPair(r.certFile, r.keyFile)
	if err != nil {
		return nil, fmt.Errorf("--cert-file %s, --key-file %s: %w", r.certFile, r.keyFile, err)
	}
	if expiry := certificate.Leaf.NotAfter; time.Now().After(expiry) {
		return nil, fmt.Errorf("--cert-file %s expired at %s: renew it", r.certFile, expiry.Local().Format(time.DateTime))
	}
	data, err := os.ReadFile(r.caFile)
	if err != nil {
		return nil, fmt.Errorf("--ca-file: %w", err)
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("--ca-file %s holds no certificate: give those of authorities as PEM", r.caFile)
	}
	return &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{certificate}, RootCAs: authorities, NextProtos: []string{"h2"}}, nil
}

// handshake first: gRPC's own errors say less, and a server that refuses a
// certificate says why to a client that reads before it writes.
func (r remote) handshake(ctx context.Context, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", r.Server)
	if err == nil {
		defer conn.Close()
		if err = conn.SetDeadline(time.Now().Add(handshakeTimeout)); err == nil {
			_, err = conn.Read(make([]byte, 1)) // HTTP/2 begins with the server's settings
		}
	}
	return r.explain(err)
}

func (r remote) explain(err error) error {
	if err == nil {
		return nil
	}
	err = outside.Error(err)
	if verification := (*tls.CertificateVerificationError)(nil); errors.As(err, &verification) {
		return fmt.Errorf("shows a certificate that is not good: %w: --ca-file %s must have the authority that signed it, and it must be for the address after --server", outside.Error(verification.Err), r.caFile)
	}
	_, alert, refuses := strings.Cut(err.Error(), "remote error: tls: ")
	if refuses {
		return fmt.Errorf("refuses the certificate %s: %s: its log says more", r.certFile, alert)
	}
	if inner := (*net.OpError)(nil); errors.As(err, &inner) {
		err = cmp.Or(inner.Err, err)
	}
	return fmt.Errorf("does not answer (%w): does it run, with `api: {listen: …}` in its config, and may this machine connect there?", err)
}

func addRunDir(command *cobra.Command, m *Machine) {
	command.Flags().StringVar(&m.RunDir, "run-dir", RunDirDefault, "directory of the sockets")
}
