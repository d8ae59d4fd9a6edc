package configs

// Applies configs, wherever they are stored, and answers which ones were in use before.

import (
	"context"
	"fmt"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

const (
	// How long the forwarder may take to accept the plan: as long as it may take
	// to push one, and once more.
	acceptTimeout = 60 * time.Second
	// How often that is looked at.
	acceptInterval = 10 * time.Millisecond
)

// ParseSent parses what a client sends, to be applied.
func (c *Configs) ParseSent(sent []config.Source) (*config.Config, error) {
	return c.backend.parseSent(sent)
}

// Apply checks a config that is about to take the place of the one that runs. Nothing
// else is loaded until what it returns is closed.
func (c *Configs) Apply(ctx context.Context, user string, order *controllerv1.ApplyOrder, sent []config.Source) (api.Applying, error) {
	if len(sent) != 1 {
		return nil, fmt.Errorf("a config of %d files cannot be applied: give one file", len(sent))
	}
	parsed, err := c.ParseSent(sent)
	if err != nil {
		return nil, err
	}
	return c.backend.begin(ctx, user, order, sent[0], parsed)
}

// List the configs that were in use.
func (c *Configs) List(ctx context.Context) (*controllerv1.GetConfigHistoryResponse, error) {
	response, err := c.backend.list(ctx)
	if err != nil {
		return nil, err
	}
	return response, c.host.Ask(ctx, func() { response.Refused = c.host.Brain().View(false).Config.Problem })
}

// Get one of them; 0: the one in use.
func (c *Configs) Get(ctx context.Context, number uint64) (*controllerv1.GetConfigResponse, error) {
	return c.backend.get(ctx, number)
}

// checkRunning is for the brain's goroutine: the config is still the one that an order was
// given for. Health may have changed since: comparing a large config takes seconds, and
// of many backends one changes often. What was loaded after it and refused is in nobody's
// way.
func (c *Configs) checkRunning(order *controllerv1.ApplyOrder) error {
	running, loaded := c.Running(), c.Loaded()
	if running != nil && running != loaded {
		if _, refused := c.host.Brain().Refused(loaded.Parsed); !refused {
			running = nil
		}
	}
	if running == nil {
		return api.Unmetf("the forwarder does not run what the controller has loaded last (`guideway show services` says why): apply when it does")
	}
	if number := c.numberOf(running); number != order.GetNumber() {
		return api.Unmetf("config %d runs now, and the changes were seen against %d: see them again by `guideway config plan`", number, order.GetNumber())
	}
	return nil
}

// NumberInUse of the history; 0: none is in use, or it is not recorded.
func (c *Configs) NumberInUse() uint64 { return c.numberOf(c.InUse()) }

// NumberOf a loaded or running config in the history; 0: it is not recorded.
func (c *Configs) NumberOf(parsed *config.Config) uint64 { return c.numberOf(c.of(parsed)) }

func (c *Configs) numberOf(of *Config) uint64 {
	switch {
	case of == nil:
		return 0
	case c.etcd != nil:
		return currentOf(of.Shared).GetGeneration()
	}
	return c.history.NumberOf(of.digest)
}

// originOf a config that is applied.
func originOf(user string, order *controllerv1.ApplyOrder) Origin {
	return Origin{
		How: howOf(order), User: user, Message: order.GetMessage(), From: []string{order.GetFrom()}, RollbackTo: order.GetRollbackTo(),
	}
}

// howOf an order, or the record of one in etcd.
func howOf(of interface {
	GetCanary() string
	GetRollbackTo() uint64
}) string {
	switch {
	case of.GetCanary() != "":
		return "canary"
	case of.GetRollbackTo() > 0:
		return "rollback"
	}
	return "apply"
}

// AwaitAccepted waits until the forwarder has accepted what was loaded last.
func (c *Configs) AwaitAccepted(ctx context.Context) (*controllerv1.ApplyConfigResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	response := &controllerv1.ApplyConfigResponse{}
	for done := false; ; {
		var refusal error
		if err := c.host.Ask(ctx, func() { done, refusal = c.outcome(response) }); err != nil {
			return nil, fmt.Errorf("the forwarder has not accepted the plan yet, and is asked again until it does: %w", err)
		}
		if done || refusal != nil {
			return response, refusal
		}
		select {
		case <-time.After(acceptInterval):
		case <-ctx.Done():
		}
	}
}

// outcome is for the brain's goroutine.
func (c *Configs) outcome(response *controllerv1.ApplyConfigResponse) (done bool, refusal error) {
	loaded := c.Loaded().Parsed
	if problem, refused := c.host.Brain().Refused(loaded); refused {
		// A file goes back to what it was: that is what is loaded from here on.
		return true, api.Unmetf("%s", problem)
	}
	if running, accepted := c.host.Brain().Accepted(); !accepted || running != loaded {
		return false, nil
	}
	response.Warnings = c.host.Brain().Warnings()
	return true, nil
}
