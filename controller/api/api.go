// Package api answers the CLI on the controller's unix sockets: one for looking,
// one for what changes something.
//
// It translates between the contract (proto/guideway/controller) and the
// controller; it decides nothing and keeps nothing.
package api

import (
	"context"
	"errors"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Host is the controller as this package needs it.
type Host interface {
	StateOf(context.Context, *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error)
	// Reload returns the config's warnings, or why it is refused.
	Reload(context.Context) ([]string, error)
	// DrainBackend returns ErrUnknownBackend if no service here has it.
	DrainBackend(ctx context.Context, backend string, drain bool) error
	DrainMachine(ctx context.Context, drain bool) error
}

// ErrUnknownBackend: no service of this machine has that backend.
var ErrUnknownBackend = errors.New("no service of this machine has this backend")

// A state of 10,000 services with 65,000 backends is some 15 MiB.
const messageBytesMax = 256 << 20

// GRPC is a server whose clients are limited in what they can cost.
type GRPC struct {
	*grpc.Server
	limiter *limiter
}

// Server makes a gRPC server that is not yet serving. Its clients may look; if
// they operate, they may change something, too.
func Server(host Host, operate bool) GRPC {
	limiter := newLimiter()
	server := grpc.NewServer(append(limiter.options(), grpc.MaxSendMsgSize(messageBytesMax))...)
	controllerv1.RegisterControllerServer(server, &service{host: host, limiter: limiter, operate: operate})
	return GRPC{server, limiter}
}

// Serve until Stop.
func (s GRPC) Serve(listener net.Listener) error { return s.Server.Serve(s.limiter.listen(listener)) }

type service struct {
	controllerv1.UnimplementedControllerServer
	host    Host
	limiter *limiter
	operate bool
}

// What viewers get when they want a change.
var errViewOnly = status.Error(codes.PermissionDenied, "this socket is for looking only: changes go to controller.sock, which takes group "+OperateGroup)

func (s *service) GetState(ctx context.Context, r *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error) {
	done, err := s.limiter.queue(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.host.StateOf(ctx, r)
}

func (s *service) Reload(ctx context.Context, _ *controllerv1.ReloadRequest) (*controllerv1.ReloadResponse, error) {
	if !s.operate {
		return nil, errViewOnly
	}
	warnings, err := s.host.Reload(ctx)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return &controllerv1.ReloadResponse{Warnings: warnings}, nil
}

func (s *service) DrainBackend(ctx context.Context, r *controllerv1.DrainBackendRequest) (*controllerv1.DrainBackendResponse, error) {
	if !s.operate {
		return nil, errViewOnly
	}
	if err := s.host.DrainBackend(ctx, r.Backend, r.Drain); err != nil {
		return nil, failure(err)
	}
	return &controllerv1.DrainBackendResponse{}, nil
}

func (s *service) DrainMachine(ctx context.Context, r *controllerv1.DrainMachineRequest) (*controllerv1.DrainMachineResponse, error) {
	if !s.operate {
		return nil, errViewOnly
	}
	if err := s.host.DrainMachine(ctx, r.Drain); err != nil {
		return nil, failure(err)
	}
	return &controllerv1.DrainMachineResponse{}, nil
}

func failure(err error) error {
	if errors.Is(err, ErrUnknownBackend) {
		return status.Error(codes.NotFound, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}
