package run

// Applying a config for all machines of the cluster: it is checked here, by parser
// and forwarder, stored in etcd, and then taken as every other machine takes it.

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/configs"
	"github.com/guideway/guideway/controller/sinks/fleet"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// publishing is a config on its way to etcd.
type publishing struct {
	c      *Controller
	order  *controllerv1.ApplyOrder
	user   string
	text   []byte
	parsed *config.Config
	seen   fleet.Seen
	unlock func() // nil: closed
	// As the history names it.
	how string
}

func (c *Controller) applyShared(ctx context.Context, user string, order *controllerv1.ApplyOrder, files []config.Source) (api.Applying, error) {
	parsed, err := c.parseOffered(files)
	if err != nil {
		return nil, err
	}
	unlock, err := c.lockReloads(ctx)
	if err != nil {
		return nil, err
	}
	p := &publishing{c: c, order: order, user: user, text: files[0].Data, parsed: parsed, unlock: unlock, how: howOf(order)}
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
	err := p.c.ask(ctx, func() {
		if problem = p.c.checkConfigInUse(p.order); problem == nil {
			problem = p.c.checkNext(p.parsed)
		}
		snapshot = p.c.brain.Snapshot()
	})
	if err != nil || problem != nil {
		return joined(err, problem)
	}
	if err := p.c.tryPlan(ctx, snapshot, p.parsed); err != nil {
		return err
	}
	if p.seen, err = p.c.shared.store.See(ctx); err != nil {
		return api.Unmetf("%w", err)
	}
	isTaken := fleet.CheckNext(p.c.shared.running(), p.seen.Current) == nil
	if _, latest := p.c.shared.now(); isTaken && p.seen.Current.GetGeneration() > latest.GetGeneration() {
		return api.Unmetf("etcd holds config generation %d, which this controller has not looked at yet: see the changes again by `guideway config plan`", p.seen.Current.GetGeneration())
	}
	if canary := p.seen.Canary; canary != nil {
		return api.Unmetf("%s alone runs generation %d: end that first, by `guideway config promote` or `guideway config cancel`", canary.GetMachine(), canary.GetConfig().GetGeneration())
	}
	return nil
}

// checkConfigInUse is for the brain's goroutine: the config is still the one that
// an order was given for. Health may have changed since: comparing a large config
// takes seconds, and of a fleet's machines and backends one changes often.
func (c *Controller) checkConfigInUse(order *controllerv1.ApplyOrder) error {
	if problem, refused := c.brain.Refused(c.loaded.inUse); refused {
		return api.Unmetf("what the controller has loaded last is refused, and the changes were seen against the one before: %s", problem)
	}
	if c.loaded.recorded != c.loaded.inUse {
		return api.Unmetf("the forwarder has not accepted yet what the controller has loaded last: apply when it has")
	}
	if order.GetGeneration() < c.loaded.since {
		return api.Unmetf("another config is in use since generation %d, and the changes were seen against %d: see them again by `guideway config plan`", c.loaded.since, order.GetGeneration())
	}
	return nil
}

// Target is none: the client writes no file.
func (p *publishing) Target() (path, digest string) { return "", "" }

// Write is for files.
func (p *publishing) Write() error { return nil }

// PutBack is for files: what etcd has taken goes by a rollback.
func (p *publishing) PutBack(_ context.Context, reason error) error { return reason }

// Commit stores the config and returns when this machine's forwarder has accepted
// its plan.
func (p *publishing) Commit(ctx context.Context) (*controllerv1.ApplyConfigResponse, error) {
	s := p.c.shared
	record := &fleetv1.ConfigRecord{Machine: p.parsed.Machine.Name, User: p.user, Message: p.order.GetMessage(), From: p.order.GetFrom(), RollbackTo: p.order.GetRollbackTo(), Canary: p.order.GetCanary()}
	stored, err := s.store.StoreText(ctx, p.seen, s.running().GetGeneration(), p.text)
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	notChecked, err := p.c.commitChecked(ctx, p.seen, stored, record)
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
		err := p.c.awaitCanary(ctx, canary, stored.GetGeneration())
		return &controllerv1.ApplyConfigResponse{Generation: p.c.Generation(ctx), Number: stored.GetGeneration()}, err
	}
	return p.runHere(ctx, stored)
}

