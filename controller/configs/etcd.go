package configs

// The shared part of the config, from etcd. It is treated like a file: it is parsed
// together with this machine's files, a bad one changes nothing, and the last good one is
// on disk. If etcd is unreachable, full or restored from a backup, nothing changes either,
// and it is reported.

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/sinks/fleet"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// How long a start waits for etcd before it serves what is on disk, and a reload
// before it goes on with what is in use.
const etcdTimeout = 10 * time.Second

// Etcd may be used from any goroutine.
type Etcd struct {
	*Configs
	Settings config.Etcd
	Store    *fleet.Store
	// Of stateless services.
	Maps      *fleet.Maps
	follower  *fleet.Follower
	registrar *fleet.Registrar

	mu sync.Mutex
	// That this machine was to run when etcd was looked at last, in use here or refused.
	latest *fleetv1.Current
	// About the candidate that was checked last; nil: none was.
	checked *fleetv1.Check
}

// connect to etcd, once for each start.
func (c *Configs) connect(settings config.Etcd) *Etcd {
	e := &Etcd{Configs: c, Settings: settings, Store: fleet.NewStore(settings)}
	e.follower = fleet.NewFollower(e.Store, c.log, e.Generation(), fleet.Events{Machine: c.Machine, Take: e.take, Check: e.checkLater, Tell: e.tell})
	e.registrar = fleet.NewRegistrar(e.Store, c.log, c.host.Register)
	e.Maps = fleet.NewMaps(fleet.NewStore(settings), c.log, c.host.Enqueue)
	return e
}

// refuseOther settings: the connection is made once. e is nil without etcd.
func (e *Etcd) refuseOther(parsed *config.Config) error {
	var settings *config.Etcd
	if e != nil {
		settings = &e.Settings
	}
	if reflect.DeepEqual(parsed.Etcd, settings) {
		return nil
	}
	return errors.New("etcd: has changed, which a reload does not take: `systemctl restart guideway-controller`")
}

// tell people what became of etcd.
func (e *Etcd) tell(from, to, cause string) {
	e.host.Tell(events.Event{Object: events.Object{Kind: "config", Name: "etcd"}, From: from, To: to, Cause: cause})
}

func (e *Etcd) note(latest *fleetv1.Current) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.latest = latest
}

func (e *Etcd) lookedAt() *fleetv1.Current {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.latest
}

// Generation from etcd that is loaded, with which later ones are compared; nil: none.
func (e *Etcd) Generation() *fleetv1.Current {
	return currentOf(e.Shared())
}

func currentOf(shared *fleet.Config) *fleetv1.Current {
	if shared == nil {
		return nil
	}
	return shared.Current
}

// read what etcd has now; nil: no config.
func (e *Etcd) read(ctx context.Context) (*fleet.Config, error) {
	ctx, cancel := context.WithTimeout(ctx, etcdTimeout)
	defer cancel()
	seen, err := e.Store.See(ctx)
	if err != nil || seen.Current == nil {
		return nil, err
	}
	wanted := seen.For(e.Machine(), e.Generation())
	e.note(wanted)
	return e.Store.Fetch(ctx, wanted)
}

// readAtStart returns etcd's part of the config, or with the reason the one on disk.
func (e *Etcd) readAtStart(ctx context.Context) (shared *fleet.Config, away error) {
	stored, err := e.read(ctx)
	switch {
	case err != nil:
		return e.Shared(), err
	case stored == nil:
		return e.Shared(), fmt.Errorf("etcd holds no config of cluster %s: store the first one by `guideway config seed`", e.Settings.Cluster)
	}
	if err := fleet.CheckNext(e.Generation(), stored.Current); err != nil {
		return e.Shared(), err
	}
	return stored, nil
}

// tellStart what a start found: a generation that is refused makes the config stale, one
// that cannot be read now is taken later.
func (e *Etcd) tellStart(away error, start *fleet.Config) {
	latest := e.lookedAt()
	if latest != nil && fleet.CheckNext(start.Current, latest) != nil {
		e.log.Error("the config in etcd is refused, the one on disk serves", "error", away)
		e.host.Step(brain.ConfigRefused{Problem: away.Error()})
		return
	}
	e.log.Warn("the config in etcd cannot be had, the one on disk serves until it can", "error", away)
}

// sharedOf a config's sources is the part from etcd; nil: it has none.
func sharedOf(sources []config.Source) *fleet.Config {
	for _, source := range sources {
		if source.Generation > 0 {
			return &fleet.Config{Current: &fleetv1.Current{Generation: source.Generation, Digest: DigestOf([]config.Source{source})}, Text: source.Data}
		}
	}
	return nil
}

// parseSent as what all machines share.
func (e *Etcd) parseSent(sent []config.Source) (*config.Config, error) {
	own, err := config.Read(e.settings.Files...)
	if err != nil {
		return nil, err
	}
	if len(sent) != 1 {
		return nil, fmt.Errorf("a config of %d files cannot be stored in etcd: give one file", len(sent))
	}
	next := e.Generation().GetGeneration() + 1
	return e.reader().Parse(append(own, config.Source{Name: sent[0].Name, Data: sent[0].Data, Generation: next}))
}

