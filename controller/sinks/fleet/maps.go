package fleet

// Bucket maps that the machines share: what this one reports about them is written to etcd,
// and what etcd holds is passed on. One goroutine does both, so desired and actual data are
// compared in one place.
//
//	Set(*brain.Agreement) ─► compared with what was read ─► transactions ─► etcd
//	sink(brain.AgreementSeen) ◄── read, then watched, and compared every 5 s ◄┘

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/agreement"
	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/buckets"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

const (
	// A leader that dies, or is cut off from etcd, makes way after this long; its
	// verdicts count until then.
	leaderTTL = 6 * time.Second
	// One request: that fails soon is worth more here than that it is tried for long.
	mapsTimeout = 2 * time.Second
	// Without an answer for so long etcd is unreachable: buckets of dead backends wait no longer.
	mapsAwayAfter = 3 * time.Second
	// Between two looks at what is to be done, where nothing happens meanwhile.
	mapsInterval = time.Second
)

// Maps brings this machine's part in bucket maps to etcd, and hands on what it holds.
type Maps struct {
	store *Store
	log   *slog.Logger
	sink  func(brain.Event)
	wake  chan struct{}

	mu   sync.Mutex
	want *brain.Agreement // nil: nothing

	// Of Run's goroutine.
	lease      lease
	seen       *mapsRead // nil: to be read
	watched    *mapsWatch
	comparedAt time.Time
	answeredAt time.Time // or since when it is asked
	isAway     bool
	// Proposals that etcd holds, or does not take since something has changed: they are
	// made anew from what is seen then. One that it refuses is tried until it is taken.
	tried map[string]*agreement.Proposal
	// Why a write was refused; empty: none was. By key.
	refused map[string]string
}

// NewMaps has a connection of its own: a reading that fails elsewhere does not cut it.
func NewMaps(store *Store, log *slog.Logger, sink func(brain.Event)) *Maps {
	return &Maps{
		store: store, log: log, sink: sink, wake: make(chan struct{}, 1), lease: lease{store: store, ttl: leaderTTL},
		tried: map[string]*agreement.Proposal{}, refused: map[string]string{},
	}
}

// Set what is to be in etcd; nil: nothing of this machine, and nothing is read.
func (m *Maps) Set(want *brain.Agreement) {
	m.mu.Lock()
	isNew := m.want != want
	m.want = want
	m.mu.Unlock()
	if !isNew {
		return
	}
	select {
	case m.wake <- struct{}{}:
	default: // it is about to be looked at
	}
}

func (m *Maps) wanted() *brain.Agreement {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.want
}

// Run until the context ends; then another may lead at once.
func (m *Maps) Run(ctx context.Context) {
	ticker := time.NewTicker(mapsInterval)
	defer ticker.Stop()
	defer m.end(ctx)
	for ctx.Err() == nil {
		if want := m.wanted(); want != nil {
			m.report(m.round(ctx, want))
		} else if m.seen != nil || m.lease.id != 0 {
			m.end(ctx)
		}
		select {
		case <-ctx.Done():
		case <-m.wake:
		case <-ticker.C:
		case news := <-m.watched.events():
			m.take(news)
		}
	}
}

// end what this machine has by its lease.
func (m *Maps) end(ctx context.Context) {
	m.forget()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeTimeout)
	defer cancel()
	_ = m.lease.end(ctx) // else it ends by itself
	m.answeredAt, m.isAway = time.Time{}, false
}

func (m *Maps) forget() {
	m.watched.stop()
	m.watched, m.seen = nil, nil
}

// round: read what was not, hand it on, and write what differs.
func (m *Maps) round(ctx context.Context, want *brain.Agreement) error {
	if m.answeredAt.IsZero() {
		m.answeredAt = time.Now()
	}
	ctx, cancel := context.WithTimeout(ctx, 2*mapsTimeout)
	defer cancel()
	if err := m.hold(ctx); err != nil {
		return err
	}
	if err := m.read(ctx); err != nil {
		return err
	}
	m.handOn(want)
	return m.write(ctx, want)
}

