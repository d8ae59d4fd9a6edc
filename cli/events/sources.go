package events

// Where events come from: one machine, or each of a fleet.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/fleet"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/events"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// source is one machine's controller.
type source struct {
	// Of one among several; else empty.
	name string
	m    machine.Machine
}

// sources of events, and which machines are missing among them, and why.
func (o *options) sources(ctx context.Context) (sources []source, missing []string, err error) {
	if !o.fleet {
		return []source{{m: o.m}}, nil, nil
	}
	found, err := fleet.Read(ctx, o.m)
	if err != nil {
		return nil, nil, err
	}
	if found.Away != "" {
		missing = append(missing, found.Away)
	}
	for _, one := range found.Machines {
		switch {
		case one.Registered == nil:
			missing = append(missing, fmt.Sprintf("%s is absent: %s", one.Name, one.Reason))
		case one.Registered.Api == "":
			missing = append(missing, one.Name+" has no API over TCP: give it `api` in its config (docs/api.md)")
		default:
			sources = append(sources, source{one.Name, o.m.At(one.Registered.Api)})
		}
	}
	return sources, missing, nil
}

// named has the machine's name before what went wrong there.
func (s source) named(err error) error {
	if err == nil || s.name == "" {
		return err
	}
	return fmt.Errorf("%s: %w", s.name, err)
}

// read a stream to its end.
func (s source) read(ctx context.Context, request *controllerv1.WatchEventsRequest, take func(*controllerv1.WatchEventsResponse)) error {
	return s.m.Ask(ctx, 0, s.m.ControllerDoor(api.ViewGroup), func(ctx context.Context, conn *grpc.ClientConn) error {
		stream, err := controllerv1.NewControllerClient(conn).WatchEvents(ctx, request)
		if err != nil {
			return err
		}
		for {
			response, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			take(response)
		}
	})
}

// A controller that takes so long for what it keeps hangs.
const listTimeout = time.Minute

// listAll that the sources keep.
func listAll(ctx context.Context, sources []source, request *controllerv1.WatchEventsRequest, p *printer, stderr io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	lists, failures := make([][]events.Record, len(sources)), make([]error, len(sources))
	var tasks sync.WaitGroup
	for i, s := range sources {
		tasks.Go(func() {
			failures[i] = s.named(explain(s.read(ctx, request, func(r *controllerv1.WatchEventsResponse) {
				if r.Event != nil {
					lists[i] = append(lists[i], api.EventOf(r.Event))
				}
			})))
		})
	}
	tasks.Wait()
	if len(sources) == 1 && failures[0] != nil {
		return failures[0]
	}
	if err := p.all(merged(lists)); err != nil {
		return err
	}
	failed := false
	for _, err := range failures {
		if err != nil {
			failed = true
			fmt.Fprintf(stderr, "warning: %v\n", err)
		}
	}
	if failed {
		return commandline.ErrReported
	}
	return nil
}

const (
	// How long after a stream has ended it is begun again.
	followPause = 2 * time.Second
	// Events of all machines that wait to be printed.
	followQueue = 256
)

// followAll until the context ends.
func followAll(ctx context.Context, sources []source, request *controllerv1.WatchEventsRequest, p *printer, stderr io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	came, failed := make(chan func() error, followQueue), make(chan error, len(sources))
	hand := func(print func() error) {
		select {
		case came <- print:
		case <-ctx.Done():
		}
	}
	warn := func(err error) {
		hand(func() error { _, err := fmt.Fprintf(stderr, "warning: %v\n", err); return err })
	}
	for _, s := range sources {
		go func() {
			failed <- s.follow(ctx, request, func(r *controllerv1.WatchEventsResponse) {
				if r.Lost > 0 {
					warn(s.named(fmt.Errorf("%d events came faster than they were read here, and are missing", r.Lost)))
				}
				if r.Event != nil {
					record := api.EventOf(r.Event)
					hand(func() error { return p.one(&record) })
				}
			}, warn)
		}()
	}
	for left := len(sources); left > 0; {
		select {
		case print := <-came:
			if err := print(); err != nil {
				return err
			}
		case err := <-failed:
			if err != nil {
				return err
			}
			left--
		}
	}
	return nil
}

// follow one source: a stream that ends is begun again where it ended. What fails at the
// first time is a mistake, more likely than a restart, unless others go on.
func (s source) follow(ctx context.Context, request *controllerv1.WatchEventsRequest, take func(*controllerv1.WatchEventsResponse), warn func(error)) error {
	request = proto.CloneOf(request)
	said, isFirst := "", true
	for {
		began, goesOn := time.Now(), request.After
		err := s.read(ctx, request, func(r *controllerv1.WatchEventsResponse) {
			isFirst = false
			if number := r.GetEvent().GetNumber(); number > goesOn {
				request.After = max(request.After, number)
			} else if number > 0 { // its numbers began anew
				goesOn, request.After = 0, number
			}
			take(r)
		})
		err = s.named(explain(err))
		if ctx.Err() != nil {
			return nil
		}
		refused := machine.Refused{}
		isOver := errors.As(err, &refused) && refused.Code == codes.DeadlineExceeded
		switch {
		case err == nil || isOver: // its ten minutes
		case isFirst && s.name == "" && time.Since(began) < followPause:
			return err
		case err.Error() != said:
			said = err.Error()
			warn(fmt.Errorf("%w; trying again", err))
		}
		isFirst = false
		if commandline.Pause(ctx, followPause) != nil {
			return nil
		}
	}
}
