package run

// A config is checked by every live machine before it is current: by this one for
// another that applies it, and by the others for this one.

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

// machineName by the config in use; empty: there is none yet.
func (c *Controller) machineName() string {
	if name := c.name.Load(); name != nil {
		return *name
	}
	return ""
}

// tryPlan of a config by the forwarder; nothing changes. An Unmet where it cannot
// be tried.
func (c *Controller) tryPlan(ctx context.Context, snapshot brain.Snapshot, parsed *config.Config) error {
	foreseen := snapshot.Foresee(parsed)
	if foreseen == nil {
		return errNoForwarder(c.options.RunDir)
	}
	compared, err := c.comparePlan(ctx, foreseen)
	if err != nil {
		return err
	}
	if compared.RestartRequired != "" {
		return api.Unmetf("%w: %s", errRestartRequired, compared.RestartRequired)
	}
	return nil
}

var errRestartRequired = errors.New("the forwarder refuses such a plan until it is restarted")

func errNoForwarder(runDir string) error {
	return api.Unmetf("the forwarder at %s has not yet been reached: it cannot check the config", forwarderSocket(runDir))
}

// checkLater a candidate of another machine, and answer by this machine's key.
func (c *Controller) checkLater(candidate *fleetv1.Candidate, revision int64) {
	if candidate.GetMachine() == c.machineName() {
		return // checked when it was applied
	}
	c.tasks.Go(func() {
		check := c.checkCandidate(c.work, candidate)
		check.Revision = revision
		if check.Refusal != "" {
			c.log.Warn("a config that is to be applied is refused here", "by", candidate.GetUser(), "on", candidate.GetMachine(), "error", check.Refusal)
		}
		c.shared.noteCheck(check)
		c.shared.registrar.Wake()
	})
}

func (c *Controller) checkCandidate(ctx context.Context, candidate *fleetv1.Candidate) *fleetv1.Check {
	stored, err := c.shared.store.Fetch(ctx, candidate.GetConfig())
	if err != nil {
		return &fleetv1.Check{NotChecked: err.Error()}
	}
	read := c.readSources(stored)
	if read.err != nil {
		return &fleetv1.Check{Refusal: read.err.Error()}
	}
	var problem error
	var snapshot brain.Snapshot
	if err := c.ask(ctx, func() { problem, snapshot = c.checkNext(read.parsed), c.brain.Snapshot() }); err != nil {
		return &fleetv1.Check{NotChecked: err.Error()}
	}
	if problem == nil {
		problem = c.tryPlan(ctx, snapshot, read.parsed)
	}
	switch {
	case problem == nil:
		return &fleetv1.Check{}
	// A forwarder that is away refuses nothing.
	case errors.As(problem, &api.Unmet{}) && !errors.Is(problem, errRestartRequired):
		return &fleetv1.Check{NotChecked: problem.Error()}
	}
	return &fleetv1.Check{Refusal: problem.Error()}
}

func (s *sharedConfig) noteCheck(check *fleetv1.Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked = check
}

func (s *sharedConfig) lastCheck() *fleetv1.Check {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checked
}

// commitChecked has every live machine check a config whose text is stored, and
// commits it if none refuses. notChecked are the machines that did not check it.
func (c *Controller) commitChecked(ctx context.Context, seen fleet.Seen, stored *fleet.Config, record *fleetv1.ConfigRecord) (notChecked []string, err error) {
	store := c.shared.store
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
	own := c.machineName()
	offered, err := store.Offer(ctx, seen, stored, own, record.User)
	if err != nil {
		return nil, errors.Join(err, c.discard(ctx, seen, stored))
	}
	if notChecked, err = store.AwaitChecks(ctx, offered, own); err != nil {
		return nil, errors.Join(err, c.discard(ctx, seen, stored), store.Withdraw(context.WithoutCancel(ctx), offered))
	}
	if err := store.Commit(ctx, offered, stored, record); err != nil {
		return nil, err // the candidate goes with its lease
	}
	return append(notChecked, c.notRegistered(ctx, machines)...), nil
}