func (m *Maps) hold(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, mapsTimeout)
	defer cancel()
	_, err := m.lease.hold(ctx)
	return err
}

// report what a round has come to. With a new connection all is read anew.
func (m *Maps) report(err error) {
	now := time.Now()
	if err == nil {
		m.answeredAt, m.isAway = now, false
		return
	}
	if errors.Is(err, context.Canceled) {
		return
	}
	m.forget()
	m.store.Close()
	if now.Sub(m.answeredAt) < mapsAwayAfter {
		return
	}
	m.isAway = true
	m.sink(brain.AgreementAway{Reason: err.Error()})
}

// mapsRead is what etcd holds.
type mapsRead struct {
	clusterID uint64
	byKey     map[string]*mvccpb.KeyValue
	parsed    map[string]parsedKey
	handedOn  bool
	// All that was written to maps up to this revision is in byKey. What this machine has
	// written itself says nothing of what others wrote before.
	mapsUpTo int64
}

// parsedKey of the revision given; its value is nil where it is damaged.
type parsedKey struct {
	revision int64
	value    any
	problem  string
}

func (r *mapsRead) revision(key string) int64 { return r.byKey[key].GetModRevision() }

// latest revision of any key.
func (r *mapsRead) latest() (latest int64) {
	for _, kv := range r.byKey {
		latest = max(latest, kv.ModRevision)
	}
	return latest
}

// put what was written, as the watch will report it too.
func (r *mapsRead) put(key string, value []byte, revision int64, by clientv3.LeaseID) {
	r.byKey[key] = &mvccpb.KeyValue{Key: []byte(key), Value: value, ModRevision: revision, Lease: int64(by)}
	r.handedOn = false
}

// read everything, if it was not read or differs from what watches have reported.
func (m *Maps) read(ctx context.Context) error {
	if m.seen != nil && time.Since(m.comparedAt) < readInterval {
		return nil
	}
	client, err := m.store.client()
	if err != nil {
		return err
	}
	if m.seen != nil {
		same, err := m.isSame(ctx, client)
		if err != nil || same {
			return err
		}
		m.log.Warn("what etcd holds of bucket maps is not what its watches have reported: it is read anew")
		m.forget()
	}
	answer, err := m.store.getAll(ctx, client)
	if err != nil {
		return err
	}
	m.seen = &mapsRead{
		clusterID: answer.Header.ClusterId, byKey: map[string]*mvccpb.KeyValue{}, parsed: map[string]parsedKey{}, mapsUpTo: answer.Header.Revision,
	}
	for _, response := range answer.Responses {
		for _, kv := range response.GetResponseRange().Kvs {
			m.seen.byKey[string(kv.Key)] = kv
		}
	}
	m.comparedAt = time.Now()
	m.watched = m.watch(client, answer.Header.Revision+1)
	clear(m.tried)
	return nil
}

func (s *Store) getAll(ctx context.Context, client *clientv3.Client, options ...clientv3.OpOption) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, mapsTimeout)
	defer cancel()
	var gets []clientv3.Op
	for _, prefix := range s.keys.shared() {
		gets = append(gets, clientv3.OpGet(prefix, append(options, clientv3.WithPrefix())...))
	}
	answer, err := client.Txn(ctx).Then(gets...).Commit()
	return answer, s.explain(err)
}

// isSame as etcd has now, by revisions alone.
func (m *Maps) isSame(ctx context.Context, client *clientv3.Client) (bool, error) {
	answer, err := m.store.getAll(ctx, client, clientv3.WithKeysOnly())
	if err != nil {
		return false, err
	}
	if answer.Header.ClusterId != m.seen.clusterID || answer.Header.Revision < m.seen.latest() {
		return false, nil // another etcd, or one restored: revisions do not go on
	}
	// Watches report what happened before this answer within moments.
	for deadline := time.After(watchPause); ; {
		count, differs := 0, false
		for _, response := range answer.Responses {
			for _, kv := range response.GetResponseRange().Kvs {
				count++
				known := m.seen.revision(string(kv.Key))
				differs = differs || known != kv.ModRevision && known <= answer.Header.Revision
			}
		}
		if !differs && count == len(m.seen.byKey) {
			m.comparedAt = time.Now()
			return true, nil
		}
		select {
		case news := <-m.watched.events():
			if !m.take(news) {
				return false, nil
			}
			if news.Header.Revision > answer.Header.Revision {
				return true, nil // it is compared the next time
			}
		case <-deadline:
			return false, nil
		}
	}
}

