package show

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

type shownBackend struct {
	// Empty: several services have this set of pools.
	Service string `json:"service"`
	// The set of pools, and how many services have it.
	Group      string   `json:"group,omitempty"`
	Services   uint32   `json:"services,omitempty"`
	Name       string   `json:"name"`
	Address    string   `json:"address"`
	Weight     uint32   `json:"weight"`
	State      string   `json:"state"`
	Reason     string   `json:"reason,omitempty"`
	Since      string   `json:"since,omitempty"`
	Pools      []string `json:"pools,omitempty"`
	Unresolved string   `json:"unresolved,omitempty"`
	// Of the weight, in effect now; absent without a controller.
	WeightPercent uint32 `json:"weight_percent,omitempty"`
	// Kept down by damping.
	Held bool `json:"held,omitempty"`
	// Absent without a forwarder.
	Packets        *uint64 `json:"packets,omitempty"`
	Bytes          *uint64 `json:"bytes,omitempty"`
	NewConnections *uint64 `json:"new_connections,omitempty"`

	ago string
}

func showBackends(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error) {
	p, err := readSnapshot(ctx, m, stderr, &controllerv1.GetStateRequest{})
	if err != nil {
		return output.Listing{}, err
	}
	return listBackends(p.backends()), nil
}

func listBackends(backends []shownBackend) output.Listing {
	found := output.Listing{
		Value: backends, Pick: output.Picked(backends),
		IsTrouble: func(row int) bool { return backends[row].isTrouble() },
		Header:    []string{"SERVICE", "BACKEND", "ADDRESS", "WEIGHT", "STATE", "SINCE", "REASON", "PACKETS", "BYTES", "NEW CONNECTIONS", "POOLS"},
		WideFrom:  8, Named: 2, Counters: []output.Counter{{Name: "packets", Column: 7}, {Name: "bytes", Column: 8}, {Name: "new_connections", Column: 9}},
		None: "no backends",
	}
	for _, b := range backends {
		reason := b.Reason
		if b.Unresolved != "" {
			reason += "; next hop: " + b.Unresolved
		}
		found.Rows = append(found.Rows, []string{
			b.servicesText(), b.Name, b.Address, fmt.Sprint(b.Weight), b.State, b.ago, output.Dash(reason),
			number(b.Packets), number(b.Bytes), number(b.NewConnections), output.Dash(strings.Join(b.Pools, ",")),
		})
	}
	return found
}

func (b shownBackend) isTrouble() bool {
	return b.State != "active" && b.State != "standby" || b.Unresolved != ""
}

func backendOfState(b *controllerv1.Backend) shownBackend {
	return shownBackend{
		Service: b.Service, Group: b.Group, Services: b.Services, Name: b.Name, Address: b.Address, Weight: b.Weight, State: b.State,
		Reason: b.Reason, Since: output.At(b.Since), Pools: b.Pools, Unresolved: b.Unresolved, ago: output.Ago(b.Since),
		WeightPercent: b.WeightPercent, Held: b.Held,
	}
}

func (b shownBackend) servicesText() string {
	if b.Service == "" && b.Services > 0 {
		return output.Counted(int(b.Services), "service") + " of " + b.Group
	}
	return b.Service
}

func (p snapshot) backends() []shownBackend {
	backends := []shownBackend{}
	if p.state != nil {
		for _, b := range p.state.Backends {
			backends = append(backends, backendOfState(b))
		}
	} else {
		backends = p.backendsOfPlan()
	}
	if p.counters != nil {
		countBackends(backends, p.counters.Backends)
	}
	return backends
}

func (p snapshot) backendsOfPlan() []shownBackend {
	addresses := map[string]string{}
	for _, b := range p.plan.GetBackends() {
		addresses[b.Name] = b.Address
	}
	backends := []shownBackend{}
	services := map[string][]string{}
	for _, service := range p.plan.GetServices() {
		services[service.Group] = append(services[service.Group], service.Name)
	}
	for _, group := range p.plan.GetGroups() {
		names := services[group.Name]
		if len(names) == 0 {
			continue // no service has it
		}
		only := ""
		if len(names) == 1 {
			only = names[0]
		}
		for _, member := range group.Members {
			backends = append(backends, shownBackend{
				Service: only, Group: group.Name, Services: uint32(len(names)), Name: member.Backend, Address: addresses[member.Backend], Weight: member.Weight,
				State: strings.ToLower(strings.TrimPrefix(member.State.String(), "BACKEND_STATE_")), ago: "-",
			})
		}
	}
	return backends
}

func countBackends(backends []shownBackend, counters []*forwarderv1.BackendCounters) {
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
	for i := range backends {
		b := &backends[i]
		c := byKey[key{b.Service, b.Name}]
		if b.Service == "" {
			c = sums[b.Name] // of all services
		}
		packets, bytes, connections := c.GetPackets(), c.GetBytes(), c.GetNewConnections()
		b.Packets, b.Bytes, b.NewConnections = &packets, &bytes, &connections
	}
}
