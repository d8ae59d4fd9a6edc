package fleet

// Streams of answers: from one machine, or from each of a fleet.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/api"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Source is one machine's controller.
type Source struct {
	// Of one among several; else empty.
	Name    string
	Machine machine.Machine
}

// Missing is a machine that cannot be asked, and why; without a name: some may be missing.
type Missing struct{ Name, Why string }

func (m Missing) String() string {
	if m.Name == "" {
		return m.Why
	}
	return m.Name + " " + m.Why
}

// Sources of a fleet, as one of its controllers knows them, and which machines are missing.
func Sources(ctx context.Context, m machine.Machine) (sources []Source, missing []Missing, err error) {
	found, err := Read(ctx, m)
	if err != nil {
		return nil, nil, err
	}
	if found.Away != "" {
		missing = append(missing, Missing{Why: found.Away})
	}
	for _, one := range found.Machines {
		switch {
		case one.Registered == nil:
			missing = append(missing, Missing{one.Name, "is absent: " + one.Reason})
		case one.Registered.Api == "":
			missing = append(missing, Missing{one.Name, "has no API over TCP: give it `api` in its config (docs/api.md)"})
		default:
			sources = append(sources, Source{one.Name, m.At(one.Registered.Api)})
		}
	}
	return sources, missing, nil
}

// Named has the machine's name before an error there.
func (s Source) Named(err error) error {
	if err == nil || s.Name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", s.Name, err)
}

// Open a stream of answers.
type Open[M any] func(context.Context, controllerv1.ControllerClient) (grpc.ServerStreamingClient[M], error)

// Stream answers to its end. Of one that a controller of an earlier version lacks, the error
// says so.
func Stream[M any](ctx context.Context, s Source, open Open[M], take func(*M)) error {
	err := s.Machine.Ask(ctx, 0, s.Machine.ControllerDoor(api.ViewGroup), func(ctx context.Context, conn *grpc.ClientConn) error {
		stream, err := open(ctx, controllerv1.NewControllerClient(conn))
		if err != nil {
			return err
		}
		for {
			answer, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			take(answer)
		}
	})
	if codeOf(err) == codes.Unimplemented {
		err = fmt.Errorf("%w: the controller is an older one, which does not have this yet", err)
	}
	return s.Named(err)
}

func codeOf(err error) codes.Code {
	refused := machine.Refused{}
	errors.As(err, &refused)
	return refused.Code
}

// How long after a stream has ended it is opened again.
const FollowPause = 2 * time.Second

// Follow a source until the context ends: a stream that ends is opened again, and warn gets
// each new reason. An error at the first time is a mistake, more likely than a restart,
// unless others go on.
func Follow[M any](ctx context.Context, s Source, open Open[M], take func(*M), warn func(error)) error {
	said, isFirst := "", true
	for {
		began := time.Now()
		err := Stream(ctx, s, open, func(answer *M) {
			isFirst, said = false, ""
			take(answer)
		})
		if ctx.Err() != nil {
			return nil
		}
		switch {
		case err == nil || codeOf(err) == codes.DeadlineExceeded: // its ten minutes
		case isFirst && s.Name == "" && time.Since(began) < FollowPause:
			return err
		case err.Error() != said:
			said = err.Error()
			warn(fmt.Errorf("%w; trying again", err))
		}
		isFirst = false
		if commandline.Pause(ctx, FollowPause) != nil {
			return nil
		}
	}
}