// mapsWatch joins the watches of several prefixes.
type mapsWatch struct {
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	news   chan clientv3.WatchResponse
}

func (m *Maps) watch(client *clientv3.Client, from int64) *mapsWatch {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(context.Background()))
	w := &mapsWatch{cancel: cancel, news: make(chan clientv3.WatchResponse)}
	for _, prefix := range m.store.keys.shared() {
		channel := client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(from))
		w.tasks.Go(func() {
			for news := range channel {
				w.hand(ctx, news)
			}
			w.hand(ctx, clientv3.WatchResponse{Canceled: true})
		})
	}
	return w
}

func (w *mapsWatch) hand(ctx context.Context, news clientv3.WatchResponse) {
	select {
	case w.news <- news:
	case <-ctx.Done():
	}
}

func (w *mapsWatch) events() <-chan clientv3.WatchResponse {
	if w == nil {
		return nil
	}
	return w.news
}

func (w *mapsWatch) stop() {
	if w != nil {
		w.cancel()
		w.tasks.Wait()
	}
}

// take what a watch reports; false: it has ended, and all is to be read anew.
func (m *Maps) take(news clientv3.WatchResponse) bool {
	if news.Canceled || news.Err() != nil {
		m.forget()
		return false
	}
	for _, event := range news.Events {
		key := string(event.Kv.Key)
		if strings.HasPrefix(key, m.store.keys.maps()) {
			m.seen.mapsUpTo = max(m.seen.mapsUpTo, event.Kv.ModRevision)
		}
		switch {
		case m.seen.revision(key) >= event.Kv.ModRevision:
		case event.Type == mvccpb.DELETE:
			delete(m.seen.byKey, key)
			delete(m.seen.parsed, key)
			m.seen.handedOn = false
		default:
			m.seen.byKey[key] = event.Kv
			m.seen.handedOn = false
		}
	}
	return true
}

// handOn what etcd holds, where it has changed.
func (m *Maps) handOn(want *brain.Agreement) {
	if m.seen.handedOn && !m.isAway {
		return
	}
	m.seen.handedOn = true
	clear(m.tried)
	m.sink(brain.AgreementSeen{Seen: m.describe(want)})
}

func (m *Maps) describe(want *brain.Agreement) *agreement.Seen {
	keys := m.store.keys
	seen := &agreement.Seen{Maps: map[string]agreement.Stored{}, Told: map[string]agreement.Told{}, Verdicts: map[string]agreement.Verdicts{}}
	for key, kv := range m.seen.byKey {
		switch {
		case strings.HasPrefix(key, keys.maps()):
			service := strings.TrimPrefix(key, keys.maps())
			parsed := m.parse(key, kv, func(value []byte) (any, error) { return parseMap(service, value) })
			stored := agreement.Stored{Revision: kv.ModRevision, Problem: parsed.problem}
			stored.Map = mapOf(parsed.value)
			seen.Maps[service] = stored
		case strings.HasPrefix(key, keys.acknowledgements()):
			parsed := m.parse(key, kv, func(value []byte) (any, error) { return m.store.parseTold(key, value) })
			if told, ok := parsed.value.(agreement.Told); ok {
				told.Revision = kv.ModRevision
				seen.Told[strings.TrimPrefix(key, keys.acknowledgements())] = told
			}
		case strings.HasPrefix(key, keys.verdicts()):
			parsed := m.parse(key, kv, func(value []byte) (any, error) { return m.store.parseVerdicts(key, value) })
			if verdicts, ok := parsed.value.(agreement.Verdicts); ok {
				seen.Verdicts[strings.TrimPrefix(key, keys.verdicts())] = verdicts
			}
		case key == keys.leaders()+want.Shard:
			var leader fleetv1.Leader
			if m.store.decode(key, kv.Value, &leader) == nil {
				seen.Leader = leader.Machine
				seen.Leads = leader.Machine == want.Machine && clientv3.LeaseID(kv.Lease) == m.lease.id
			}
		}
	}
	if len(m.refused) > 0 {
		seen.Refused = m.refused[slices.Min(slices.Collect(maps.Keys(m.refused)))]
	}
	return seen
}

