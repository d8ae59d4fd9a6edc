package run

// The part of the config that all machines of a cluster share, from etcd. What it
// becomes is decided as for a file: it is parsed with this machine's files, one
// that is bad changes nothing, and the last good one is on disk. etcd that is away,
// full or restored changes nothing either, and is told.

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/configs"
	"github.com/guideway/guideway/controller/sinks/fleet"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// How long a start waits for etcd before it serves what is on disk, and a reload
// before it goes on with what is in use.
const sharedTimeout = 10 * time.Second

// sharedConfig may be used from any goroutine.
type sharedConfig struct {
	settings  config.Etcd
	store     *fleet.Store
	follower  *fleet.Follower
	registrar *fleet.Registrar
	// Of stateless services.
	maps *fleet.Maps
	seen machinesSeen
	// This machine's, by the config in use; empty: there is none yet.
	machineName func() string

	mu sync.Mutex
	// nil: the config in use has no part from etcd.
	inUse *fleet.Config
	// That this machine was to run when etcd was looked at last, in use here or refused.
	latest *fleetv1.Current
	// About the candidate that was checked last; nil: none was.
	checked *fleetv1.Check
}

func (s *sharedConfig) use(shared *fleet.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inUse = shared
}

func (s *sharedConfig) note(latest *fleetv1.Current) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest = latest
}

func (s *sharedConfig) now() (inUse *fleet.Config, latest *fleetv1.Current) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inUse, s.latest
}

// running is what later generations are compared with; nil: nothing from etcd.
func (s *sharedConfig) running() *fleetv1.Current {
	inUse, _ := s.now()
	if inUse == nil {
		return nil
	}
	return inUse.Current
}

// read what etcd has now; nil: no config.
func (s *sharedConfig) read(ctx context.Context) (*fleet.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, sharedTimeout)
	defer cancel()
	seen, err := s.store.See(ctx)
	if err != nil || seen.Current == nil {
		return nil, err
	}
	wanted := seen.For(s.machineName(), s.running())
	s.note(wanted)
	return s.store.Fetch(ctx, wanted)
}

// source of a config's part.
func (s *sharedConfig) source(shared *fleet.Config) config.Source {
	return config.Source{Name: fmt.Sprintf("etcd:/guideway/%s/config/%d", s.settings.Cluster, shared.GetGeneration()), Data: shared.Text, Generation: shared.GetGeneration()}
}

// keptShared is the part from etcd of a config on disk; nil: it has none.
func keptShared(sources []config.Source) *fleet.Config {
	for _, source := range sources {
		if source.Generation > 0 {
			return &fleet.Config{Current: &fleetv1.Current{Generation: source.Generation, Digest: configs.DigestOf([]config.Source{source})}, Text: source.Data}
		}
	}
	return nil
}

// openShared connects to etcd if this machine's files name it, and returns the part
// of the config to start with: etcd's, or with the reason the one on disk. What is
// wrong with the files is told when they are parsed.
func (c *Controller) openShared(files, lastGood []config.Source) (start *fleet.Config, problem error) {
	settings, err := config.EtcdOf(files, config.ReadFromDisk)
	if err != nil || settings == nil {
		return nil, nil
	}
	kept := keptShared(lastGood)
	s := &sharedConfig{settings: *settings, store: fleet.NewStore(*settings), inUse: kept}
	s.machineName = c.machineName
	s.follower = fleet.NewFollower(s.store, c.log, s.running(), fleet.Events{Machine: c.machineName, Take: c.takeShared, Check: c.checkLater})
	s.registrar = fleet.NewRegistrar(s.store, c.log, newRegistration(c).describe)
	s.maps = fleet.NewMaps(fleet.NewStore(*settings), c.log, c.enqueue)
	c.shared = s
	stored, err := s.read(context.Background())
	switch {
	case err != nil:
		return kept, err
	case stored == nil:
		return kept, fmt.Errorf("etcd holds no config of cluster %s: store the first one by `guideway config seed`", settings.Cluster)
	}
	if err := fleet.CheckNext(s.running(), stored.Current); err != nil {
		return kept, err
	}
	return stored, nil
}

