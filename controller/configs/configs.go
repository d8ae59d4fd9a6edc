// Package configs decides which config is in use. It brings configs from files or etcd into
// use, keeps the history of those that were, and replaces the config file.
//
//	files.go ─┐                        ┌─► the brain, and by it the forwarder
//	          ├─► stages of one config ┤
//	etcd.go ──┘   (stages.go)          └─► history.go, disk
//
// Files are read and parsed in the goroutine that requests it, because a large config takes
// longer than the brain may be busy. A bad one changes nothing; at start the last good one
// is used instead.
package configs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/notify"
	"github.com/guideway/guideway/controller/statedir"
	"github.com/guideway/guideway/controller/store"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// Settings of the configs of a controller.
type Settings struct {
	// Files and directories that make the config, or with etcd this machine's part.
	Files []string
	// This machine's entry, where they have `machines`.
	Machine string
	// Reload when one of them changes.
	Watch  bool
	Store  store.Store
	Keeper *statedir.Keeper
	Host   Host
	Audit  *api.Audit
	Notify notify.Notifier
	Log    *slog.Logger
}

// Host is the controller as this package needs it.
type Host interface {
	// Ask runs f in the goroutine that owns the brain, or returns ErrStopping.
	Ask(ctx context.Context, f func()) error
	// Brain and Step are for that goroutine.
	Brain() *brain.State
	Step(brain.Event)
	// Enqueue an event, from any goroutine.
	Enqueue(brain.Event)
	// Go runs f beside the brain until the controller stops.
	Go(f func(context.Context))
	// TryPlan of a config by the forwarder: an Unmet where it cannot be tried, or only
	// with a restart (ErrRestartRequired).
	TryPlan(ctx context.Context, from brain.Snapshot, c *config.Config) error
	// Register is what other machines are to find in etcd; nil: nothing yet.
	Register(context.Context) *fleetv1.Machine
	// Reloaded: a config was read, and loaded or refused.
	Reloaded(ok bool)
	// Tell people what changed.
	Tell(events.Event)
}

var (
	// ErrStopping: the controller is about to end.
	ErrStopping = errors.New("the controller is stopping")
	// ErrRestartRequired by the forwarder for a plan.
	ErrRestartRequired = errors.New("the forwarder refuses such a plan until it is restarted")
)

// backend is where configs come from, and where one that is applied goes.
type backend interface {
	// offer what is there now; acceptOlder: also a lower generation of etcd's.
	offer(ctx context.Context, acceptOlder bool) *Config
	// parseSent by a client, to be applied.
	parseSent(files []config.Source) (*config.Config, error)
	// begin to apply it. Nothing else is loaded meanwhile.
	begin(ctx context.Context, user string, order *controllerv1.ApplyOrder, sent config.Source, parsed *config.Config) (api.Applying, error)
	list(context.Context) (*controllerv1.GetConfigHistoryResponse, error)
	// get one of them; 0: the one in use.
	get(ctx context.Context, number uint64) (*controllerv1.GetConfigResponse, error)
}

// Configs of one controller.
type Configs struct {
	stages
	settings Settings
	log      *slog.Logger
	host     Host
	history  *History
	backend  backend
	etcd     *Etcd // nil: the config is in files alone
	// One place: of two reloads the later one's files count.
	changes chan struct{}
}

// Open the history; nothing is loaded yet.
func Open(settings Settings) (*Configs, error) {
	history, err := OpenHistory(settings.Store.Dir, settings.Log)
	if err != nil {
		return nil, err
	}
	return &Configs{settings: settings, log: settings.Log, host: settings.Host, history: history, changes: make(chan struct{}, 1)}, nil
}

// Start loads what files and etcd have; if that is refused, the last good config goes
// on serving and the state says that it is stale. Before the brain has its goroutine.
func (c *Configs) Start() error {
	lastGood, unreadable := c.settings.Store.LastGood()
	if lastGood != nil {
		c.startWith(&Config{Shared: sharedOf(lastGood)})
	}
	offered, away := c.offerAtStart()
	offered.origin.How = "start"
	problem := c.load(offered)
	switch {
	case problem == nil && away != nil:
		c.etcd.tellStart(away, offered.Shared)
		return nil
	case problem == nil:
		return nil
	case unreadable != nil:
		return fmt.Errorf("%w\nand the last good config cannot be read: %w", problem, unreadable)
	case lastGood == nil:
		return problem
	}
	from := "the last good config, kept in " + c.settings.Store.Dir
	last := c.parse(lastGood, from, Origin{How: "start"})
	if last.problem != nil {
		return fmt.Errorf("%w\nand %s, is no longer good:\n%w", problem, from, last.problem)
	}
	c.log.Error("the config is refused, the last good one serves", "error", problem)
	c.use(last)
	c.host.Step(brain.ConfigRefused{Problem: problem.Error()})
	return nil
}

