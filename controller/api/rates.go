package api

// Rates: what happens per second.

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func (s *service) WatchRates(r *controllerv1.WatchRatesRequest, stream grpc.ServerStreamingServer[controllerv1.Rates]) error {
	order, known := rates.Orders[r.Sort]
	switch {
	case !known:
		return status.Errorf(codes.InvalidArgument, "sort: %q: give packets, bytes or new_connections", r.Sort)
	case r.Limit > rates.RowsMax:
		return status.Errorf(codes.InvalidArgument, "limit: %d: give at most %d", r.Limit, rates.RowsMax)
	case r.Limit == 0:
		r.Limit = rates.RowsUsual
	}
	ctx := stream.Context()
	done, err := s.limiter.watch(callerOf(ctx).Name)
	if err != nil {
		return err
	}
	defer done()
	return s.host.Rates().Watch(ctx, func(all *controllerv1.Rates) error {
		chosen := rates.Choose(all, order, r.Filter, int(r.Limit))
		if err := s.limiter.owe(ctx, proto.Size(chosen)); err != nil {
			return err
		}
		return stream.Send(chosen)
	})
}