// takeShared is for a config that became current in etcd.
func (c *Controller) takeShared(next *fleet.Config) {
	ctx := context.Background()
	c.shared.note(next.Current)
	unlock, err := c.lockReloads(ctx)
	if err != nil {
		return // the controller stops
	}
	defer unlock()
	running, stale := c.shared.running(), true
	if c.ask(ctx, func() { stale = c.brain.View(false).Config.Stale }) != nil {
		return
	}
	if !stale && running.GetGeneration() == next.GetGeneration() && running.GetDigest() == next.GetDigest() {
		return // applied here, or read by a reload
	}
	problem, err := c.loadShared(ctx, next, configs.Origin{How: "etcd"}, false)
	c.audit.Write(ctx, api.Entry{Caller: api.Caller{From: "etcd"}, Call: "Reload", Err: errors.Join(err, problem), Generation: c.Generation(ctx)})
}

// loadShared loads this machine's files with what etcd has, under lockReloads.
func (c *Controller) loadShared(ctx context.Context, next *fleet.Config, from configs.Origin, acceptOlder bool) (problem, err error) {
	if !acceptOlder {
		problem = fleet.CheckNext(c.shared.running(), next.Current)
	}
	if problem != nil {
		return problem, c.ask(ctx, func() { c.tellReload(problem) })
	}
	c.notify.Reloading()
	defer c.notify.Ready()
	read := c.readSources(next)
	read.origin = from
	err = c.ask(ctx, func() { problem = c.load(read); c.tellReload(problem) })
	return problem, err
}

// reloadShared reads etcd anew; while it is away, the files go with what is in use.
func (c *Controller) reloadShared(ctx context.Context, from configs.Origin, acceptOlder bool) (problem, err error) {
	next, problem := c.shared.read(ctx)
	inUse, _ := c.shared.now()
	switch {
	case problem != nil && acceptOlder, inUse == nil && next == nil:
		return errors.Join(problem, errors.New("etcd holds no config that could be taken")), nil
	case problem != nil:
		c.log.Warn("etcd is not read by this reload: the files go with what is in use from there", "error", problem)
		next = inUse
	case next == nil:
		next = inUse
	}
	return c.loadShared(ctx, next, from, acceptOlder)
}

// refuseOtherEtcd: the connection is made once.
func (c *Controller) refuseOtherEtcd(parsed *config.Config) error {
	var settings *config.Etcd
	if c.shared != nil {
		settings = &c.shared.settings
	}
	if reflect.DeepEqual(parsed.Etcd, settings) {
		return nil
	}
	return errors.New("etcd: has changed, which a reload does not take: `systemctl restart guideway-controller`")
}

// describeShared for people; nil without etcd.
func (c *Controller) describeShared() *controllerv1.Etcd {
	if c.shared == nil {
		return nil
	}
	status := c.shared.follower.Status()
	return &controllerv1.Etcd{
		Cluster: c.shared.settings.Cluster, Endpoints: c.shared.settings.Endpoints,
		Generation: c.shared.running().GetGeneration(), GenerationStored: status.Current.GetGeneration(),
		Away: status.Away, AnsweredAt: api.Timestamp(status.AnsweredAt), Alarms: status.Alarms, Unusable: status.Unusable, Restored: status.Restored,
		NotRegistered: c.shared.registrar.Problem(), Canary: status.Canary,
	}
}

// tellShared what a start found of etcd: a generation that is refused makes the
// config stale, one that cannot be read now is taken later.
func (c *Controller) tellShared(problem error, start *fleet.Config) {
	_, latest := c.shared.now()
	if latest != nil && fleet.CheckNext(start.Current, latest) != nil {
		c.log.Error("the config in etcd is refused, the one on disk serves", "error", problem)
		c.step(brain.ConfigRefused{Problem: problem.Error()})
		return
	}
	c.log.Warn("the config in etcd cannot be had, the one on disk serves until it can", "error", problem)
}