// runHere what is committed: returns when this machine's forwarder has accepted its
// plan.
func (p *publishing) runHere(ctx context.Context, stored *fleet.Config) (*controllerv1.ApplyConfigResponse, error) {
	s := p.c.shared
	s.note(stored.Current)
	if err := s.store.ForgetOldest(ctx); err != nil {
		p.c.log.Warn("old configs stay in etcd: the next one that is applied removes them", "error", err)
	}
	problem, err := p.c.loadShared(ctx, stored, configs.Origin{How: p.how, User: p.user, Message: p.order.GetMessage(), From: []string{p.order.GetFrom()}, RollbackTo: p.order.GetRollbackTo()}, false)
	response := &controllerv1.ApplyConfigResponse{}
	if err == nil && problem == nil {
		response, err = p.c.awaitAccepted(ctx)
	}
	if err = errors.Join(err, problem); err != nil {
		return nil, api.Unmetf("config generation %d is in etcd, and this machine does not run it: `guideway config %s` returns to the one before: %w", stored.GetGeneration(), undoOf(p.order), err)
	}
	response.Number = stored.GetGeneration()
	return response, nil
}

func howOf(order *controllerv1.ApplyOrder) string {
	switch {
	case order.GetCanary() != "":
		return "canary"
	case order.GetRollbackTo() > 0:
		return "rollback"
	}
	return "apply"
}

func undoOf(order *controllerv1.ApplyOrder) string {
	if order.GetCanary() != "" {
		return "cancel"
	}
	return "rollback"
}

// Close lets others reload.
func (p *publishing) Close() {
	if p.unlock != nil {
		p.unlock()
		p.unlock = nil
	}
}

// sharedHistory lists what etcd keeps.
func (c *Controller) sharedHistory(ctx context.Context) (*controllerv1.GetConfigHistoryResponse, error) {
	records, err := c.shared.store.Records(ctx)
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	running := c.shared.running().GetGeneration()
	response := &controllerv1.GetConfigHistoryResponse{}
	for _, r := range records {
		described := describeRecord(r)
		described.InUse = r.Generation == running
		response.Records = append(response.Records, described)
	}
	return response, nil
}

func describeRecord(r *fleetv1.ConfigRecord) *controllerv1.ConfigRecord {
	described := &controllerv1.ConfigRecord{
		Number: r.Generation, Time: timestamppb.New(r.Time.AsTime()), How: "apply", User: r.User, Message: r.Message,
		Digest: r.Digest, Bytes: r.Bytes, RollbackTo: r.RollbackTo, Machine: r.Machine,
	}
	if r.From != "" {
		described.From = []string{r.From}
	}
	switch {
	case r.Canary != "":
		described.How = "canary"
	case r.RollbackTo > 0:
		described.How = "rollback"
	}
	return described
}

// sharedRecorded returns one of them; 0: the one in use here.
func (c *Controller) sharedRecorded(ctx context.Context, number uint64) (*controllerv1.GetConfigResponse, error) {
	if number == 0 {
		inUse, _ := c.shared.now()
		if inUse == nil {
			return nil, fmt.Errorf("the one in use: %w", api.ErrUnknownConfig)
		}
		source := c.shared.source(inUse)
		return &controllerv1.GetConfigResponse{
			Record: &controllerv1.ConfigRecord{Number: inUse.GetGeneration(), Digest: inUse.GetDigest(), Bytes: uint64(len(inUse.Text)), InUse: true},
			Files:  []*controllerv1.ConfigPart{{Name: source.Name, Data: source.Data}},
		}, nil
	}
	record, err := c.shared.store.Record(ctx, number)
	if errors.Is(err, fleet.ErrUnknown) {
		return nil, fmt.Errorf("%d: %w", number, api.ErrUnknownConfig)
	}
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	stored, err := c.shared.store.Fetch(ctx, &fleetv1.Current{Generation: record.Generation, Digest: record.Digest, Parts: record.Parts})
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	return &controllerv1.GetConfigResponse{Record: describeRecord(record), Files: []*controllerv1.ConfigPart{{Name: c.shared.source(stored).Name, Data: stored.Text}}}, nil
}