// parse a value once. What is damaged is said once.
func (m *Maps) parse(key string, kv *mvccpb.KeyValue, parse func([]byte) (any, error)) parsedKey {
	if parsed, isKnown := m.seen.parsed[key]; isKnown && parsed.revision == kv.ModRevision {
		return parsed
	}
	value, err := parse(kv.Value)
	parsed := parsedKey{revision: kv.ModRevision, value: value}
	if err != nil {
		parsed = parsedKey{revision: kv.ModRevision, problem: err.Error()}
		m.log.Error("what etcd holds of bucket maps cannot be used", "key", key, "error", err)
	}
	m.seen.parsed[key] = parsed
	return parsed
}

// write what differs from what is wanted: first who leads, then what this machine
// says, then maps.
func (m *Maps) write(ctx context.Context, want *brain.Agreement) error {
	client, err := m.store.client()
	if err != nil {
		return err
	}
	w := &mapsWrite{Maps: m, ctx: ctx, client: client, want: want}
	w.lead()
	w.verdicts()
	w.told()
	for service, proposal := range want.Proposals {
		w.propose(service, proposal)
	}
	if w.failed == nil {
		m.handOn(want)
	}
	return w.failed
}

// mapsWrite is one round's writing. What is refused for want of a permission is said,
// and ends nothing else.
type mapsWrite struct {
	*Maps
	ctx    context.Context
	client *clientv3.Client
	want   *brain.Agreement
	failed error
}

// put a key if the conditions hold, and note it as read.
func (w *mapsWrite) put(key string, value proto.Message, by clientv3.LeaseID, conditions ...clientv3.Cmp) {
	if w.failed != nil {
		return
	}
	var options []clientv3.OpOption
	if by != 0 {
		options = append(options, clientv3.WithLease(by))
	}
	operation, err := opPut(key, value, options...)
	if err != nil {
		w.failed = err
		return
	}
	if revision, ok := w.commit(key, operation, conditions...); ok {
		w.seen.put(key, operation.ValueBytes(), revision, by)
	}
}

func (w *mapsWrite) remove(key string, conditions ...clientv3.Cmp) {
	if _, ok := w.commit(key, clientv3.OpDelete(key), conditions...); ok {
		delete(w.seen.byKey, key)
		w.seen.handedOn = false
	}
}

