package api

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/guideway/guideway/controller/rates"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// withRates is a host whose 300 services have more packets at each reading, the last ones most.
func withRates(t *testing.T) *host {
	t.Helper()
	var reading atomic.Uint64
	counters := func(context.Context) (*forwarderv1.GetCountersResponse, error) {
		n := reading.Add(1)
		response := &forwarderv1.GetCountersResponse{}
		for i := range uint64(300) {
			response.Services = append(response.Services, &forwarderv1.ServiceCounters{Service: fmt.Sprintf("s%03d", i), Packets: n * i})
		}
		return response, nil
	}
	all := rates.New(rates.Source{
		Counters: counters, Status: func(context.Context) (*forwarderv1.GetStatusResponse, error) { return nil, nil }, Machine: func() string { return "lb-1" },
		Answers: func(context.Context) map[string]*controllerv1.Answers { return nil },
	})
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { all.Run(ctx) })
	t.Cleanup(func() { stop(); done.Wait() })
	return &host{rates: all}
}

func TestAViewerGetsTheBusiest(t *testing.T) {
	_, viewer := dial(t, withRates(t))
	for name, c := range map[string]struct {
		request     *controllerv1.WatchRatesRequest
		rows        int
		first, busy string
	}{
		"all":      {&controllerv1.WatchRatesRequest{}, rates.RowsUsual, "s299", "299"},
		"a few":    {&controllerv1.WatchRatesRequest{Limit: 7}, 7, "s299", "299"},
		"some":     {&controllerv1.WatchRatesRequest{Limit: 1000, Filter: "s1"}, 100, "s199", "100"},
		"the rest": {&controllerv1.WatchRatesRequest{Limit: 1000, Sort: "new_connections"}, 299, "s299", "299"},
	} {
		t.Run(name, func(t *testing.T) {
			stream, err := viewer.WatchRates(t.Context(), c.request)
			if err != nil {
				t.Fatal(err)
			}
			found, err := stream.Recv()
			if err != nil || len(found.Services) != c.rows || found.Services[0].Service != c.first || fmt.Sprint(found.ServicesBusy) != c.busy {
				t.Errorf("%v %v", found, err)
			}
		})
	}
}

func TestRatesThatThereAreNot(t *testing.T) {
	_, viewer := dial(t, withRates(t))
	for why, request := range map[string]*controllerv1.WatchRatesRequest{
		`sort: "name": give packets, bytes or new_connections`: {Sort: "name"},
		"limit: 1001: give at most 1000":                       {Limit: 1001},
	} {
		stream, err := viewer.WatchRates(t.Context(), request)
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.InvalidArgument || status.Convert(err).Message() != why {
			t.Errorf("%v, want %s", err, why)
		}
	}
}

// Events and rates take the same places.
func TestWhoWatchesTooOftenIsRefused(t *testing.T) {
	_, viewer := dial(t, withRates(t))
	for range watchersOfUserMax {
		stream, err := viewer.WatchRates(t.Context(), &controllerv1.WatchRatesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := viewer.WatchRates(t.Context(), &controllerv1.WatchRatesRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
}