// discard the text of a config that will not be committed, so that the next one has
// its number. A canary's is run by a machine.
func (c *Controller) discard(ctx context.Context, seen fleet.Seen, stored *fleet.Config) error {
	if seen.Canary != nil {
		return nil
	}
	return c.shared.store.Remove(context.WithoutCancel(ctx), stored.GetGeneration())
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
func (c *Controller) notRegistered(ctx context.Context, registered []*fleetv1.Machine) (sentences []string) {
	var inUse *config.Config
	_ = c.ask(ctx, func() { inUse = c.brain.Config() }) // else the controller stops
	for _, peer := range inUse.Peers {
		if !isRegistered(registered, peer.Name) {
			sentences = append(sentences, peer.Name+": its controller is not registered in etcd; it checks the config when it takes it")
		}
	}
	return sentences
}

// awaitCanary until the machine says that it runs the generation.
func (c *Controller) awaitCanary(ctx context.Context, machine string, generation uint64) error {
	ctx, cancel := context.WithTimeout(ctx, canaryTimeout)
	defer cancel()
	reason := "its controller is not registered any more"
	for {
		machines, err := c.shared.store.Machines(ctx)
		for _, m := range machines {
			if m.Name == machine && m.Generation == generation {
				return nil
			}
			if m.Name == machine {
				reason = fmt.Sprintf("it runs generation %d: %s", m.Generation, m.Reason)
			}
		}
		if ctx.Err() != nil {
			return api.Unmetf("%s was to run generation %d alone, and does not: %s: `guideway config cancel` ends it", machine, generation, reason)
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
func (c *Controller) EndCanary(ctx context.Context, user string, request *controllerv1.EndCanaryRequest) (*controllerv1.ApplyConfigResponse, error) {
	if c.shared == nil {
		return nil, api.Unmetf("this machine's config is in files alone: no config is tried on one machine first")
	}
	unlock, err := c.lockReloads(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	seen, err := c.shared.store.See(ctx)
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	if seen.Canary == nil {
		return nil, api.Unmetf("all machines are to run the same config: `guideway config apply --canary MACHINE` has one run another first")
	}
	stored, notChecked, err := c.commitEnd(ctx, user, seen, request)
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	how := "cancel"
	if request.Promote {
		how = "promote"
	}
	p := publishing{c: c, order: &controllerv1.ApplyOrder{Message: request.Message}, user: user, how: how}
	response, err := p.runHere(ctx, stored)
	if err != nil {
		return nil, err
	}
	response.NotChecked = notChecked
	return response, nil
}

// commitEnd makes one config current: the canary's, or that of the others as a
// generation above it.
func (c *Controller) commitEnd(ctx context.Context, user string, seen fleet.Seen, request *controllerv1.EndCanaryRequest) (stored *fleet.Config, notChecked []string, err error) {
	store := c.shared.store
	of := seen.Current
	if request.Promote {
		of = seen.Canary.Config
	}
	text, err := store.Fetch(ctx, of)
	if err != nil {
		return nil, nil, err
	}
	if !request.Promote {
		stored, err := store.StoreText(ctx, seen, c.shared.running().GetGeneration(), text.Text)
		if err != nil {
			return nil, nil, err
		}
		record := &fleetv1.ConfigRecord{Machine: c.machineName(), User: user, Message: request.Message, RollbackTo: of.Generation, From: fmt.Sprintf("number %d", of.Generation)}
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
	if check := c.checkCandidate(ctx, &fleetv1.Candidate{Config: of}); check.Refusal != "" {
		return nil, nil, fmt.Errorf("refused here: %s", check.Refusal)
	}
	notChecked, err = c.commitChecked(ctx, seen, text, record)
	return text, notChecked, err
}