// offerAtStart decides whether the config is in files alone. away: what is offered is
// not what etcd has now, but what was kept from there.
func (c *Configs) offerAtStart() (offered *Config, away error) {
	read, err := config.Read(c.settings.Files...) // once: a pipe has its text only once
	if err != nil {
		c.backend = files{c}
		return &Config{problem: err}, nil
	}
	settings, err := c.reader().EtcdOf(read)
	if err != nil || settings == nil { // what is wrong is told when they are parsed
		c.backend = files{c}
		return c.parseOwn(read, nil), nil
	}
	c.etcd = c.connect(*settings)
	c.backend = c.etcd
	shared, away := c.etcd.readAtStart(context.Background())
	if shared == nil { // this machine's files alone are no config
		return &Config{problem: away}, nil
	}
	return c.parseOwn(read, shared), away
}

// Tasks run until their context ends, once the brain has its goroutine.
func (c *Configs) Tasks() []func(context.Context) {
	tasks := []func(context.Context){c.watchNamed}
	if c.settings.Watch {
		tasks = append(tasks, c.watchFiles)
	}
	if c.etcd != nil {
		tasks = append(tasks, c.etcd.follower.Run, c.etcd.registrar.Run, c.etcd.Maps.Run)
	}
	return tasks
}

// Close the connection to etcd.
func (c *Configs) Close() {
	if c.etcd != nil {
		c.etcd.Store.Close()
	}
}

// Etcd that machines share their config by; nil: the config is in files alone.
func (c *Configs) Etcd() *Etcd { return c.etcd }

// load a config that may follow the one before. For the brain's goroutine, as all that
// changes a stage.
func (c *Configs) load(offered *Config) error {
	err := offered.problem
	if err == nil {
		err = c.CheckNext(offered.Parsed)
	}
	if refusal := (*config.Refusal)(nil); errors.As(err, &refusal) {
		c.logWarnings(refusal.Warnings)
	}
	c.host.Reloaded(err == nil)
	if err != nil {
		return err
	}
	c.logWarnings(offered.Parsed.Warnings)
	c.use(offered)
	return nil
}

func (c *Configs) use(checked *Config) {
	former := c.Loaded()
	isRefused := false
	if former != nil {
		_, isRefused = c.host.Brain().Refused(former.Parsed)
	}
	c.setLoaded(checked, isRefused, time.Now())
	c.host.Step(brain.ConfigLoaded{Config: checked.Parsed})
}

func (c *Configs) logWarnings(warnings config.Problems) {
	for _, warning := range warnings {
		c.log.Warn("config: " + warning.String())
	}
}

// CheckNext: whether this config may follow the one that plans are made of. For the
// brain's goroutine.
func (c *Configs) CheckNext(parsed *config.Config) error {
	if err := config.CheckChange(c.host.Brain().Config(), parsed); err != nil {
		return err
	}
	if err := c.host.Brain().CheckMembers(parsed); err != nil {
		return err
	}
	if err := c.etcd.refuseOther(parsed); err != nil {
		return err
	}
	return c.refuseOtherSecret(parsed)
}

// refuseOtherSecret: once the forwarder hashes with one, another would move
// every connection, and the forwarder refuses it.
func (c *Configs) refuseOtherSecret(parsed *config.Config) error {
	running := c.Running()
	if running == nil || running.Parsed.Cluster.KeyID == parsed.Cluster.KeyID {
		return nil
	}
	return fmt.Errorf("cluster.secret_file: the secret changes (key %s to %s), which moves every connection, so a reload refuses it: on one machine after the other "+
		"`guideway drain machine`, put the secret in place, `systemctl restart guideway-forwarder guideway-controller`, `guideway undrain machine`",
		running.Parsed.Cluster.KeyID, parsed.Cluster.KeyID)
}

// Trusted by the brain is a config whose plan the forwarder has accepted: now it is
// known to be good, goes into the history and to disk. After each decision, in the
// brain's goroutine.
func (c *Configs) Trusted(parsed *config.Config) {
	former := c.Running()
	if former != nil && former.Parsed == parsed {
		return
	}
	running := c.of(parsed)
	if running == nil {
		return // there is none yet
	}
	// In this order: what is in use is in the history, whoever asks meanwhile.
	c.history.Add(running.recorded())
	c.setRunning(running)
	c.tellRunning(former, running)
	lastGood := c.settings.Store.SetLastGood(running.sources)
	c.settings.Keeper.Keep(inUseName, func() error { return errors.Join(lastGood(), c.history.Flush()) }, c.tellKept)
}

