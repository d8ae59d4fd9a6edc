package api

// Adds the forwarder's counters of services and backends to the controller's state.

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// A state does not wait longer for a forwarder that hangs: its clients have some ten seconds.
const countTimeout = 3 * time.Second

// Counts of a forwarder at one moment.
type Counts struct {
	counters    *forwarderv1.GetCountersResponse // nil: none
	connections *forwarderv1.GetConnectionsResponse
	// Why there are none although they were requested.
	missing string
}

// askCounts if they are requested, before a place for states is taken, for which others wait.
// The returned function ends it.
func (s *service) askCounts(ctx context.Context, requested, withConnections bool) (*Counts, func()) {
	if !requested {
		return &Counts{}, func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	done, err := s.limiter.queueForwarder(ctx)
	if err != nil {
		return &Counts{missing: status.Convert(err).Message()}, func() {}
	}
	counts, err := AskCounts(ctx, s.host.Forwarder(), withConnections)
	switch status.Code(err) {
	case codes.OK:
	case codes.DeadlineExceeded, codes.Canceled: // whichever side notices first
		counts.missing = fmt.Sprintf("the forwarder: no answer within %v", countTimeout)
	default:
		counts.missing = status.Convert(forwarderError(err)).Message()
	}
	return counts, done
}

// AskCounts of a forwarder.
func AskCounts(ctx context.Context, forwarder forwarderv1.ForwarderClient, withConnections bool) (*Counts, error) {
	counters, err := forwarder.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
	if err != nil || !withConnections {
		return &Counts{counters: counters}, err
	}
	connections, err := forwarder.GetConnections(ctx, &forwarderv1.GetConnectionsRequest{})
	if err != nil {
		return &Counts{}, err
	}
	return &Counts{counters: counters, connections: connections}, nil
}

// AddTo services, with connections, and backends.
func (c *Counts) AddTo(services []*controllerv1.Service, backends []*controllerv1.Backend) {
	if c.counters == nil {
		return
	}
	countServices(services, c.counters.Services, c.connections.GetCounts())
	if len(backends) > 0 {
		countBackends(backends, c.counters.Backends)
	}
}

// countServices goes over the counters once, however many services there are.
func countServices(services []*controllerv1.Service, counters []*forwarderv1.ServiceCounters, connections []*forwarderv1.ConnectionCount) {
	byName := make(map[string]*controllerv1.Service, len(services))
	for _, s := range services {
		s.Packets, s.Bytes, s.NewConnections, s.Connections = proto.Uint64(0), proto.Uint64(0), proto.Uint64(0), proto.Uint64(0)
		byName[s.Name] = s
	}
	for _, c := range counters {
		if s := byName[c.Service]; s != nil {
			*s.Packets += c.Packets
			*s.Bytes += c.Bytes
			*s.NewConnections += c.NewConnections
		}
	}
	for _, c := range connections {
		if s := byName[c.Service]; s != nil {
			*s.Connections += c.Connections
		}
	}
}

func countBackends(backends []*controllerv1.Backend, counters []*forwarderv1.BackendCounters) {
	type key struct{ service, backend string }
	byKey := make(map[key]*forwarderv1.BackendCounters, len(counters))
	sums := map[string]*forwarderv1.BackendCounters{}
	for _, c := range counters {
		byKey[key{c.Service, c.Backend}] = c
		sum := sums[c.Backend]
		if sum == nil {
			sum = &forwarderv1.BackendCounters{}
			sums[c.Backend] = sum
		}
		sum.Packets += c.Packets
		sum.Bytes += c.Bytes
		sum.NewConnections += c.NewConnections
	}
	for _, b := range backends {
		c := byKey[key{b.Service, b.Name}]
		if b.Service == "" {
			c = sums[b.Name] // of all services
		}
		b.Packets, b.Bytes, b.NewConnections = proto.Uint64(c.GetPackets()), proto.Uint64(c.GetBytes()), proto.Uint64(c.GetNewConnections())
	}
}
