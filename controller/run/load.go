package run

// Reading the config: at start, by command, by SIGHUP, when a file changes.
// A bad one changes nothing; at start the last good one is served instead.
// Files are read and parsed in the goroutine that requests it, because a large
// config takes longer than the brain may be busy.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/configs"
	"github.com/guideway/guideway/controller/sinks/fleet"
)

// loadedConfigs remembers what configs were made of.
type loadedConfigs struct {
	// Of the configs that the brain may still come to trust.
	read   map[*config.Config]candidate
	kept   *config.Config // already on disk
	digest string         // of the files read last
	// Of those already on disk; and the config that was last given to the history.
	keptDigest string
	recorded   *config.Config
	// Generation of the plan by which the forwarder accepted that config first.
	since   uint64
	notKept string         // why the one in use is not; empty if it is
	again   time.Time      // when that is tried again
	source  string         // for people: where the one in use came from
	inUse   *config.Config // read last
	inUseAt time.Time
}

// loadAtStart prefers the files; if they are bad, the last good config goes on
// serving and the state says that it is stale.
func (c *Controller) loadAtStart() error {
	c.loaded.read = map[*config.Config]candidate{}
	sources, err := c.store.LastGood()
	// Once: a pipe has its text only once.
	files, unread := config.Read(c.options.Config...)
	shared, notRead := c.openShared(files, sources)
	read := candidate{err: unread}
	if unread == nil {
		read = c.candidateOf(files, shared)
	}
	if c.shared != nil && shared == nil {
		read.err = notRead // the files alone are no config
	}
	read.origin.How = "start"
	problem := c.load(read)
	if problem == nil && notRead != nil {
		c.tellShared(notRead, shared)
	}
	if problem == nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w\nand the last good config cannot be read: %w", problem, err)
	}
	if sources == nil {
		return problem
	}
	last, named, err := parse(sources)
	if err != nil {
		return fmt.Errorf("%w\nand the last good config, kept in %s, is no longer good:\n%w", problem, c.options.StateDir, err)
	}
	c.log.Error("the config is refused, the last good one serves", "error", problem)
	c.use(candidate{sources: sources, shared: keptShared(sources), parsed: last, named: named, origin: configs.Origin{How: "start"}}, "the last good config, kept in "+c.options.StateDir)
	c.step(brain.ConfigRefused{Problem: problem.Error()})
	return nil
}

// candidate is a config that was read and parsed, or why it cannot be used.
type candidate struct {
	sources []config.Source
	// Of them that from etcd; nil: none.
	shared *fleet.Config
	parsed *config.Config
	// That it names.
	named  namedFiles
	err    error
	origin configs.Origin
	// Prepared already; nil: it is made when the config is known to be good.
	record *configs.Record
}

// readSources are this machine's files and a config from etcd; nil: files alone.
func (c *Controller) readSources(shared *fleet.Config) candidate {
	files, err := config.Read(c.options.Config...)
	if err != nil {
		return candidate{err: err}
	}
	return c.candidateOf(files, shared)
}

func (c *Controller) candidateOf(sources []config.Source, shared *fleet.Config) candidate {
	if shared != nil {
		sources = append(sources, c.shared.source(shared))
	}
	parsed, named, err := parse(sources)
	return candidate{sources: sources, shared: shared, parsed: parsed, named: named, err: err}
}

// load hands a config that can follow the one in use to the brain.
func (c *Controller) load(read candidate) error {
	err := read.err
	if err == nil {
		err = c.checkNext(read.parsed)
	}
	if refusal := (*config.Refusal)(nil); errors.As(err, &refusal) {
		c.logWarnings(refusal.Warnings)
	}
	c.metrics.Reloaded(err == nil, time.Now())
	if err != nil {
		return err
	}
	c.logWarnings(read.parsed.Warnings)
	from := strings.Join(c.options.Config, ", ")
	if read.shared != nil {
		from += ", " + c.shared.source(read.shared).Name
	}
	c.use(read, from)
	return nil
}

// refuseOtherSecret: once the forwarder hashes with one, another would move
// every connection, and the forwarder refuses it.
func (c *Controller) refuseOtherSecret(parsed *config.Config) error {
	if c.loaded.kept == nil || c.loaded.kept.Cluster.KeyID == parsed.Cluster.KeyID {
		return nil
	}
	return fmt.Errorf("cluster.secret_file: the secret changes (key %s to %s), which moves every connection, so a reload refuses it: on one machine after the other "+
		"`guideway drain machine`, put the secret in place, `systemctl restart guideway-forwarder guideway-controller`, `guideway undrain machine`",
		c.loaded.kept.Cluster.KeyID, parsed.Cluster.KeyID)
}

func (c *Controller) logWarnings(warnings config.Problems) {
	for _, warning := range warnings {
		c.log.Warn("config: " + warning.String())
	}
}

