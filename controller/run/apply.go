package run

// Applying a config whose file the client writes, with its own rights: the
// controller cannot write in /etc, and need not, but for a client over TCP. What is checked stays true to
// the end because no other reload takes place meanwhile.

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/configs"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

const (
	// How long the forwarder may take to accept the plan: as long as it may take
	// to push one, and once more.
	acceptTimeout = 60 * time.Second
	// How often that is looked at.
	acceptInterval = 10 * time.Millisecond
)

// applying is a config on its way into use.
type applying struct {
	c      *Controller
	order  *controllerv1.ApplyOrder
	path   string
	digest string // of what the file holds before
	data   []byte
	file   *configs.Replacement // nil: the client writes
	record configs.Record
	used   bool
	unlock func() // nil: closed
}

// ApplyConfig checks a config that is about to take the place of the one that
// runs. Nothing else is loaded until it is closed.
func (c *Controller) ApplyConfig(ctx context.Context, user string, order *controllerv1.ApplyOrder, files []config.Source) (api.Applying, error) {
	if len(files) != 1 {
		return nil, fmt.Errorf("a config of %d files cannot be applied: give one file", len(files))
	}
	if c.shared != nil {
		return c.applyShared(ctx, user, order, files)
	}
	if order.GetCanary() != "" {
		return nil, errors.New("--canary has one machine of several run a config first, and this machine's config is in files alone: apply without it")
	}
	path, err := c.configFile()
	if err != nil {
		return nil, err
	}
	parsed, err := c.parseOffered(files)
	if err != nil {
		return nil, err
	}
	unlock, err := c.lockReloads(ctx)
	if err != nil {
		return nil, err
	}
	a := &applying{c: c, order: order, path: path, data: files[0].Data, unlock: unlock}
	if err := a.check(ctx, parsed); err != nil {
		unlock()
		return nil, err
	}
	of := configs.Origin{How: "apply", User: user, Message: order.GetMessage(), From: []string{order.GetFrom()}, RollbackTo: order.GetRollbackTo()}
	if of.RollbackTo > 0 {
		of.How = "rollback"
	}
	a.record, err = c.history.Prepare(configs.NewRecord(of, []config.Source{{Name: path, Data: files[0].Data}}, time.Now()))
	if err != nil {
		unlock()
		return nil, api.Unmetf("%w: nothing is applied that cannot be recorded: make room in %s, or edit %s and `guideway reload`", err, c.options.StateDir, path)
	}
	return a, nil
}

// check that the config may follow, and that what it follows is what the
// order was given for.
func (a *applying) check(ctx context.Context, parsed *config.Config) error {
	var problem error
	err := a.c.ask(ctx, func() {
		if problem = a.c.checkGeneration(a.order); problem == nil {
			problem, a.digest = a.c.checkNext(parsed), a.c.loaded.digest
		}
	})
	if err != nil || problem != nil {
		return joined(err, problem)
	}
	sources, err := config.Read(a.path)
	if err != nil {
		return api.Unmetf("%w", err)
	}
	if configs.DigestOf(sources) != a.digest {
		return api.Unmetf("%s was edited since it was loaded: bring the edit into use by `guideway reload`, or put it aside first; it is not overwritten", a.path)
	}
	return nil
}

func joined(err, problem error) error {
	if err != nil {
		return err
	}
	return problem
}

// checkGeneration is for the brain's goroutine: what runs is what an order was
// given for.
func (c *Controller) checkGeneration(order *controllerv1.ApplyOrder) error {
	running, generation, accepted := c.brain.Accepted()
	switch {
	case !accepted || running != c.loaded.inUse:
		return api.Unmetf("the forwarder does not run what the controller has loaded last (`guideway show services` says why): apply when it does")
	case generation != order.GetGeneration():
		return api.Unmetf("generation %d runs now, and the changes were seen against %d: see them again by `guideway config plan`", generation, order.GetGeneration())
	}
	return nil
}

// Target is the file to be replaced, and the digest of what it holds.
func (a *applying) Target() (path, digest string) { return a.path, a.digest }

