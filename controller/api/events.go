package api

// Serves recorded events, and new ones as they happen.

import (
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/events"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func (s *service) WatchEvents(r *controllerv1.WatchEventsRequest, stream grpc.ServerStreamingServer[controllerv1.WatchEventsResponse]) error {
	ctx := stream.Context()
	filter := events.Filter{After: r.After, Follow: r.Follow}
	if err := filterTimes(&filter, r); err != nil {
		return err
	}
	ofService := func(events.Object) bool { return true }
	if r.Service != "" {
		var err error
		if ofService, err = s.host.ObjectsOf(ctx, r.Service); err != nil {
			return failure(err)
		}
	}
	filter.Objects = func(o events.Object) bool { return (r.Object == "" || o.Is(r.Object)) && ofService(o) }
	done, err := s.limiter.watch(callerOf(ctx).Name)
	if err != nil {
		return err
	}
	defer done()
	return s.host.Events().Watch(ctx, filter, func(record *events.Record, lost uint64) error {
		response := &controllerv1.WatchEventsResponse{Lost: lost}
		if record != nil {
			response.Event = DescribeEvent(record)
		}
		// Not more than is sent: what is left of it would end the connection.
		if err := s.limiter.owe(ctx, proto.Size(response)); err != nil {
			return err
		}
		return stream.Send(response)
	})
}

func filterTimes(filter *events.Filter, r *controllerv1.WatchEventsRequest) error {
	if err := errors.Join(checkTime(r.Since), checkTime(r.Until)); err != nil {
		return status.Errorf(codes.InvalidArgument, "since, until: %v", err)
	}
	if r.Since != nil {
		filter.Since = r.Since.AsTime()
	}
	if r.Until == nil {
		return nil
	}
	filter.Until = r.Until.AsTime()
	switch {
	case r.Follow:
		return status.Error(codes.InvalidArgument, "until, follow: give one of the two")
	case filter.Until.Before(filter.Since):
		return status.Errorf(codes.InvalidArgument, "until (%v) is before since (%v)", filter.Until, filter.Since)
	}
	return nil
}

func checkTime(t *timestamppb.Timestamp) error {
	if t == nil {
		return nil
	}
	return t.CheckValid()
}

// DescribeEvent as the API has it.
func DescribeEvent(r *events.Record) *controllerv1.Event {
	return &controllerv1.Event{
		Number: r.Number, Id: r.ID, Time: timestamppb.New(r.Time), Machine: r.Machine, Kind: r.Object.Kind, Name: r.Object.Name,
		From: r.From, To: r.To, Cause: r.Cause, Who: r.Who, Count: r.Count, Last: timestamppb.New(r.Last),
	}
}

// EventOf what the API has.
func EventOf(e *controllerv1.Event) events.Record {
	return events.Record{
		Number: e.GetNumber(), ID: e.GetId(), Count: e.GetCount(), Last: e.GetLast().AsTime(),
		Event: events.Event{
			Time: e.GetTime().AsTime(), Machine: e.GetMachine(), Object: events.Object{Kind: e.GetKind(), Name: e.GetName()},
			From: e.GetFrom(), To: e.GetTo(), Cause: e.GetCause(), Who: e.GetWho(),
		},
	}
}