func (c *Controller) use(read candidate, from string) {
	c.loaded.read[read.parsed] = read
	c.named.Store(&read.named)
	c.name.Store(&read.parsed.Machine.Name)
	if c.shared != nil {
		c.shared.use(read.shared)
	}
	c.loaded.source, c.loaded.inUse, c.loaded.digest = from, read.parsed, configs.DigestOf(read.sources)
	c.loaded.inUseAt = time.Now()
	c.step(brain.ConfigLoaded{Config: read.parsed})
}

// reload is for a running controller, from any goroutine but the brain's. The
// error says that the controller stops; problem, why the config is refused.
// user is empty where no person is known; acceptOlder: of etcd's generations.
func (c *Controller) reload(ctx context.Context, user string, acceptOlder bool) (problem, err error) {
	unlock, err := c.lockReloads(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	from := configs.Origin{How: "reload", User: user}
	if c.shared != nil {
		return c.reloadShared(ctx, from, acceptOlder)
	}
	c.notify.Reloading()
	defer c.notify.Ready()
	read := c.readSources(nil)
	read.origin = from
	err = c.ask(ctx, func() { problem = c.load(read); c.tellReload(problem) })
	return problem, err
}

// reloadUnasked is for a signal or a changed file; its outcome is in the
// log, the state and the audit log.
func (c *Controller) reloadUnasked(ctx context.Context, from string) error {
	problem, err := c.reload(ctx, "", false)
	c.audit.Write(ctx, api.Entry{Caller: api.Caller{From: from}, Call: "Reload", Err: errors.Join(err, problem), Generation: c.Generation(ctx)})
	return err
}

// lockReloads until the returned function is called.
func (c *Controller) lockReloads(ctx context.Context) (unlock func(), err error) {
	select {
	case c.reloads <- struct{}{}:
		return func() { <-c.reloads }, nil
	case <-c.done:
		return nil, errStopping
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *Controller) tellReload(problem error) {
	if problem == nil {
		c.log.Info("config reloaded")
		return
	}
	c.log.Error("reload: the config is refused, the former one serves", "error", problem)
	c.step(brain.ConfigRefused{Problem: problem.Error()})
}

// keepGoodConfig writes a config to the state directory once the forwarder
// has accepted its plan: now it is known to be good.
func (c *Controller) keepGoodConfig(trusted *config.Config) {
	if trusted == nil || trusted == c.loaded.kept && c.loaded.notKept == "" {
		return
	}
	read, known := c.loaded.read[trusted]
	if !known {
		return
	}
	if trusted != c.loaded.recorded {
		c.loaded.recorded = trusted
		_, c.loaded.since, _ = c.brain.Accepted()
		c.history.Add(recordOf(read))
	} else if time.Now().Before(c.loaded.again) {
		return
	}
	if err := errors.Join(c.keep(read), c.history.Flush()); err != nil {
		c.notKept(err)
		return
	}
	c.loaded.notKept, c.loaded.again = "", time.Time{}
	for parsed := range c.loaded.read {
		if parsed != trusted {
			delete(c.loaded.read, parsed)
		}
	}
}

func (c *Controller) keep(read candidate) error {
	if read.parsed == c.loaded.kept {
		return nil
	}
	if err := c.store.SetLastGood(read.sources); err != nil {
		return err
	}
	c.loaded.kept, c.loaded.keptDigest = read.parsed, configs.DigestOf(read.sources)
	return nil
}

func recordOf(read candidate) configs.Record {
	if read.record != nil {
		return *read.record
	}
	of := read.origin
	for _, source := range read.sources {
		of.From = append(of.From, source.Name)
	}
	return configs.NewRecord(of, read.sources, time.Now())
}

// A full disk may have room again after so long.
const keepRetry = 5 * time.Second

func (c *Controller) notKept(err error) {
	if c.loaded.notKept != err.Error() {
		c.log.Error("the config is good but could not be kept for a restart", "error", err)
	}
	c.loaded.notKept, c.loaded.again = err.Error(), time.Now().Add(keepRetry)
}

// How often --watch looks at the files. Reading them is cheap and, unlike
// inotify, sees through the links that orchestrators swap.
const watchInterval = time.Second

func watchFiles(ctx context.Context, c *Controller) {
	seen, _ := config.Read(c.options.Config...)
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now, err := config.Read(c.options.Config...)
		if err != nil || slices.EqualFunc(now, seen, sameSource) {
			continue // a file that is being replaced may be missing for a moment
		}
		seen = now
		if errors.Is(c.reloadUnasked(ctx, "a file that changed"), errStopping) {
			return
		}
	}
}

func sameSource(a, b config.Source) bool { return a.Name == b.Name && string(a.Data) == string(b.Data) }
