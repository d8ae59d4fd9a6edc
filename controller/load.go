package controller

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

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/speaker"
)

// loadedConfigs remembers what configs were made of.
type loadedConfigs struct {
	// Of the configs that the brain may still come to trust.
	sources map[*config.Config][]config.Source
	kept    *config.Config // already on disk
	notKept string         // why the one in use is not; empty if it is
	again   time.Time      // when that is tried again
	source  string         // for people: where the one in use came from
	inUse   *config.Config // read last

	neighborsOf *config.Config
	neighbors   []speaker.Neighbor
}

// loadAtStart prefers the files; if they are bad, the last good config goes on
// serving and the state says that it is stale.
func (c *Controller) loadAtStart() error {
	c.loaded.sources = map[*config.Config][]config.Source{}
	problem := c.load(readFiles(c.options.Config))
	if problem == nil {
		return nil
	}
	sources, err := c.store.lastGood()
	if err != nil {
		return fmt.Errorf("%w\nand the last good config cannot be read: %w", problem, err)
	}
	if sources == nil {
		return problem
	}
	last, err := config.Parse(sources, config.ReadFromDisk)
	if err != nil {
		return fmt.Errorf("%w\nand the last good config, kept in %s, is no longer good:\n%w", problem, c.options.StateDir, err)
	}
	c.log.Error("the config is refused, the last good one serves", "error", problem)
	c.use(last, sources, "the last good config, kept in "+c.options.StateDir)
	c.step(brain.ConfigRefused{Problem: problem.Error()})
	return nil
}

// candidate is a config that was read and parsed, or why it cannot be used.
type candidate struct {
	sources []config.Source
	parsed  *config.Config
	err     error
}

func readFiles(paths []string) candidate {
	sources, err := config.Read(paths...)
	if err != nil {
		return candidate{err: err}
	}
	parsed, err := config.Parse(sources, config.ReadFromDisk)
	return candidate{sources, parsed, err}
}

// load hands a config that can follow the one in use to the brain.
func (c *Controller) load(read candidate) error {
	err := read.err
	if err == nil {
		err = config.CheckChange(c.loaded.inUse, read.parsed)
	}
	if refusal := (*config.Refusal)(nil); errors.As(err, &refusal) {
		c.logWarnings(refusal.Warnings)
	}
	if err == nil {
		err = c.refuseOtherSecret(read.parsed)
	}
	c.metrics.Reloaded(err == nil, time.Now())
	if err != nil {
		return err
	}
	c.logWarnings(read.parsed.Warnings)
	c.use(read.parsed, read.sources, strings.Join(c.options.Config, ", "))
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

func (c *Controller) use(parsed *config.Config, sources []config.Source, from string) {
	c.loaded.sources[parsed] = sources
	c.loaded.source, c.loaded.inUse = from, parsed
	c.step(brain.ConfigLoaded{Config: parsed})
}

// reload is for a running controller, from any goroutine but the brain's. The
// error says that the controller stops; problem, why the config is refused.
func (c *Controller) reload(ctx context.Context) (problem, err error) {
	c.reloading.Lock() // so that of two reloads the later one's files count
	defer c.reloading.Unlock()
	c.notify.reloading()
	defer c.notify.ready()
	read := readFiles(c.options.Config)
	err = c.ask(ctx, func() { problem = c.load(read); c.tellReload(problem) })
	return problem, err
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
	if trusted == nil || trusted == c.loaded.kept {
		return
	}
	sources, known := c.loaded.sources[trusted]
	if !known || time.Now().Before(c.loaded.again) {
		return
	}
	if err := c.store.setLastGood(sources); err != nil {
		c.notKept(err)
		return
	}
	c.loaded.kept, c.loaded.notKept, c.loaded.again = trusted, "", time.Time{}
	for parsed := range c.loaded.sources {
		if parsed != trusted {
			delete(c.loaded.sources, parsed)
		}
	}
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
		if _, err := c.reload(ctx); errors.Is(err, errStopping) {
			return
		}
	}
}

func sameSource(a, b config.Source) bool { return a.Name == b.Name && string(a.Data) == string(b.Data) }
