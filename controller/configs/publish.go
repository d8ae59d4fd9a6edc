package configs

// Applies a config for all machines of the cluster: the parser and the forwarder check it
// here, it is stored in etcd, and this machine then takes it from there as all others do.

import (
	"context"
	"errors"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/fleet"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// publishing is a config on its way to etcd.
type publishing struct {
	*Etcd
	order  *controllerv1.ApplyOrder
	origin Origin
	text   []byte
	parsed *config.Config
	seen   fleet.Seen
	unlock func() // nil: closed
}

func (e *Etcd) begin(ctx context.Context, user string, order *controllerv1.ApplyOrder, sent config.Source, parsed *config.Config) (api.Applying, error) {
	unlock, err := e.lock(ctx)
	if err != nil {
		return nil, err
	}
	p := &publishing{Etcd: e, order: order, origin: originOf(user, order), text: sent.Data, parsed: parsed, unlock: unlock}
	if err := p.check(ctx); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// check that the config may follow here, that the forwarder takes it, and that
// etcd holds what the order was given for.
func (p *publishing) check(ctx context.Context) error {
	var problem error
	var snapshot brain.Snapshot
	err := p.host.Ask(ctx, func() {
		if problem = p.checkRunning(p.order); problem == nil {
			problem = p.CheckNext(p.parsed)
		}
		snapshot = p.host.Brain().Snapshot()
	})
	if err = errors.Join(err, problem); err != nil {
		return err
	}
	if err := p.host.TryPlan(ctx, snapshot, p.parsed); err != nil {
		return err
	}
	if p.seen, err = p.Store.See(ctx); err != nil {
		return api.Unmetf("%w", err)
	}
	isTaken := fleet.CheckNext(p.Generation(), p.seen.Current) == nil
	if isTaken && p.seen.Current.GetGeneration() > p.lookedAt().GetGeneration() {
		return api.Unmetf("etcd holds config %d, which this controller has not looked at yet: see the changes again by `guideway config plan`", p.seen.Current.GetGeneration())
	}
	if canary := p.seen.Canary; canary != nil {
		return api.Unmetf("%s alone runs config %d: end that first, by `guideway config promote` or `guideway config cancel`", canary.GetMachine(), canary.GetConfig().GetGeneration())
	}
	return nil
}

// File is none: the config goes to etcd.
func (p *publishing) File() api.File { return nil }

// Commit stores the config and returns when this machine's forwarder has accepted
// its plan.
func (p *publishing) Commit(ctx context.Context) (*controllerv1.ApplyConfigResponse, error) {
	record := &fleetv1.ConfigRecord{Machine: p.parsed.Machine.Name, User: p.origin.User, Message: p.order.GetMessage(), From: p.order.GetFrom(), RollbackTo: p.order.GetRollbackTo(), Canary: p.order.GetCanary()}
	stored, err := p.Store.StoreText(ctx, p.seen, p.Generation().GetGeneration(), p.text)
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	notChecked, err := p.commitChecked(ctx, p.seen, stored, record)
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	response, err := p.run(ctx, stored)
	if err != nil {
		return nil, err
	}
	response.NotChecked = notChecked
	return response, nil
}

// run the config here, or see it run on the machine that is alone to run it.
func (p *publishing) run(ctx context.Context, stored *fleet.Config) (*controllerv1.ApplyConfigResponse, error) {
	if canary := p.order.GetCanary(); canary != "" && canary != p.parsed.Machine.Name {
		return &controllerv1.ApplyConfigResponse{Number: stored.GetGeneration()}, p.awaitCanary(ctx, canary, stored.GetGeneration())
	}
	return p.runHere(ctx, stored)
}

// runHere what is committed: returns when this machine's forwarder has accepted its
// plan.
func (p *publishing) runHere(ctx context.Context, stored *fleet.Config) (*controllerv1.ApplyConfigResponse, error) {
	p.note(stored.Current)
	if err := p.Store.ForgetOldest(ctx); err != nil {
		p.log.Warn("old configs stay in etcd: the next one that is applied removes them", "error", err)
	}
	err := p.loadNext(ctx, stored, p.origin)
	response := &controllerv1.ApplyConfigResponse{}
	if err == nil {
		response, err = p.AwaitAccepted(ctx)
	}
	if err != nil {
		return nil, api.Unmetf("config %d is in etcd, and this machine does not run it: `guideway config %s` returns to the one before: %w", stored.GetGeneration(), undoOf(p.order), err)
	}
	response.Number = stored.GetGeneration()
	return response, nil
}

func undoOf(order *controllerv1.ApplyOrder) string {
	if order.GetCanary() != "" {
		return "cancel"
	}
	return "rollback"
}

// Close lets others change the config.
func (p *publishing) Close() {
	if p.unlock != nil {
		p.unlock()
		p.unlock = nil
	}
}
