package check

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/outside"
	"github.com/guideway/guideway/looptest"
	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// serveGRPC returns the port of a server with these services.
func serveGRPC(t *testing.T, register func(*grpc.Server), options ...grpc.ServerOption) uint16 {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	register(server)
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return uint16(listener.Addr().(*net.TCPAddr).Port)
}

func withHealth(server *grpc.Server) {
	answers := health.NewServer()
	answers.SetServingStatus("web.Shop", grpc_health_v1.HealthCheckResponse_SERVING)
	answers.SetServingStatus("web.Old", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(server, answers)
}

func TestGRPCHealth(t *testing.T) {
	ca := looptest.NewAuthority(t)
	certificate := issue(ca, time.Now(), 49*time.Hour, "shop.example")
	plain := serveGRPC(t, withHealth)
	secured := serveGRPC(t, withHealth, grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	bare := serveGRPC(t, func(*grpc.Server) {})
	http1 := listenHTTP(t, func(http.ResponseWriter, *http.Request) {})
	good := Certificate{ServerName: "shop.example", Authorities: trusting(t, ca), ExpiryDays: 14}
	for _, c := range []struct {
		name  string
		check GRPC
		text  string
		ok    bool
	}{
		{"the server as a whole", GRPC{Port: plain}, "SERVING", true},
		{"a service", GRPC{Port: plain, Service: "web.Shop"}, "SERVING", true},
		{"one that does not serve", GRPC{Port: plain, Service: "web.Old"}, `service "web.Old" is NOT_SERVING`, false},
		{"one that is not known", GRPC{Port: plain, Service: "web.None"}, `the server's health service does not know service "web.None"`, false},
		{"a server without health", GRPC{Port: bare}, "the server has no health service (grpc.health.v1.Health)", false},
		{"TLS", GRPC{Port: secured, Secured: true, Certificate: good}, "SERVING, TLS 1.3, certificate expires in 2 days", true},
		{"TLS, a service", GRPC{Port: secured, Service: "web.Old", Secured: true, Certificate: good}, `service "web.Old" is NOT_SERVING`, false},
		{"TLS with another name", GRPC{Port: secured, Secured: true, Certificate: Certificate{ServerName: "b.example", Authorities: good.Authorities}},
			"the certificate is for shop.example, not for b.example", false},
		{"TLS to a server without", GRPC{Port: plain, Secured: true, Certificate: good}, "the server does not speak TLS on this port", false},
		{"no TLS to a server with it", GRPC{Port: secured}, "the server does not speak gRPC on this port, or speaks TLS", false},
		{"HTTP/1.1", GRPC{Port: http1}, "the server does not speak gRPC on this port, or speaks TLS", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			answer, err := c.check.Probe(ctx, loopback)
			text := answer.Text
			if err != nil {
				text = err.Error()
			}
			if (err == nil) != c.ok || !strings.HasPrefix(text, c.text) {
				t.Errorf("got %q, wanted %q", text, c.text)
			}
			if wantsWarning := c.ok && c.check.Secured; (answer.Warning != "") != wantsWarning {
				t.Errorf("warns %q", answer.Warning)
			}
		})
	}
}

func TestAGRPCServerThatStaysSilentFailsAtTheDeadline(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = GRPC{Port: uint16(listener.Addr().(*net.TCPAddr).Port)}.Probe(ctx, loopback)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestGRPCSendsTheServerNameAsAuthority(t *testing.T) {
	ca := looptest.NewAuthority(t)
	certificate := issue(ca, time.Now(), time.Hour, "shop.example")
	authority := make(chan string, 1)
	// The lowest floor of an HTTP/2 server shows scheme and authority.
	server := &http.Server{TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}}, ErrorLog: discarded,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { authority <- r.Host })}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.ServeTLS(listener, "", "")
	t.Cleanup(func() { server.Close() })
	file, name := "ca.pem", "shop.example"
	given := &configv1.GrpcCheck{Port: uint32(listener.Addr().(*net.TCPAddr).Port), Tls: &configv1.Tls{CaFile: &file, ServerName: &name}}
	check := readGRPC(given, reader{t: t, files: map[string][]byte{"ca.pem": ca.Certificate}})
	if _, err := check.Probe(t.Context(), loopback); err == nil {
		t.Error("a server without gRPC passes")
	}
	if got := <-authority; got != "shop.example" {
		t.Errorf("authority %q", got)
	}
}

// hostile answers each health check with this status.
type hostile struct {
	grpc_health_v1.UnimplementedHealthServer
	err error
}

func (h hostile) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	return nil, h.err
}

func TestWhatAServerSaysIsOneShortLine(t *testing.T) {
	for message, want := range map[string]string{
		"\x1b[2J\x1b]0;owned\a\nok: all is well": `Internal: \x1b[2J\x1b]0;owned\a\nok: all is well`,
		strings.Repeat("a", 32<<10):              " ... (cut)",
		strings.Repeat("a", 15<<20):              "",
	} {
		port := serveGRPC(t, func(s *grpc.Server) {
			grpc_health_v1.RegisterHealthServer(s, hostile{err: status.Error(codes.Internal, message)})
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		_, err := GRPC{Port: port}.Probe(ctx, loopback)
		cancel()
		if err == nil {
			t.Fatal("the probe passed")
		}
		if reason := Reason(err, time.Second); len(reason) > outside.TextBytesMax || strings.ContainsAny(reason, "\x1b\n\a") || !strings.HasSuffix(reason, want) {
			t.Errorf("%d bytes, %.60q: %d bytes, %q", len(message), message, len(reason), reason)
		}
	}
}

func TestNamesInACertificateAreText(t *testing.T) {
	ca := looptest.NewAuthority(t)
	template := looptest.Named("\x1b[31mred\n")
	certificate := ca.IssueTLS(template)
	port := serveTLS(t, &tls.Config{Certificates: []tls.Certificate{certificate}})
	answer, err := TLS{Port: port, Certificate: Certificate{Unverified: true, ExpiryDays: 20000}}.Probe(t.Context(), loopback)
	if err != nil || strings.ContainsAny(answer.Warning, "\x1b\n") || !strings.Contains(answer.Warning, `\x1b[31mred\n`) {
		t.Errorf("%q %v", answer.Warning, err)
	}
	_, err = TLS{Port: port, Certificate: Certificate{Authorities: trusting(t, looptest.NewAuthority(t))}}.Probe(t.Context(), loopback)
	if err == nil || strings.ContainsAny(Reason(err, time.Second), "\x1b\n") {
		t.Errorf("%q", err)
	}
}
