package events

// Events of one machine, or of each of a fleet.

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/fleet"
	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/events"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// sources of events, and which machines are missing among them.
func (o *options) sources(ctx context.Context) ([]fleet.Source, []fleet.Missing, error) {
	if !o.fleet {
		return []fleet.Source{{Machine: o.m}}, nil, nil
	}
	return fleet.Sources(ctx, o.m)
}

func opening(request *controllerv1.WatchEventsRequest) fleet.Open[controllerv1.WatchEventsResponse] {
	return func(ctx context.Context, client controllerv1.ControllerClient) (grpc.ServerStreamingClient[controllerv1.WatchEventsResponse], error) {
		return client.WatchEvents(ctx, request)
	}
}

// A controller that takes so long for what it keeps hangs.
const listTimeout = time.Minute

// listAll that the sources keep.
func listAll(ctx context.Context, sources []fleet.Source, request *controllerv1.WatchEventsRequest, p *printer, stderr io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	lists, failures := make([][]events.Record, len(sources)), make([]error, len(sources))
	var tasks sync.WaitGroup
	for i, s := range sources {
		tasks.Go(func() {
			failures[i] = fleet.Stream(ctx, s, opening(request), func(r *controllerv1.WatchEventsResponse) {
				if r.Event != nil {
					lists[i] = append(lists[i], api.EventOf(r.Event))
				}
			})
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

// Events of all machines that wait to be printed.
const followQueue = 256

// followAll until the context ends.
func followAll(ctx context.Context, sources []fleet.Source, request *controllerv1.WatchEventsRequest, p *printer, stderr io.Writer) error {
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
			failed <- follow(ctx, s, request, func(r *controllerv1.WatchEventsResponse) {
				if r.Lost > 0 {
					warn(s.Named(fmt.Errorf("%d events came faster than they were read here, and are missing", r.Lost)))
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

// follow one source: a stream that ends is begun again where it ended.
func follow(ctx context.Context, s fleet.Source, request *controllerv1.WatchEventsRequest, take func(*controllerv1.WatchEventsResponse), warn func(error)) error {
	request = proto.CloneOf(request)
	var goesOn uint64
	open := func(ctx context.Context, client controllerv1.ControllerClient) (grpc.ServerStreamingClient[controllerv1.WatchEventsResponse], error) {
		goesOn = request.After
		return client.WatchEvents(ctx, request)
	}
	return fleet.Follow(ctx, s, open, func(r *controllerv1.WatchEventsResponse) {
		if number := r.GetEvent().GetNumber(); number > goesOn {
			request.After = max(request.After, number)
		} else if number > 0 { // its numbers began anew
			goesOn, request.After = 0, number
		}
		take(r)
	}, warn)
}
