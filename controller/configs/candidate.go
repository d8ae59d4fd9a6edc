package configs

// Every live machine checks a config before it becomes current: this one for another that
// applies it, and the others for this one.

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/fleet"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// How long the machine that is to run a config alone may take for it, and how often
// it is looked at.
const (
	canaryTimeout  = acceptTimeout
	canaryInterval = 200 * time.Millisecond
)

// checkLater a candidate of another machine, and answer by this machine's key.
func (e *Etcd) checkLater(candidate *fleetv1.Candidate, revision int64) {
	if candidate.GetMachine() == e.Machine() {
		return // checked when it was applied
	}
	e.host.Go(func(work context.Context) {
		check := e.checkCandidate(work, candidate)
		check.Revision = revision
		if check.Refusal != "" {
			e.log.Warn("a config that is to be applied is refused here", "by", candidate.GetUser(), "on", candidate.GetMachine(), "error", check.Refusal)
		}
		e.noteCheck(check)
		e.registrar.Wake()
	})
}

func (e *Etcd) checkCandidate(ctx context.Context, candidate *fleetv1.Candidate) *fleetv1.Check {
	stored, err := e.Store.Fetch(ctx, candidate.GetConfig())
	if err != nil {
		return &fleetv1.Check{NotChecked: err.Error()}
	}
	offered := e.readOwn(stored)
	if offered.problem != nil {
		return &fleetv1.Check{Refusal: offered.problem.Error()}
	}
	var problem error
	var snapshot brain.Snapshot
	if err := e.host.Ask(ctx, func() { problem, snapshot = e.CheckNext(offered.Parsed), e.host.Brain().Snapshot() }); err != nil {
		return &fleetv1.Check{NotChecked: err.Error()}
	}
	if problem == nil {
		problem = e.host.TryPlan(ctx, snapshot, offered.Parsed)
	}
	switch {
	case problem == nil:
		return &fleetv1.Check{}
	// A forwarder that is away refuses nothing.
	case errors.As(problem, &api.Unmet{}) && !errors.Is(problem, ErrRestartRequired):
		return &fleetv1.Check{NotChecked: problem.Error()}
	}
	return &fleetv1.Check{Refusal: problem.Error()}
}

func (e *Etcd) noteCheck(check *fleetv1.Check) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.checked = check
}

// LastCheck of a candidate; nil: none.
func (e *Etcd) LastCheck() *fleetv1.Check {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.checked
}

// commitChecked has every live machine check a config whose text is stored, and
// commits it if none refuses. notChecked are the machines that did not check it.
func (e *Etcd) commitChecked(ctx context.Context, seen fleet.Seen, stored *fleet.Config, record *fleetv1.ConfigRecord) (notChecked []string, err error) {
	store := e.Store
	if seen.Current == nil { // the first one: no machine runs one
		return nil, store.Commit(ctx, seen, stored, record)
	}
	machines, err := store.Machines(ctx)
	if err != nil {
		return nil, err
	}
	if record.Canary != "" && !isRegistered(machines, record.Canary) {
		return nil, fmt.Errorf("no machine %s is registered in etcd that could run it alone: `guideway fleet` lists those that are", record.Canary)
	}
	own := e.Machine()
	offered, err := store.Offer(ctx, seen, stored, own, record.User)
	if err != nil {
		return nil, errors.Join(err, e.discard(ctx, seen, stored))
	}
	if notChecked, err = store.AwaitChecks(ctx, offered, own); err != nil {
		return nil, errors.Join(err, e.discard(ctx, seen, stored), store.Withdraw(context.WithoutCancel(ctx), offered))
	}
	if err := store.Commit(ctx, offered, stored, record); err != nil {
		return nil, err // the candidate goes with its lease
	}
	return append(notChecked, e.notRegistered(ctx, machines)...), nil
}

// discard the text of a config that will not be committed, so that the next one has
// its number. A canary's is run by a machine.
func (e *Etcd) discard(ctx context.Context, seen fleet.Seen, stored *fleet.Config) error {
	if seen.Canary != nil {
		return nil
	}
	return e.Store.Remove(context.WithoutCancel(ctx), stored.GetGeneration())
}

