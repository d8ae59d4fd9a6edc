package api

// What the forwarder counted of services and backends, beside what the controller knows of them.

import (
	"context"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// A state does not wait longer for a forwarder that hangs: its clients have some ten seconds.
const countTimeout = 3 * time.Second

// count what the forwarder says now; why not, if it does not.
func (s *service) count(ctx context.Context, services []*controllerv1.Service, backends []*controllerv1.Backend) (notCounted string) {
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	if err := Count(ctx, s.host.Forwarder(), services, backends); err != nil {
		return status.Convert(forwarderError(err)).Message()
	}
	return ""
}

// Count packets of services and backends, and the services' connections.
func Count(ctx context.Context, forwarder forwarderv1.ForwarderClient, services []*controllerv1.Service, backends []*controllerv1.Backend) error {
	counters, err := forwarder.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
	if err != nil {
		return err
	}
	if len(backends) > 0 {
		countBackends(backends, counters.Backends)
	}
	if len(services) == 0 {
		return nil
	}
	connections, err := forwarder.GetConnections(ctx, &forwarderv1.GetConnectionsRequest{})
	if err != nil {
		return err
	}
	countServices(services, counters.Services, connections.Counts)
	return nil
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
