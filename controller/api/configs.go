package api

// Configs that clients send: in parts, because a request is small and a config
// may have megabytes; one at a time, because parsing one takes memory.

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// PartBytesMax of a config go into one request.
const PartBytesMax = 32 << 10

// Unmet is an error of a request that presupposes what is not so.
type Unmet struct{ error }

// Unmetf makes one.
func Unmetf(format string, values ...any) error { return Unmet{fmt.Errorf(format, values...)} }

// Unwrap the error.
func (u Unmet) Unwrap() error { return u.error }

// upload gathers parts into files.
type upload struct {
	files []config.Source
	bytes int
}

func (u *upload) add(part *controllerv1.ConfigPart) error {
	if part == nil {
		return nil
	}
	// Each file counts, too, so that empty ones are bounded.
	u.bytes += len(part.Data)
	last := len(u.files) - 1
	if last < 0 || u.files[last].Name != part.Name {
		u.files = append(u.files, config.Source{Name: part.Name})
		u.bytes += len(part.Name)
		last++
	}
	if u.bytes > config.FilesBytesMax {
		return status.Errorf(codes.InvalidArgument, "the config has more than %d MiB, the limit: is it the right file?", config.FilesBytesMax>>20)
	}
	u.files[last].Data = append(u.files[last].Data, part.Data...)
	return nil
}

func (s *service) PlanConfig(stream grpc.ClientStreamingServer[controllerv1.PlanConfigRequest, controllerv1.PlanConfigResponse]) error {
	done, err := s.limiter.queueUpload(stream.Context())
	if err != nil {
		return err
	}
	defer done()
	var u upload
	err = receiveAll(stream, func(r *controllerv1.PlanConfigRequest) error { return u.add(r.Part) })
	if err != nil {
		return err
	}
	response, err := s.host.PlanConfig(stream.Context(), u.files)
	if err != nil {
		return configFailure(err)
	}
	if err := s.limiter.owe(stream.Context(), proto.Size(response)*jsonInflation); err != nil {
		return err
	}
	return stream.SendAndClose(response)
}

// configFailure: what is wrong with a config is the client's.
func configFailure(err error) error {
	switch {
	case errors.As(err, &Unmet{}):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.InvalidArgument, err.Error())
}
