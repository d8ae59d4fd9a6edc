package events

// Events of stateless services. They have a lab of their own, in which several load balancers
// agree on bucket maps through etcd. Nothing may break in any of them.

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

const (
	// How long two load balancers are held a generation apart.
	apartFor = 10 * time.Second
	// Between two times that the router has all flows choose anew.
	rehashEach = time.Second
	// How long an agent is away.
	agentAway = 300 * time.Millisecond
	// Moves have made all steps but the last by then, on a busy machine.
	movedLimit = 30 * time.Second
)

// moveBuckets: a backend is drained by command, and comes back.
func moveBuckets(ctx context.Context, s *stage) error {
	drained, machine := s.victim(s.configured()), s.victim(s.lab.LoadBalancers())
	s.screen.Step("drain %s on %s, and take it back", drained, machine)
	begun := time.Now()
	if err := s.drain(ctx, machine, drained); err != nil {
		return err
	}
	s.result.Detail = fmt.Sprintf("all buckets of %s moved within %.1f s, and back", drained, time.Since(begun).Seconds())
	if err := s.rest(ctx, calmBefore); err != nil {
		return err
	}
	if err := s.undrain(ctx, machine, drained); err != nil {
		return err
	}
	return s.rest(ctx, calmBefore)
}

// drain a backend by command, and wait until it has no bucket.
func (s *stage) drain(ctx context.Context, machine, backend string) error {
	if err := s.command(ctx, machine, "drain", backend); err != nil {
		return err
	}
	return s.waitOwners(ctx, s.others(backend))
}

func (s *stage) undrain(ctx context.Context, machine, backend string) error {
	if err := s.command(ctx, machine, "undrain", backend); err != nil {
		return err
	}
	return s.waitOwners(ctx, s.configured())
}

// command of a load balancer about a backend, by all names that it has there: one of
// each family.
func (s *stage) command(ctx context.Context, machine, verb, backend string) error {
	for _, name := range hosts.BackendNames(backend) {
		if err := s.lab.Guideway(ctx, machine, verb, "backend", name); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) others(backend string) []string {
	return slices.DeleteFunc(slices.Clone(s.configured()), func(b string) bool { return b == backend })
}

// waitOwners until all buckets are at exactly these backends, by the plans that the
// forwarders run.
func (s *stage) waitOwners(ctx context.Context, want []string) error {
	limit := time.Now().Add(movedLimit)
	for _, machine := range s.lab.Running() {
		for {
			plan, err := s.lab.Plan(ctx, machine)
			if err != nil {
				return err
			}
			if hasOwners(plan, want) {
				break
			}
			if time.Now().After(limit) {
				return fmt.Errorf("buckets did not move to %v at %s", want, machine)
			}
			if err := s.rest(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

func hasOwners(plan *planv1.Plan, want []string) bool {
	for _, service := range plan.GetServices() {
		m, owners := service.GetBucketMap(), map[string]bool{}
		for _, at := range m.GetByBucket() {
			owners[hosts.NodeOf(m.GetBackends()[at])] = true
		}
		if len(owners) != len(want) || slices.ContainsFunc(want, func(backend string) bool { return !owners[backend] }) {
			return false
		}
	}
	return len(plan.GetServices()) > 0
}

// scaleOut: a backend comes, and gets its share of buckets and new connections.
func scaleOut(ctx context.Context, s *stage) error {
	if err := addBackend(ctx, s); err != nil {
		return err
	}
	return s.waitOwners(ctx, s.lab.Backends()[:s.options.Backends+1])
}

// scaleIn: a backend gets weight 0, loses its buckets and keeps its connections.
func scaleIn(ctx context.Context, s *stage) error {
	leaving := s.victim(s.configured())
	s.screen.Step("scale in by %s: weight 0", leaving)
	weights := s.lab.Weights()
	weights[leaving] = 0
	if err := s.lab.SetWeights(ctx, weights); err != nil {
		return err
	}
	if err := s.waitOwners(ctx, s.others(leaving)); err != nil {
		return err
	}
	if err := s.load.Mark(); err != nil {
		return err
	}
	return s.getsNone(ctx, leaving, "has no buckets")
}

// killAgent of a backend that buckets leave: its programs stay, and connections with them.
func killAgent(ctx context.Context, s *stage) error {
	backend, machine := s.victim(s.configured()), s.victim(s.lab.LoadBalancers())
	s.screen.Step("drain %s, and kill its agent meanwhile", backend)
	if err := s.command(ctx, machine, "drain", backend); err != nil {
		return err
	}
	index := slices.Index(s.lab.Backends(), backend)
	if err := s.lab.KillAgent(index); err != nil {
		return err
	}
	if err := s.rest(ctx, agentAway); err != nil {
		return err
	}
	if err := s.lab.StartAgent(index); err != nil {
		return err
	}
	if err := s.waitOwners(ctx, s.others(backend)); err != nil {
		return err
	}
	s.result.Detail = fmt.Sprintf("the agent of %s was away for %v while its buckets left", backend, agentAway)
	if err := s.rest(ctx, calmAfter); err != nil {
		return err
	}
	return s.undrain(ctx, machine, backend)
}

// generationsApart: one load balancer's controller hangs while the others go a step on,
// and the router sends flows to others of them than before.
func generationsApart(ctx context.Context, s *stage) error {
	machines := s.lab.LoadBalancers()
	held := s.victim(machines)
	machine := slices.DeleteFunc(slices.Clone(machines), func(m string) bool { return m == held })[0]
	drained := s.victim(s.configured())
	s.screen.Step("hold %s a generation apart for %v while buckets of %s move, and all flows are rehashed each second", held, apartFor, drained)
	resume, err := s.lab.Hang(held, "controller")
	if err != nil {
		return err
	}
	err = s.holdApart(ctx, machine, drained)
	if resumed := resume(); err == nil {
		err = resumed
	}
	if err != nil {
		return err
	}
	if err := s.waitOwners(ctx, s.others(drained)); err != nil {
		return err
	}
	s.result.Detail = fmt.Sprintf("%s was a generation behind for %v", held, apartFor)
	if err := s.rest(ctx, calmBefore); err != nil {
		return err
	}
	return s.undrain(ctx, machine, drained)
}

func (s *stage) holdApart(ctx context.Context, machine, drained string) error {
	if err := s.command(ctx, machine, "drain", drained); err != nil {
		return err
	}
	for end := time.Now().Add(apartFor); time.Now().Before(end); {
		if err := s.rest(ctx, rehashEach); err != nil {
			return err
		}
		if err := s.lab.Network.Rehash(ctx, s.random.Uint32()); err != nil {
			return err
		}
	}
	return nil
}