func (w *mapsWrite) commit(key string, operation clientv3.Op, conditions ...clientv3.Cmp) (revision int64, ok bool) {
	if w.failed != nil {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(w.ctx, mapsTimeout)
	defer cancel()
	answer, err := w.client.Txn(ctx).If(conditions...).Then(operation).Commit()
	if err != nil {
		if isRefusal(err) {
			w.refuse(key, w.store.explain(err).Error())
		} else {
			w.failed = w.store.explain(err)
		}
		return 0, false
	}
	w.refuse(key, "")
	return answer.Header.Revision, answer.Succeeded
}

// refuse notes why a key cannot be written; empty: it can.
func (m *Maps) refuse(key, why string) {
	if m.refused[key] == why {
		return
	}
	delete(m.refused, key)
	if why != "" {
		m.refused[key] = why
		m.log.Error("etcd refuses what this machine says of bucket maps: moves wait for it", "key", key, "error", why)
	}
	m.seen.handedOn = false
}

// lead if that is wanted and no machine does, and else not.
func (w *mapsWrite) lead() {
	key := w.store.keys.leaders() + w.want.Shard
	former, isLed := w.seen.byKey[key]
	var leader fleetv1.Leader
	if isLed && w.store.decode(key, former.Value, &leader) != nil {
		leader = fleetv1.Leader{Machine: w.want.Machine} // damaged: any may replace it
	}
	isOurs := isLed && leader.Machine == w.want.Machine
	switch {
	case !w.want.Lead && isOurs:
		w.remove(key, unchanged(key, former))
	case w.want.Lead && (!isLed || isOurs && clientv3.LeaseID(former.Lease) != w.lease.id):
		w.put(key, &fleetv1.Leader{Machine: w.want.Machine, Since: timestamppb.New(time.Now())}, w.lease.id, unchanged(key, former))
	}
}

// unchanged since it was read; nil: it is not there.
func unchanged(key string, read *mvccpb.KeyValue) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(key), "=", read.GetModRevision())
}

func (w *mapsWrite) verdicts() {
	key, value := w.store.keys.verdicts()+w.want.Machine, encodeVerdicts(w.want.Verdicts)
	former := w.seen.byKey[key]
	var read fleetv1.Verdicts
	if former != nil && clientv3.LeaseID(former.Lease) == w.lease.id && w.store.decode(key, former.Value, &read) == nil && proto.Equal(&read, value) {
		return
	}
	w.put(key, value, w.lease.id)
}

// told: a machine that gets packets again says so while no map has changed.
func (w *mapsWrite) told() {
	key, value := w.store.keys.acknowledgements()+w.want.Machine, encodeTold(w.want.Told)
	former := w.seen.byKey[key]
	var read fleetv1.Acknowledgements
	isRead := former != nil && w.store.decode(key, former.Value, &read) == nil
	if isRead && proto.Equal(&read, value) {
		return
	}
	if w.want.Rejoins == nil {
		if isRead && read.GetWithdrawn() && !value.GetWithdrawn() {
			return // it was decided before etcd was read
		}
		w.put(key, value, 0)
		return
	}
	for service, revision := range w.want.Rejoins {
		if w.seen.revision(w.store.keys.maps()+service) != revision {
			return // it takes that first
		}
	}
	w.put(key, value, 0, clientv3.Compare(clientv3.ModRevision(w.store.keys.maps()), "<", w.seen.mapsUpTo+1).WithPrefix())
}

// propose a map: the leader, and that it has seen the one that is replaced, are part
// of the transaction; and that no machine gets packets again meanwhile.
func (w *mapsWrite) propose(service string, proposal *agreement.Proposal) {
	keys := w.store.keys
	key, leader := keys.maps()+service, keys.leaders()+w.want.Shard
	if w.tried[service] == proposal || w.seen.revision(key) != proposal.Previous || w.seen.byKey[leader] == nil {
		return // it is made anew from what is seen now
	}
	if proposal.AsLeader && clientv3.LeaseID(w.seen.byKey[leader].Lease) != w.lease.id {
		return
	}
	conditions := []clientv3.Cmp{
		unchanged(leader, w.seen.byKey[leader]),
		unchanged(key, w.seen.byKey[key]),
	}
	for machine, revision := range proposal.Withdrawn {
		conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(keys.acknowledgements()+machine), "=", revision))
	}
	w.replace(key, service, proposal.Map, conditions)
	if w.refused[key] == "" {
		w.tried[service] = proposal
	}
}

// replace a service's map; nil: it is removed.
func (w *mapsWrite) replace(key, service string, by *buckets.Map, conditions []clientv3.Cmp) {
	if by == nil {
		w.remove(key, conditions...)
		return
	}
	value, err := by.Marshal(service)
	if err != nil {
		w.failed = err
		return
	}
	if revision, ok := w.commit(key, clientv3.OpPut(key, string(value)), conditions...); ok {
		w.seen.put(key, value, revision, 0)
	}
}
