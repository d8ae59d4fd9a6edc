package lab

import (
	"context"
	"fmt"
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
	n, err := lab.loadBalancer(name)
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

// Counters of a load balancer's forwarder since its start.
func (lab *Lab) Counters(ctx context.Context, name string) (*forwarderv1.GetCountersResponse, error) {
	return ask(ctx, lab, name, func(ctx context.Context, client forwarderv1.ForwarderClient) (*forwarderv1.GetCountersResponse, error) {
		return client.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
	})
}

// StateOf a backend in a service of a plan.
func StateOf(plan *planv1.Plan, service, backend string) planv1.BackendState {
	for _, s := range plan.GetServices() {
		for _, member := range s.GetMembers() {
			if s.GetName() == service && member.GetBackend() == backend {
				return member.GetState()
			}
		}
	}
	return planv1.BackendState_BACKEND_STATE_UNSPECIFIED
}

// NodeOf a plan's backend: the server it is an address of.
func NodeOf(backend string) string { return strings.TrimSuffix(backend, "-v6") }
