package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

// GRPC passes when the server's health service answers SERVING
// (https://github.com/grpc/grpc/blob/master/doc/health-checking.md).
type GRPC struct {
	Port uint16
	// Empty: the server as a whole.
	Service string
	// The server speaks TLS.
	Secured     bool
	Certificate Certificate
}

func readGRPC(given *configv1.GrpcCheck, reader Reader) GRPC {
	check := GRPC{Port: uint16(given.GetPort()), Service: given.GetService()}
	if given.Tls != nil {
		check.Secured, check.Certificate = true, readCertificate("grpc.tls", given.Tls, reader)
	}
	return check
}

// Probe connects by itself and hands the connection to the client: what is wrong
// with it is then known as such, not as text in a status.
func (c GRPC) Probe(ctx context.Context, dialer Dialer) (Answer, error) {
	conn, answer, err := c.connect(ctx, dialer)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	client, err := grpc.NewClient("passthrough:///"+dialer.hostPort(c.Port),
		grpc.WithContextDialer(once(conn)),
		grpc.WithTransportCredentials(handshaken{c.Secured}),
		grpc.WithAuthority(cmp.Or(c.Certificate.ServerName, dialer.hostPort(c.Port))),
		grpc.WithUserAgent("guideway-health-check"),
		grpc.WithMaxHeaderListSize(answerBytesMax), // a refusal's message is in them
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytesMax)),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
	)
	if err != nil {
		return Answer{}, err
	}
	defer client.Close()
	health, err := grpc_health_v1.NewHealthClient(client).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: c.Service})
	if err != nil {
		return Answer{}, c.callError(ctx, err)
	}
	if health.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return Answer{}, fmt.Errorf("%s is %s", c.subject(), health.Status)
	}
	if answer.Text != "" {
		answer.Text = ", " + answer.Text
	}
	answer.Text = "SERVING" + answer.Text
	return answer, nil
}

func (c GRPC) connect(ctx context.Context, dialer Dialer) (net.Conn, Answer, error) {
	if c.Secured {
		return c.Certificate.dial(ctx, dialer, c.Port, "h2")
	}
	conn, err := dialer.Dial(ctx, "tcp", c.Port)
	return conn, Answer{}, err
}

func (c GRPC) subject() string {
	if c.Service == "" {
		return "the server"
	}
	return fmt.Sprintf("service %q", c.Service)
}

func (c GRPC) callError(ctx context.Context, err error) error {
	answered := status.Convert(err)
	deadline, limited := ctx.Deadline()
	switch {
	// The connection's deadline is the context's; either may be noticed first.
	case limited && !time.Now().Before(deadline), ctx.Err() != nil, answered.Code() == codes.DeadlineExceeded:
		return context.DeadlineExceeded
	case answered.Code() == codes.Unimplemented:
		return errors.New("the server has no health service (grpc.health.v1.Health)")
	case answered.Code() == codes.NotFound:
		return fmt.Errorf("the server's health service does not know %s", c.subject())
	case answered.Code() == codes.Unavailable && strings.Contains(answered.Message(), "connection"):
		return fmt.Errorf("the server does not speak gRPC on this port, or speaks TLS and tls is not given (%s)", answered.Message())
	}
	return fmt.Errorf("%s: %s", answered.Code(), answered.Message())
}

// once gives out one connection; the client would make another one if it broke.
func once(conn net.Conn) func(context.Context, string) (net.Conn, error) {
	left := make(chan net.Conn, 1)
	left <- conn
	return func(context.Context, string) (net.Conn, error) {
		select {
		case conn := <-left:
			return conn, nil
		default:
			return nil, errors.New("the connection broke")
		}
	}
}

// handshaken says to the client that the connection is ready, and by which scheme.
type handshaken struct{ secured bool }

func (handshaken) ClientHandshake(_ context.Context, _ string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return conn, nil, nil
}

func (handshaken) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("not a server")
}

func (h handshaken) Info() credentials.ProtocolInfo {
	if h.secured {
		return credentials.ProtocolInfo{SecurityProtocol: "tls"}
	}
	return credentials.ProtocolInfo{SecurityProtocol: "insecure"}
}

func (h handshaken) Clone() credentials.TransportCredentials { return h }

func (handshaken) OverrideServerName(string) error { return nil }
