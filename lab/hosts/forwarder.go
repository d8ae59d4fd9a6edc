package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// callLimit of one question to a forwarder.
const callLimit = 5 * time.Second

// Forwarder of a load balancer, over its socket. A socket in the file system
// is the same in every network namespace. Close the connection afterwards.
func (lab *Lab) Forwarder(name string) (forwarderv1.ForwarderClient, *grpc.ClientConn, error) {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return nil, nil, err
	}
	connection, err := grpc.NewClient("unix:"+lab.path(n, "run/forwarder.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, nil, fmt.Errorf("reach forwarder of %s: %w", name, err)
	}
	return forwarderv1.NewForwarderClient(connection), connection, nil
}

// ask opens, calls and closes: for questions that are rare.
func ask[Reply any](ctx context.Context, lab *Lab, name string, call func(context.Context, forwarderv1.ForwarderClient) (Reply, error)) (Reply, error) {
	var none Reply
	client, connection, err := lab.Forwarder(name)
	if err != nil {
		return none, err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	reply, err := call(ctx, client)
	if err != nil {
		return none, fmt.Errorf("ask forwarder of %s: %w", name, err)
	}
	return reply, nil
}

// Plan that a load balancer forwards by.
func (lab *Lab) Plan(ctx context.Context, name string) (*planv1.Plan, error) {
	reply, err := ask(ctx, lab, name, func(ctx context.Context, client forwarderv1.ForwarderClient) (*forwarderv1.GetPlanResponse, error) {
		return client.GetPlan(ctx, &forwarderv1.GetPlanRequest{})
	})
	return reply.GetPlan(), err
}

// Metrics of a load balancer's forwarder, by the text of each sample:
// `guideway_fragments_total{action="held"}`.
func (lab *Lab) Metrics(ctx context.Context, name string) (map[string]float64, error) {
	reply, err := ask(ctx, lab, name, func(ctx context.Context, client forwarderv1.ForwarderClient) (*forwarderv1.GetMetricsResponse, error) {
		return client.GetMetrics(ctx, &forwarderv1.GetMetricsRequest{Fresh: true})
	})
	if err != nil {
		return nil, err
	}
	return parseMetrics(reply.GetText())
}

// ControllerMetrics of a load balancer, by the text of each sample.
func (lab *Lab) ControllerMetrics(ctx context.Context, name string) (map[string]float64, error) {
	return lab.metricsAt(ctx, name, "controller", controllerMetrics)
}

// SpeakerMetrics of a load balancer, by the text of each sample.
func (lab *Lab) SpeakerMetrics(ctx context.Context, name string) (map[string]float64, error) {
	return lab.metricsAt(ctx, name, "speaker", speakerMetrics)
}

// Of a machine that may be short of processor time.
const askSlowTimeout = 5 * time.Second

// IsSlow: the machine has made its routes worse than the others', as it was short of processor
// time within the last 30 s.
func (lab *Lab) IsSlow(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askSlowTimeout)
	defer cancel()
	samples, err := lab.SpeakerMetrics(ctx, name)
	return err == nil && samples["guideway_speaker_slow"] == 1
}

func (lab *Lab) metricsAt(ctx context.Context, name, process, address string) (map[string]float64, error) {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return nil, err
	}
	text, err := lab.fetch(ctx, n, "http://"+address+"/metrics")
	if err != nil {
		return nil, fmt.Errorf("%s of %s: %w", process, name, err)
	}
	return parseMetrics(text)
}

// parseMetrics in Prometheus' text format, which has no time stamps here.
func parseMetrics(text string) (map[string]float64, error) {
	samples := map[string]float64{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		end := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[end+1:], 64)
		if end < 0 || err != nil {
			return nil, fmt.Errorf("read metrics: %q is no sample", line)
		}
		samples[line[:end]] = value
	}
	if len(samples) == 0 {
		return nil, errors.New("read metrics: there are none")
	}
	return samples, nil
}

// Counters of a load balancer's forwarder since its start.
func (lab *Lab) Counters(ctx context.Context, name string) (*forwarderv1.GetCountersResponse, error) {
	return ask(ctx, lab, name, func(ctx context.Context, client forwarderv1.ForwarderClient) (*forwarderv1.GetCountersResponse, error) {
		return client.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
	})
}

// Tracked are the entries that a load balancer's tables have for a flow.
func (lab *Lab) Tracked(ctx context.Context, name string, protocol uint32, source, destination netip.AddrPort) ([]*forwarderv1.Connection, error) {
	reply, err := ask(ctx, lab, name, func(ctx context.Context, client forwarderv1.ForwarderClient) (*forwarderv1.GetConnectionsResponse, error) {
		return client.GetConnections(ctx, &forwarderv1.GetConnectionsRequest{Lookup: FlowKey(protocol, source, destination)})
	})
	return reply.GetFound(), err
}

// FlowKey to ask forwarders for.
func FlowKey(protocol uint32, source, destination netip.AddrPort) *forwarderv1.FlowKey {
	return &forwarderv1.FlowKey{
		Source: source.Addr().String(), SourcePort: uint32(source.Port()),
		Destination: destination.Addr().String(), DestinationPort: uint32(destination.Port()),
		Protocol: protocol,
	}
}

// StateOf a backend in a service of a plan.
func StateOf(plan *planv1.Plan, service, backend string) planv1.BackendState {
	for _, s := range plan.GetServices() {
		for _, member := range plan.Members()[s.GetGroup()] {
			if s.GetName() == service && member.GetBackend() == backend {
				return member.GetState()
			}
		}
	}
	return planv1.BackendState_BACKEND_STATE_UNSPECIFIED
}

// BackendNames of a server in the load balancers' config: one of each family.
func BackendNames(node string) []string { return []string{node, node + nameSuffixIPv6} }

// NodeOf a plan's backend: the server it is an address of.
func NodeOf(backend string) string { return strings.TrimSuffix(backend, nameSuffixIPv6) }
