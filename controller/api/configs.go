package api

// Handles configs sent by clients one at a time, because reading and parsing one takes
// memory.

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// uploadBytesMax of a request that brings a config: as JSON its files are in base64.
const uploadBytesMax = config.FilesBytesMax/3*4 + requestBytesMax

// Unmet is an error of a request that presupposes what is not so.
type Unmet struct{ error }

// Unmetf makes one.
func Unmetf(format string, values ...any) error { return Unmet{fmt.Errorf(format, values...)} }

// Unwrap the error.
func (u Unmet) Unwrap() error { return u.error }

// sourcesOf what a client sent.
func sourcesOf(files []*controllerv1.ConfigFile) ([]config.Source, error) {
	sources, bytes := make([]config.Source, len(files)), 0
	for i, file := range files {
		sources[i] = config.Source{Name: file.GetName(), Data: file.GetData()}
		bytes += len(file.GetName()) + len(file.GetData())
	}
	switch {
	case len(files) == 0:
		return nil, status.Error(codes.InvalidArgument, "the request has no files: a config is one at least")
	case bytes > config.FilesBytesMax:
		return nil, status.Errorf(codes.InvalidArgument, "the config has more than %d MiB, the limit: is it the right file?", config.FilesBytesMax>>20)
	}
	return sources, nil
}

func (s *service) PlanConfig(ctx context.Context, r *controllerv1.PlanConfigRequest) (*controllerv1.PlanConfigResponse, error) {
	sources, err := sourcesOf(r.GetFiles())
	if err != nil {
		return nil, err
	}
	response, err := s.host.PlanConfig(ctx, sources)
	if err != nil {
		return nil, configFailure(err)
	}
	return response, nil
}

// IsChanged: entries of the service's table change, or connections of it do not stay.
func IsChanged(s *controllerv1.ServiceChange) bool {
	return s.TableEntriesChanged > 0 || IsAffected(s.Established) || IsAffected(s.OpeningOrClosing)
}

// IsAffected: some of the connections do not stay, or may not.
func IsAffected(c *controllerv1.ConnectionChange) bool {
	return c.GetMoving()+c.GetBreaking()+c.GetUnknown() > 0
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

// DescribeChanges of a config's meaning.
func DescribeChanges(changes []config.Change) []*controllerv1.ConfigChange {
	var described []*controllerv1.ConfigChange
	for _, change := range changes {
		d := &controllerv1.ConfigChange{Kind: change.Kind, Name: change.Name, What: string(change.What)}
		for _, f := range change.Fields {
			d.Fields = append(d.Fields, &controllerv1.FieldChange{Field: f.Field, Before: f.Before, After: f.After})
		}
		described = append(described, d)
	}
	return described
}