// Commit loads the file, which the client has written, and returns when the
// forwarder has accepted its plan.
func (a *applying) Commit(ctx context.Context) (*controllerv1.ApplyConfigResponse, error) {
	a.c.notify.Reloading()
	defer a.c.notify.Ready()
	read := a.c.readSources(nil)
	if read.err == nil && configs.DigestOf(read.sources) != a.record.Digest {
		return nil, api.Unmetf("%s does not hold what was sent", a.path)
	}
	read.origin, read.record = a.record.Origin, &a.record
	var problem error
	err := a.c.ask(ctx, func() {
		if problem = a.c.checkGeneration(a.order); problem == nil {
			problem = a.c.load(read)
			a.used = problem == nil
			a.c.tellReload(problem)
		}
	})
	if err != nil || problem != nil {
		return nil, joined(err, problem)
	}
	response, err := a.c.awaitAccepted(ctx)
	if err == nil {
		response.Number = a.c.history.NumberOf(a.record.Digest)
	}
	return response, err
}

// awaitAccepted waits until the forwarder has accepted what was loaded last.
func (c *Controller) awaitAccepted(ctx context.Context) (*controllerv1.ApplyConfigResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	response := &controllerv1.ApplyConfigResponse{}
	for done := false; !done; {
		var refusal error
		if err := c.ask(ctx, func() { done, refusal = c.outcome(response) }); err != nil {
			return nil, fmt.Errorf("the forwarder has not accepted the plan yet, and is asked again until it does: %w", err)
		}
		if refusal != nil {
			return nil, refusal
		}
		if done {
			break
		}
		select {
		case <-time.After(acceptInterval):
		case <-ctx.Done():
		}
	}
	return response, nil
}

// outcome is for the brain's goroutine.
func (c *Controller) outcome(response *controllerv1.ApplyConfigResponse) (done bool, refusal error) {
	loaded := c.loaded.inUse
	if problem, refused := c.brain.Refused(loaded); refused {
		// A file goes back to what it was: that is what is loaded from here on.
		return true, api.Unmetf("%s", problem)
	}
	running, generation, accepted := c.brain.Accepted()
	if !accepted || running != loaded {
		return false, nil
	}
	response.Generation, response.Warnings = generation, c.brain.Warnings()
	return true, nil
}

// Write the file with the controller's own rights.
func (a *applying) Write() error {
	file, err := configs.NewReplacement(a.path, a.digest, a.data)
	if err == nil {
		err = file.Write()
	}
	if err != nil {
		return api.Unmetf("%w: over TCP the controller writes it with its own rights: let its user write in %s (its unit: ReadWritePaths=), or apply on the machine", err, filepath.Dir(a.path))
	}
	a.file = file
	return nil
}

// PutBack the former file after a refusal. Where the outcome is not known, the
// file stays: it may be what runs.
func (a *applying) PutBack(ctx context.Context, reason error) error {
	if a.file == nil || errors.Is(reason, context.Canceled) || errors.Is(reason, context.DeadlineExceeded) {
		return reason
	}
	if err := a.file.PutBack(); err != nil {
		return api.Unmetf("%w; and the former config could not be put back: %w", reason, err)
	}
	a.Close()
	// What was loaded is gone: the former is read again.
	problem, err := a.c.reload(ctx, a.record.User, false)
	return api.Unmetf("%w; %s holds the former config again", errors.Join(reason, problem, err), a.path)
}

// Close lets others reload.
func (a *applying) Close() {
	if a.unlock == nil {
		return
	}
	if !a.used {
		a.c.history.Discard(a.record)
	}
	a.unlock()
	a.unlock = nil
}

// ConfigHistory lists the configs that were in use.
func (c *Controller) ConfigHistory(ctx context.Context) (*controllerv1.GetConfigHistoryResponse, error) {
	if c.shared != nil {
		return c.sharedHistory(ctx)
	}
	var inUse string
	if err := c.ask(ctx, func() { inUse = c.digestInUse() }); err != nil {
		return nil, err
	}
	return c.history.List(inUse), nil
}

// RecordedConfig returns one of them; 0: the one in use.
func (c *Controller) RecordedConfig(ctx context.Context, number uint64) (*controllerv1.GetConfigResponse, error) {
	if c.shared != nil {
		return c.sharedRecorded(ctx, number)
	}
	if number == 0 {
		var inUse string
		if err := c.ask(ctx, func() { inUse = c.digestInUse() }); err != nil {
			return nil, err
		}
		if number = c.history.NumberOf(inUse); number == 0 {
			return nil, fmt.Errorf("the one in use: %w", api.ErrUnknownConfig)
		}
	}
	return c.history.Get(number)
}

// digestInUse: of the config that the forwarder was seen to accept; one that it
// refuses is not in use, though it was loaded later.
func (c *Controller) digestInUse() string {
	if _, refused := c.brain.Refused(c.loaded.inUse); refused {
		return c.loaded.keptDigest
	}
	return c.loaded.digest
}
