package fleet

// The connection to etcd: made when needed. After a failure it is made again, with the
// present contents of its files.

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/outside"
)

const (
	// One request. etcd itself gives up after 5 s without a leader.
	requestTimeout = 4 * time.Second
	// An endpoint that is silent for this long, and then does not answer a ping,
	// is left; etcd refuses clients that ping more often than every 5 s.
	pingAfter   = 10 * time.Second
	pingTimeout = 3 * time.Second
	// Between two attempts to connect to an endpoint that refuses: so an etcd that
	// comes back is found at once.
	connectDelayMax = 2 * time.Second
	// Finding out why no endpoint answers.
	diagnoseTimeout = time.Second
)

// Store is the cluster's part of etcd. Its methods may be called from any
// goroutine.
type Store struct {
	settings config.Etcd
	keys     keys

	mu        sync.Mutex
	connected *clientv3.Client // nil: not yet, or not any more
}

// NewStore connects to nothing yet.
func NewStore(settings config.Etcd) *Store {
	return &Store{settings: settings, keys: keysOf(settings.Cluster)}
}

// Close the connection. A later request makes a new one.
func (s *Store) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connected != nil {
		_ = s.connected.Close() // there is nothing left to do with it
		s.connected = nil
	}
}

// client connects if there is no connection. With a password that takes a
// request, else none.
func (s *Store) client() (*clientv3.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.connected != nil {
		return s.connected, nil
	}
	options := clientv3.Config{
		Endpoints: s.settings.Endpoints, DialTimeout: requestTimeout,
		DialKeepAliveTime: pingAfter, DialKeepAliveTimeout: pingTimeout, PermitWithoutStream: true,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: connectDelayMax / 10, Multiplier: 1.6, Jitter: 0.2, MaxDelay: connectDelayMax},
			MinConnectTimeout: requestTimeout,
		})},
		Logger: zap.NewNop(), // what fails is returned to us, too
	}
	var err error
	if options.TLS, err = tlsOf(s.settings); err != nil {
		return nil, err
	}
	if s.settings.User != "" {
		password, _, err := config.ReadFromDisk(s.settings.PasswordFile)
		if err != nil {
			return nil, fmt.Errorf("read etcd's password: %w", err)
		}
		options.Username, options.Password = s.settings.User, string(config.TrimSecret(password))
	}
	if s.connected, err = clientv3.New(options); err != nil {
		s.connected = nil
		return nil, s.explain(err)
	}
	return s.connected, nil
}

// tlsOf returns nil for plain http.
func tlsOf(settings config.Etcd) (*tls.Config, error) {
	if !strings.HasPrefix(settings.Endpoints[0], "https://") {
		return nil, nil
	}
	options := &tls.Config{MinVersion: tls.VersionTLS12}
	if settings.CAFile != "" {
		data, _, err := config.ReadFromDisk(settings.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the authorities of etcd's certificates: %w", err)
		}
		options.RootCAs = x509.NewCertPool()
		if !options.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("read the authorities of etcd's certificates: %s holds no certificate in PEM", settings.CAFile)
		}
	}
	if settings.CertFile != "" {
		// Read for each connection: certificates are renewed under way.
		options.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := config.LoadKeyPair(settings.CertFile, settings.KeyFile)
			return &pair, err
		}
	}
	return options, nil
}

// explain what etcd's client returned, with the cure.
func (s *Store) explain(err error) error {
	known, err := rpctypes.Error(err), outside.Error(err)
	switch {
	case err == nil:
		return nil
	case errors.Is(known, rpctypes.ErrNoSpace):
		return fmt.Errorf("etcd is full (alarm NOSPACE) and stores nothing: compact and defragment it, or raise its --quota-backend-bytes, then `etcdctl alarm disarm`: %w", err)
	case errors.Is(known, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("etcd denies %s the keys below %s: grant its role what docs/etcd.md lists: %w", s.userWords(), s.keys.prefix, err)
	case errors.Is(known, rpctypes.ErrAuthFailed):
		return fmt.Errorf("etcd refuses user %s with the password in %s: %w", s.settings.User, s.settings.PasswordFile, err)
	case errors.Is(known, rpctypes.ErrUserEmpty):
		return fmt.Errorf("etcd demands a user and no `etcd.user` or client certificate is given: %w", err)
	// Canceled: another request has failed meanwhile, and closed the connection.
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded, status.Code(err) == codes.Unavailable, status.Code(err) == codes.Canceled:
		return fmt.Errorf("etcd does not answer: %s: %w", s.diagnose(), err)
	}
	return fmt.Errorf("etcd: %w", err)
}

func (s *Store) userWords() string {
	if s.settings.User != "" {
		return "user " + s.settings.User
	}
	if s.settings.CertFile != "" {
		return "the certificate in " + s.settings.CertFile
	}
	return "clients without a user"
}

// diagnose each endpoint: etcd's client returns the timeout but not its cause.
func (s *Store) diagnose() string {
	options, err := tlsOf(s.settings)
	if err != nil {
		return err.Error()
	}
	found := make([]string, len(s.settings.Endpoints))
	var all sync.WaitGroup
	for i, endpoint := range s.settings.Endpoints {
		all.Go(func() {
			found[i] = endpoint + ": " + endpointState(endpoint, options)
		})
	}
	all.Wait()
	return strings.Join(found, "; ")
}

func endpointState(endpoint string, options *tls.Config) string {
	parsed, err := url.Parse(endpoint)
	if err != nil {
		return err.Error()
	}
	dialer := &net.Dialer{Timeout: diagnoseTimeout}
	var conn net.Conn
	if options == nil {
		conn, err = dialer.Dial("tcp", parsed.Host)
	} else {
		conn, err = tls.DialWithDialer(dialer, "tcp", parsed.Host, options.Clone())
	}
	if err != nil {
		return err.Error()
	}
	_ = conn.Close() // nothing was written
	return "accepts connections, but requests end without an answer: has etcd a leader?"
}
