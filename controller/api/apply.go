package api

// Applies configs, and answers which ones were in use before.

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// ErrUnknownConfig: the history does not have it.
var ErrUnknownConfig = errors.New("the history has no such config: `guideway config history` lists them")

// Applying is a config on its way into use.
type Applying interface {
	// File that is replaced before Commit; nil: none, the config goes to etcd.
	File() File
	// Commit returns when the forwarder has accepted the plan.
	Commit(context.Context) (*controllerv1.ApplyConfigResponse, error)
	Close()
}

// File is the one that holds the config.
type File interface {
	// Target is its path, the digest of what it holds, and whether that is an edit that
	// never ran.
	Target() (path, digest string, edited bool)
	// Write it, for a client that has no rights here.
	Write() error
	// PutBack what Write replaced, after Commit has refused it; reason says why,
	// and the error what became of the file, too.
	PutBack(ctx context.Context, reason error) error
}

func (s *service) ReplaceConfig(ctx context.Context, r *controllerv1.ReplaceConfigRequest) (*controllerv1.ApplyConfigResponse, error) {
	applying, err := s.beginApply(ctx, r.GetFiles(), r.GetOrder())
	if err != nil {
		return nil, err
	}
	defer applying.Close()
	file := applying.File()
	if file != nil {
		if err := file.Write(); err != nil {
			return nil, configFailure(err)
		}
	}
	response, err := applying.Commit(ctx)
	if err != nil && file != nil {
		err = file.PutBack(ctx, err)
	}
	if err != nil {
		return nil, configFailure(err)
	}
	return response, nil
}

func (s *service) ApplyConfig(stream grpc.BidiStreamingServer[controllerv1.ApplyConfigRequest, controllerv1.ApplyConfigResponse]) error {
	applying, err := s.receiveApply(stream)
	if err != nil {
		return err
	}
	defer applying.Close()
	target := &controllerv1.ApplyConfigResponse{}
	if file := applying.File(); file != nil {
		target.Path, target.Digest, target.Edited = file.Target()
	}
	if err := stream.Send(target); err != nil {
		return err
	}
	written := false
	err = receive(stream.Context(), func() error {
		request, err := stream.Recv()
		written = request.GetWritten()
		return err
	})
	if err != nil || !written {
		return errors.Join(err, errNotWritten(err))
	}
	response, err := applying.Commit(stream.Context())
	if err != nil {
		return configFailure(err)
	}
	return stream.Send(response)
}

func (s *service) EndCanary(ctx context.Context, r *controllerv1.EndCanaryRequest) (*controllerv1.ApplyConfigResponse, error) {
	response, err := s.host.EndCanary(ctx, callerOf(ctx).Name, r)
	if err != nil {
		return nil, configFailure(err)
	}
	return response, nil
}

func errNotWritten(err error) error {
	if err != nil {
		return nil // says it
	}
	return status.Error(codes.InvalidArgument, "after the order comes that the file is written")
}

// receiveApply of the client's first message.
func (s *service) receiveApply(stream grpc.BidiStreamingServer[controllerv1.ApplyConfigRequest, controllerv1.ApplyConfigResponse]) (Applying, error) {
	if callerOf(stream.Context()).Certificate != "" {
		return nil, status.Error(codes.FailedPrecondition, "over TCP nobody writes a file of this machine: ReplaceConfig has the controller write it")
	}
	done, err := s.limiter.queueUpload(stream.Context())
	if err != nil {
		return nil, err
	}
	defer done()
	var request *controllerv1.ApplyConfigRequest
	err = receive(stream.Context(), func() (err error) {
		request, err = stream.Recv()
		return err
	})
	if err != nil {
		return nil, err
	}
	return s.beginApply(stream.Context(), request.GetFiles(), request.GetOrder())
}

// beginApply has a config checked.
func (s *service) beginApply(ctx context.Context, files []*controllerv1.ConfigFile, order *controllerv1.ApplyOrder) (Applying, error) {
	noteRequest(ctx, order)
	sources, err := sourcesOf(files)
	if err != nil {
		return nil, err
	}
	applying, err := s.host.ApplyConfig(ctx, callerOf(ctx).Name, order, sources)
	if err != nil {
		return nil, configFailure(err)
	}
	return applying, nil
}

func (s *service) GetConfigHistory(ctx context.Context, _ *controllerv1.GetConfigHistoryRequest) (*controllerv1.GetConfigHistoryResponse, error) {
	return s.host.ConfigHistory(ctx)
}

func (s *service) GetConfig(ctx context.Context, r *controllerv1.GetConfigRequest) (*controllerv1.GetConfigResponse, error) {
	done, err := s.limiter.queueUpload(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	response, err := s.host.RecordedConfig(ctx, r.Number)
	if errors.Is(err, ErrUnknownConfig) {
		return nil, status.Error(codes.NotFound, err.Error())
	}
	return response, err
}