func isRegistered(machines []*fleetv1.Machine, name string) bool {
	for _, m := range machines {
		if m.Name == name {
			return true
		}
	}
	return false
}

// notRegistered are those that the config in use names.
func (e *Etcd) notRegistered(ctx context.Context, registered []*fleetv1.Machine) (sentences []string) {
	var inUse *config.Config
	_ = e.host.Ask(ctx, func() { inUse = e.host.Brain().Config() }) // else the controller stops
	for _, peer := range inUse.Peers {
		if !isRegistered(registered, peer.Name) {
			sentences = append(sentences, peer.Name+": its controller is not registered in etcd; it checks the config when it takes it")
		}
	}
	return sentences
}

// awaitCanary until the machine says that it runs the generation.
func (e *Etcd) awaitCanary(ctx context.Context, machine string, generation uint64) error {
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	reason := "its controller is not registered any more"
	for {
		machines, err := e.Store.Machines(ctx)
		for _, m := range machines {
			if m.Name == machine && m.Config == generation {
				return nil
			}
			if m.Name == machine {
				reason = fmt.Sprintf("it runs config %d: %s", m.Config, m.Reason)
			}
		}
		if ctx.Err() != nil {
			return api.Unmetf("%s was to run config %d alone, and does not: %s: `guideway config cancel` ends it", machine, generation, reason)
		}
		if err != nil {
			reason = err.Error()
		}
		select {
		case <-time.After(canaryInterval):
		case <-ctx.Done():
		}
	}
}

// EndCanary has all machines take what one runs alone, or that one return.
func (e *Etcd) EndCanary(ctx context.Context, user string, request *controllerv1.EndCanaryRequest) (*controllerv1.ApplyConfigResponse, error) {
	if e == nil {
		return nil, api.Unmetf("this machine's config is in files alone: no config is tried on one machine first")
	}
	unlock, err := e.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	seen, err := e.Store.See(ctx)
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	if seen.Canary == nil {
		return nil, api.Unmetf("all machines are to run the same config: `guideway config apply --canary MACHINE` has one run another first")
	}
	stored, notChecked, err := e.commitEnd(ctx, user, seen, request)
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	how := "cancel"
	if request.Promote {
		how = "promote"
	}
	p := publishing{Etcd: e, order: &controllerv1.ApplyOrder{}, origin: Origin{How: how, User: user, Message: request.Message}}
	response, err := p.runHere(ctx, stored)
	if err != nil {
		return nil, err
	}
	response.NotChecked = notChecked
	return response, nil
}

// commitEnd makes one config current: the canary's, or that of the others as a
// generation above it.
func (e *Etcd) commitEnd(ctx context.Context, user string, seen fleet.Seen, request *controllerv1.EndCanaryRequest) (stored *fleet.Config, notChecked []string, err error) {
	store := e.Store
	of := seen.Current
	if request.Promote {
		of = seen.Canary.Config
	}
	text, err := store.Fetch(ctx, of)
	if err != nil {
		return nil, nil, err
	}
	if !request.Promote {
		stored, err := store.StoreText(ctx, seen, e.Generation().GetGeneration(), text.Text)
		if err != nil {
			return nil, nil, err
		}
		record := &fleetv1.ConfigRecord{Machine: e.Machine(), User: user, Message: request.Message, RollbackTo: of.Generation, From: fmt.Sprintf("number %d", of.Generation)}
		return stored, nil, store.Commit(ctx, seen, stored, record)
	}
	record, err := store.Record(ctx, of.Generation)
	if err != nil {
		return nil, nil, err
	}
	record.Canary = ""
	if request.Message != "" {
		record.Message = strings.TrimPrefix(record.Message+"; "+request.Message, "; ")
	}
	// This machine, too, checks what others applied.
	if check := e.checkCandidate(ctx, &fleetv1.Candidate{Config: of}); check.Refusal != "" {
		return nil, nil, fmt.Errorf("refused here: %s", check.Refusal)
	}
	notChecked, err = e.commitChecked(ctx, seen, text, record)
	return text, notChecked, err
}
