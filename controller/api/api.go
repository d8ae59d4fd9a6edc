// Package api serves the controller's API to people and programs: on two unix sockets, one
// for reading and one for changes, and over TCP to clients with a certificate.
//
//	listener ─► limits ─► who calls (caller.go) ─► what that needs (roles.go) ─► service ─► audit log
//
// It translates between the API's messages (proto/guideway/controller) and the controller.
// It makes no decisions and stores nothing.
package api

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// Host is the controller as this package needs it.
type Host interface {
	StateOf(context.Context, *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error)
	// BackendOf returns ErrUnknownBackend if no service here has it.
	BackendOf(ctx context.Context, name string) (*controllerv1.GetBackendResponse, error)
	// Reload returns the config's warnings, or why it is refused; acceptOlder takes
	// a lower generation from etcd, too.
	Reload(ctx context.Context, user string, acceptOlder bool) ([]string, error)
	// DrainBackend returns where it stays drained nevertheless; ErrUnknownBackend if no
	// service here has it, an Unmet if it is the last one.
	DrainBackend(context.Context, *controllerv1.DrainBackendRequest) (warnings []string, err error)
	// DrainService returns which routes stay; ErrUnknownService if it is not this
	// machine's, an Unmet if no other machine is known to take over.
	DrainService(context.Context, *controllerv1.DrainServiceRequest) (warnings []string, err error)
	// DrainMachine returns an Unmet as DrainService does.
	DrainMachine(context.Context, *controllerv1.DrainMachineRequest) error
	// PlanConfig returns an Unmet if there is nothing to compare with.
	PlanConfig(ctx context.Context, files []config.Source) (*controllerv1.PlanConfigResponse, error)
	// ApplyConfig returns an Unmet if something else runs than the order names;
	// what it returns is closed by the caller.
	ApplyConfig(ctx context.Context, user string, order *controllerv1.ApplyOrder, files []config.Source) (Applying, error)
	ConfigHistory(context.Context) (*controllerv1.GetConfigHistoryResponse, error)
	// Fleet returns an Unmet where the config is in files alone.
	Fleet(context.Context) (*controllerv1.GetFleetResponse, error)
	// EndCanary returns an Unmet where no machine runs a config alone.
	EndCanary(ctx context.Context, user string, request *controllerv1.EndCanaryRequest) (*controllerv1.ApplyConfigResponse, error)
	// Restart returns an Unmet where the forwarder cannot be taken over.
	Restart(context.Context) (*controllerv1.RestartResponse, error)
	// Events of this machine.
	Events() *events.Log
	// Rates of this machine.
	Rates() *rates.Rates
	// ObjectsOf a service says which events are about it; ErrUnknownService if it is not this
	// machine's.
	ObjectsOf(ctx context.Context, service string) (func(events.Object) bool, error)
	// Forwarder is whom requests about packets are handed on to.
	Forwarder() forwarderv1.ForwarderClient
	// ConfigNumber of the config in use, in the history; 0: none, or not recorded.
	ConfigNumber() uint64
	// RecordedConfig returns ErrUnknownConfig if the history does not have it.
	RecordedConfig(ctx context.Context, number uint64) (*controllerv1.GetConfigResponse, error)
}

// ErrUnknownBackend: no service of this machine has that backend.
var ErrUnknownBackend = errors.New("no service of this machine has this backend")

// ErrUnknownService: this machine has no such service.
var ErrUnknownService = errors.New("this machine has no such service")

// A state of 10,000 services with 65,000 backends is some 15 MiB.
const messageBytesMax = 256 << 20

type service struct {
	host    Host
	limiter *limiter
}

func (s *service) GetState(ctx context.Context, r *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error) {
	counts, counted := s.askCounts(ctx, r.WithCounters, true)
	defer counted()
	done, err := s.limiter.queue(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	state, err := s.host.StateOf(ctx, r)
	if err != nil {
		return nil, err
	}
	state.NotCounted = counts.missing
	counts.AddTo(state.Services, state.Backends)
	return state, nil
}

func (s *service) GetBackend(ctx context.Context, r *controllerv1.GetBackendRequest) (*controllerv1.GetBackendResponse, error) {
	counts, counted := s.askCounts(ctx, r.WithCounters, false)
	defer counted()
	done, err := s.limiter.queue(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	response, err := s.host.BackendOf(ctx, r.Name)
	if err != nil {
		return nil, failure(err)
	}
	response.NotCounted = counts.missing
	counts.AddTo(nil, response.Backends)
	return response, nil
}

func (s *service) GetFleet(ctx context.Context, _ *controllerv1.GetFleetRequest) (*controllerv1.GetFleetResponse, error) {
	done, err := s.limiter.queue(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	response, err := s.host.Fleet(ctx)
	if err != nil {
		return nil, failure(err)
	}
	return response, nil
}

func (s *service) Restart(ctx context.Context, _ *controllerv1.RestartRequest) (*controllerv1.RestartResponse, error) {
	response, err := s.host.Restart(ctx)
	if err != nil {
		return nil, failure(err)
	}
	return response, nil
}

func (s *service) Reload(ctx context.Context, r *controllerv1.ReloadRequest) (*controllerv1.ReloadResponse, error) {
	warnings, err := s.host.Reload(ctx, callerOf(ctx).Name, r.AcceptOlder)
	if err != nil {
		return nil, configFailure(err)
	}
	return &controllerv1.ReloadResponse{Warnings: warnings}, nil
}

func failure(err error) error {
	switch {
	case errors.Is(err, ErrUnknownBackend), errors.Is(err, ErrUnknownService):
		return status.Error(codes.NotFound, err.Error())
	case errors.As(err, &Unmet{}):
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	return status.Error(codes.Internal, err.Error())
}
