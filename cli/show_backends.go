package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

type shownBackend struct {
	Service    string   `json:"service"`
	Name       string   `json:"name"`
	Address    string   `json:"address"`
	Weight     uint32   `json:"weight"`
	State      string   `json:"state"`
	Reason     string   `json:"reason,omitempty"`
	Since      string   `json:"since,omitempty"`
	Pools      []string `json:"pools,omitempty"`
	Unresolved string   `json:"unresolved,omitempty"`
	// Absent without a forwarder.
	Packets        *uint64 `json:"packets,omitempty"`
	Bytes          *uint64 `json:"bytes,omitempty"`
	NewConnections *uint64 `json:"new_connections,omitempty"`

	ago string
}

func showBackends(ctx context.Context, m machine, stderr io.Writer) (listing, error) {
	p, err := look(ctx, m, stderr)
	if err != nil {
		return listing{}, err
	}
	backends := p.backends()
	found := listing{
		value:    backends,
		header:   []string{"SERVICE", "BACKEND", "ADDRESS", "WEIGHT", "STATE", "SINCE", "REASON", "PACKETS", "BYTES", "NEW CONNECTIONS", "POOLS"},
		wideFrom: 8,
		none:     "no backends",
	}
	for _, b := range backends {
		reason := b.Reason
		if b.Unresolved != "" {
			reason += "; next hop: " + b.Unresolved
		}
		found.rows = append(found.rows, []string{
			b.Service, b.Name, b.Address, fmt.Sprint(b.Weight), b.State, b.ago, dash(reason),
			number(b.Packets), number(b.Bytes), number(b.NewConnections), dash(strings.Join(b.Pools, ",")),
		})
	}
	return found, nil
}

func (p picture) backends() []shownBackend {
	backends := []shownBackend{}
	if p.state != nil {
		for _, b := range p.state.Backends {
			backends = append(backends, shownBackend{
				Service: b.Service, Name: b.Name, Address: b.Address, Weight: b.Weight, State: b.State,
				Reason: b.Reason, Since: at(b.Since), Pools: b.Pools, Unresolved: b.Unresolved, ago: ago(b.Since),
			})
		}
	} else {
		backends = p.backendsOfPlan()
	}
	if p.counters != nil {
		countBackends(backends, p.counters.Backends)
	}
	return backends
}

func (p picture) backendsOfPlan() []shownBackend {
	addresses := map[string]string{}
	for _, b := range p.plan.GetBackends() {
		addresses[b.Name] = b.Address
	}
	backends := []shownBackend{}
	members := p.plan.Members()
	for _, service := range p.plan.GetServices() {
		for _, member := range members[service.Group] {
			backends = append(backends, shownBackend{
				Service: service.Name, Name: member.Backend, Address: addresses[member.Backend], Weight: member.Weight,
				State: strings.ToLower(strings.TrimPrefix(member.State.String(), "BACKEND_STATE_")), ago: "-",
			})
		}
	}
	return backends
}

func countBackends(backends []shownBackend, counters []*forwarderv1.BackendCounters) {
	type key struct{ service, backend string }
	byKey := make(map[key]*forwarderv1.BackendCounters, len(counters))
	for _, c := range counters {
		byKey[key{c.Service, c.Backend}] = c
	}
	for i := range backends {
		b := &backends[i]
		c := byKey[key{b.Service, b.Name}]
		packets, bytes, connections := c.GetPackets(), c.GetBytes(), c.GetNewConnections()
		b.Packets, b.Bytes, b.NewConnections = &packets, &bytes, &connections
	}
}