// offer what etcd has with this machine's files; while it is away, the files go with what
// is in use.
func (e *Etcd) offer(ctx context.Context, acceptOlder bool) *Config {
	next, err := e.read(ctx)
	inUse := e.Shared()
	switch {
	case err != nil && acceptOlder, inUse == nil && next == nil:
		return &Config{problem: errors.Join(err, errors.New("etcd holds no config that could be taken"))}
	case err != nil:
		e.log.Warn("etcd is not read by this reload: the files go with what is in use from there", "error", err)
		next = inUse
	case next == nil:
		next = inUse
	}
	if acceptOlder {
		return e.readOwn(next)
	}
	return e.offerNext(next)
}

// offerNext is a config that may not go back behind the one in use.
func (e *Etcd) offerNext(next *fleet.Config) *Config {
	if problem := fleet.CheckNext(e.Generation(), next.Current); problem != nil {
		return &Config{problem: problem}
	}
	return e.readOwn(next)
}

// take a config that became current in etcd.
func (e *Etcd) take(next *fleet.Config) {
	ctx := context.Background()
	e.note(next.Current)
	unlock, err := e.lock(ctx)
	if err != nil {
		return // the controller stops
	}
	defer unlock()
	running, stale := e.Generation(), true
	if e.host.Ask(ctx, func() { stale = e.host.Brain().View(false).Config.Stale }) != nil {
		return
	}
	if !stale && running.GetGeneration() == next.GetGeneration() && running.GetDigest() == next.GetDigest() {
		return // applied here, or read by a reload
	}
	e.auditReload(ctx, "etcd", e.loadNext(ctx, next, Origin{How: "etcd"}))
}

// loadNext generation, with this machine's files.
func (e *Etcd) loadNext(ctx context.Context, next *fleet.Config, from Origin) error {
	e.settings.Notify.Reloading()
	defer e.settings.Notify.Ready()
	offered := e.offerNext(next)
	offered.origin = from
	return e.bring(ctx, offered)
}

// Describe etcd for people; nil without etcd.
func (e *Etcd) Describe() *controllerv1.Etcd {
	if e == nil {
		return nil
	}
	status := e.follower.Status()
	return &controllerv1.Etcd{
		Cluster: e.Settings.Cluster, Endpoints: e.Settings.Endpoints,
		Config: e.NumberInUse(), ConfigStored: status.Current.GetGeneration(),
		Away: status.Away, AnsweredAt: api.Timestamp(status.AnsweredAt), Alarms: status.Alarms, Unusable: status.Unusable, Restored: status.Restored,
		NotRegistered: e.registrar.Problem(), Canary: status.Canary,
	}
}

// Canary that one machine alone runs; nil: all run the same.
func (e *Etcd) Canary() *fleetv1.Canary { return e.follower.Status().Canary }

// list what etcd keeps.
func (e *Etcd) list(ctx context.Context) (*controllerv1.GetConfigHistoryResponse, error) {
	records, err := e.Store.Records(ctx)
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	inUse := e.NumberInUse()
	response := &controllerv1.GetConfigHistoryResponse{}
	for _, r := range records {
		described := describeRecord(r)
		described.InUse = r.Generation == inUse
		response.Records = append(response.Records, described)
	}
	return response, nil
}

func describeRecord(r *fleetv1.ConfigRecord) *controllerv1.ConfigRecord {
	described := &controllerv1.ConfigRecord{
		Number: r.Generation, Time: timestamppb.New(r.Time.AsTime()), How: howOf(r), User: r.User, Message: r.Message,
		Digest: r.Digest, Bytes: r.Bytes, RollbackTo: r.RollbackTo, Machine: r.Machine,
	}
	if r.From != "" {
		described.From = []string{r.From}
	}
	return described
}

func (e *Etcd) get(ctx context.Context, number uint64) (*controllerv1.GetConfigResponse, error) {
	if number == 0 {
		inUse := e.InUse().Shared
		if inUse == nil {
			return nil, fmt.Errorf("the one in use: %w", api.ErrUnknownConfig)
		}
		source := inUse.Source(e.Settings.Cluster)
		return &controllerv1.GetConfigResponse{
			Record: &controllerv1.ConfigRecord{Number: inUse.GetGeneration(), Digest: inUse.GetDigest(), Bytes: uint64(len(inUse.Text)), InUse: true},
			Files:  []*controllerv1.ConfigFile{{Name: source.Name, Data: source.Data}},
		}, nil
	}
	record, err := e.Store.Record(ctx, number)
	if errors.Is(err, fleet.ErrUnknown) {
		return nil, fmt.Errorf("%d: %w", number, api.ErrUnknownConfig)
	}
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	stored, err := e.Store.Fetch(ctx, &fleetv1.Current{Generation: record.Generation, Digest: record.Digest, Parts: record.Parts})
	if err != nil {
		return nil, api.Unmetf("%w", err)
	}
	return &controllerv1.GetConfigResponse{Record: describeRecord(record), Files: []*controllerv1.ConfigFile{{Name: stored.Source(e.Settings.Cluster).Name, Data: stored.Text}}}, nil
}
