package api

// Passes on the forwarder's answers.

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func (s *service) GetCounters(ctx context.Context, r *forwarderv1.GetCountersRequest) (*forwarderv1.GetCountersResponse, error) {
	return handOn(ctx, s, r, s.host.Forwarder().GetCounters)
}

func (s *service) GetConnections(ctx context.Context, r *forwarderv1.GetConnectionsRequest) (*forwarderv1.GetConnectionsResponse, error) {
	return handOn(ctx, s, r, s.host.Forwarder().GetConnections)
}

func (s *service) GetDropSamples(ctx context.Context, r *forwarderv1.GetDropSamplesRequest) (*forwarderv1.GetDropSamplesResponse, error) {
	return handOn(ctx, s, r, s.host.Forwarder().GetDropSamples)
}

func handOn[Q, R any](ctx context.Context, s *service, request *Q, call func(context.Context, *Q, ...grpc.CallOption) (*R, error)) (*R, error) {
	done, err := s.limiter.queueForwarder(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	response, err := call(ctx, request)
	if err != nil {
		return nil, forwarderError(err)
	}
	return response, nil
}

func forwarderError(err error) error {
	return status.Errorf(status.Code(err), "the forwarder: %s", status.Convert(err).Message())
}