// What runs, for the keeper.
const inUseName = "the config in use"

// NotKept says why what runs is not on disk; empty: it is.
func (c *Configs) NotKept() string { return c.settings.Keeper.Problem(inUseName) }

// tellKept tells whether what runs is on disk.
func (c *Configs) tellKept(err error, isNew bool) {
	kept := events.Event{Object: events.Object{Kind: "config", Name: "config"}}
	switch {
	case !isNew:
		return
	case err != nil:
		kept.To, kept.Cause = "not kept", "it is in use, but not on disk for a restart: "+err.Error()
	default:
		kept.From, kept.To, kept.Cause = "not kept", "kept", "it is on disk for a restart"
	}
	c.host.Tell(kept)
}

// tellRunning, once it has a number.
func (c *Configs) tellRunning(former, running *Config) {
	e := inUse(running.origin)
	e.From, e.To = c.nameOf(former), c.nameOf(running)
	c.host.Tell(e)
}

func (c *Configs) nameOf(running *Config) string {
	if number := c.numberOf(running); number > 0 {
		return fmt.Sprintf("%d in use", number)
	}
	if running == nil {
		return ""
	}
	return "one without a number in use"
}

// inUse says how a config came into use.
func inUse(from Origin) events.Event {
	cause := from.How
	if from.RollbackTo > 0 {
		cause += fmt.Sprintf(" to %d", from.RollbackTo)
	}
	if from.Message != "" {
		cause += ": " + from.Message
	}
	return events.Event{Object: events.Object{Kind: "config", Name: "config"}, Cause: cause, Who: from.User}
}

func (c *Config) recorded() Record {
	if c.record != nil {
		return *c.record
	}
	of := c.origin
	for _, source := range c.sources {
		of.From = append(of.From, source.Name)
	}
	return NewRecord(of, c.sources, time.Now())
}

// Reload reads files and etcd anew and loads what they have; an error says why it is
// refused, or is ErrStopping. user is empty where no person is known; acceptOlder: also a
// lower generation of etcd's. From any goroutine but the brain's.
func (c *Configs) Reload(ctx context.Context, user string, acceptOlder bool) error {
	unlock, err := c.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	c.settings.Notify.Reloading()
	defer c.settings.Notify.Ready()
	offered := c.backend.offer(ctx, acceptOlder)
	offered.origin = Origin{How: "reload", User: user}
	return c.bring(ctx, offered)
}

// ReloadUnasked is for a signal or a changed file; its outcome is in the log, the state
// and the audit log.
func (c *Configs) ReloadUnasked(ctx context.Context, from string) error {
	err := c.Reload(ctx, "", false)
	c.auditReload(ctx, from, err)
	return err
}

func (c *Configs) auditReload(ctx context.Context, from string, err error) {
	c.settings.Audit.Write(ctx, api.Entry{Caller: api.Caller{From: from}, Call: "Reload", Err: err, Config: c.NumberInUse()})
}

// bring a config to the brain, and tell how that went.
func (c *Configs) bring(ctx context.Context, offered *Config) (problem error) {
	err := c.host.Ask(ctx, func() {
		problem = c.load(offered)
		c.tell(problem, offered.origin.User)
	})
	return errors.Join(err, problem)
}

// tell how loading a config went, of a user or nobody.
func (c *Configs) tell(problem error, user string) {
	if problem == nil {
		c.log.Info("config reloaded")
		return
	}
	c.log.Error("reload: the config is refused, the former one serves", "error", problem)
	c.host.Step(brain.ConfigRefused{Problem: problem.Error(), Who: user})
}

// lock out other changes until the returned function is called.
func (c *Configs) lock(ctx context.Context) (unlock func(), err error) {
	select {
	case c.changes <- struct{}{}:
		return func() { <-c.changes }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// How often --watch looks at the files. Reading them is cheap and, unlike
// inotify, sees through the links that orchestrators swap.
const watchInterval = time.Second

func (c *Configs) watchFiles(ctx context.Context) {
	seen, _ := config.Read(c.settings.Files...)
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now, err := config.Read(c.settings.Files...)
		if err != nil || slices.EqualFunc(now, seen, sameSource) {
			continue // a file that is being replaced may be missing for a moment
		}
		seen = now
		if errors.Is(c.ReloadUnasked(ctx, "a file that changed"), ErrStopping) {
			return
		}
	}
}

func sameSource(a, b config.Source) bool { return a.Name == b.Name && string(a.Data) == string(b.Data) }
