package api

// Drains by command.

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/guideway/guideway/controller/brain"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// How long a drain may wait for traffic to move away.
const drainWaitMax = time.Hour

func (s *service) DrainBackend(ctx context.Context, r *controllerv1.DrainBackendRequest) (*controllerv1.DrainBackendResponse, error) {
	warnings, err := s.host.DrainBackend(ctx, r)
	if err != nil {
		return nil, failure(err)
	}
	return &controllerv1.DrainBackendResponse{Warnings: warnings}, nil
}

func (s *service) DrainService(ctx context.Context, r *controllerv1.DrainServiceRequest) (*controllerv1.DrainServiceResponse, error) {
	if err := checkWait(r.WaitMax); err != nil {
		return nil, err
	}
	warnings, err := s.host.DrainService(ctx, r)
	if err != nil {
		return nil, failure(err)
	}
	return &controllerv1.DrainServiceResponse{Warnings: warnings}, nil
}

func (s *service) DrainMachine(ctx context.Context, r *controllerv1.DrainMachineRequest) (*controllerv1.DrainMachineResponse, error) {
	if err := checkWait(r.WaitMax); err != nil {
		return nil, err
	}
	if err := s.host.DrainMachine(ctx, r); err != nil {
		return nil, failure(err)
	}
	return &controllerv1.DrainMachineResponse{}, nil
}

func checkWait(given *durationpb.Duration) error {
	if given == nil {
		return nil
	}
	if wait := given.AsDuration(); given.CheckValid() != nil || wait <= 0 || wait > drainWaitMax {
		return status.Errorf(codes.InvalidArgument, "wait_max is %v: give more than 0s, up to %v", wait, drainWaitMax)
	}
	return nil
}

func describeDrain(d *brain.DrainView) *controllerv1.Drain {
	if d == nil {
		return nil
	}
	described := &controllerv1.Drain{Since: Timestamp(d.Since), Until: Timestamp(d.Until), Waits: d.Waits, MovedAway: d.Moved, Withdrawn: d.Withdrawn}
	if d.Measured {
		described.PacketsPerSecond = &d.PacketsPerSecond
	}
	return described
}
