package fleet

// Reads, stores and lists configs in etcd.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/outside"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// Of a string in what machines write: the longest are lists of what is wrong with a config.
const valueBytesMax = 8 << 10

// Config is one generation, its text checked against its digest.
type Config struct {
	*fleetv1.Current
	Text []byte
}

// Source of a machine's config.
func (c *Config) Source(cluster string) config.Source {
	return config.Source{Name: fmt.Sprintf("etcd:/guideway/%s/config/%d", cluster, c.GetGeneration()), Data: c.Text, Generation: c.GetGeneration()}
}

// Seen is `current` at one moment, and what is written with it: a candidate or a
// canary never comes or goes without `current` being put anew, so that its watchers
// and its next writer notice.
type Seen struct {
	// nil: there is none.
	Current *fleetv1.Current
	// nil: there is none.
	Candidate *fleetv1.Candidate
	Canary    *fleetv1.Canary
	// At which the candidate was offered.
	CandidateRevision int64
	// 0: there is none.
	modRevision int64
	// Of etcd then.
	clusterID uint64
	revision  int64
}

// ErrChanged: `current` is not any more what it was when the base was read.
var ErrChanged = errors.New("another config was applied in the meantime: see the changes again by `guideway config plan`")

// ErrUnknown: etcd does not have that generation.
var ErrUnknown = errors.New("etcd has no config of that number")

// See reads `current`, from etcd's quorum.
func (s *Store) See(ctx context.Context) (Seen, error) {
	client, err := s.client()
	if err != nil {
		return Seen{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := client.Txn(ctx).Then(clientv3.OpGet(s.keys.current()), clientv3.OpGet(s.keys.candidate()), clientv3.OpGet(s.keys.canary())).Commit()
	if err != nil {
		return Seen{}, s.explain(err)
	}
	seen := Seen{clusterID: answer.Header.ClusterId, revision: answer.Header.Revision}
	current, candidate, canary := &fleetv1.Current{}, &fleetv1.Candidate{}, &fleetv1.Canary{}
	for i, into := range []proto.Message{current, candidate, canary} {
		found := answer.Responses[i].GetResponseRange().Kvs
		if len(found) == 0 {
			continue
		}
		if err := s.decode(string(found[0].Key), found[0].Value, into); err != nil {
			return seen, err
		}
		switch into {
		case current:
			seen.Current, seen.modRevision = current, found[0].ModRevision
		case candidate:
			seen.Candidate, seen.CandidateRevision = candidate, found[0].ModRevision
		case canary:
			seen.Canary = canary
		}
	}
	return seen, nil
}

// For a machine: the config that it is to run. One that runs the canary's already
// is known by that, where its name is not yet.
func (s Seen) For(machine string, running *fleetv1.Current) *fleetv1.Current {
	if config := s.Canary.GetConfig(); config.GetGeneration() > s.Current.GetGeneration() && (s.Canary.GetMachine() == machine || isSame(config, running)) {
		return config
	}
	return s.Current
}

// decode what a machine of this or a later version wrote, or who else may write there.
func (s *Store) decode(key string, value []byte, into proto.Message) error {
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(value, into); err != nil {
		return fmt.Errorf("etcd's key %s: %w", outside.Text(key), outside.Error(err))
	}
	outside.Message(into, valueBytesMax)
	return nil
}

// Fetch the text of a generation.
func (s *Store) Fetch(ctx context.Context, of *fleetv1.Current) (*Config, error) {
	if of.GetParts() > partsMax {
		return nil, fmt.Errorf("config %d in etcd has %d parts, and at most %d are possible", of.GetGeneration(), of.GetParts(), partsMax)
	}
	var parts [][]byte
	for i := range int(of.GetParts()) {
		part, err := s.get(ctx, s.keys.part(of.GetGeneration(), i))
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
	}
	text, err := join(parts, of.GetDigest())
	if err != nil {
		return nil, fmt.Errorf("config %d in etcd is damaged: %w", of.GetGeneration(), err)
	}
	return &Config{Current: of, Text: text}, nil
}

func (s *Store) get(ctx context.Context, key string) ([]byte, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := client.Get(ctx, key)
	if err != nil {
		return nil, s.explain(err)
	}
	if len(answer.Kvs) == 0 {
		return nil, fmt.Errorf("%w: it has no key %s", ErrUnknown, key)
	}
	return answer.Kvs[0].Value, nil
}

// Record of a generation that came to be `current` once.
func (s *Store) Record(ctx context.Context, generation uint64) (*fleetv1.ConfigRecord, error) {
	key := s.keys.record(generation)
	value, err := s.get(ctx, key)
	if err != nil {
		return nil, err
	}
	record := &fleetv1.ConfigRecord{}
	return record, s.decode(key, value, record)
}

// Records of all that are kept, the latest first.
func (s *Store) Records(ctx context.Context) ([]*fleetv1.ConfigRecord, error) {
	stored, err := s.generations(ctx)
	if err != nil {
		return nil, err
	}
	var records []*fleetv1.ConfigRecord
	for _, generation := range slices.Backward(slices.Sorted(maps.Keys(stored))) {
		if !stored[generation] {
			continue // its parts are there, and it never became current
		}
		record, err := s.Record(ctx, generation)
		if errors.Is(err, ErrUnknown) {
			continue // removed in the meantime, as the oldest
		}
		if err != nil {
			return nil, err
		}
		records = append(records, record)
	}
	return records, nil
}

// generations that have keys; true: with a record.
func (s *Store) generations(ctx context.Context) (map[uint64]bool, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := client.Get(ctx, s.keys.configs(), clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, s.explain(err)
	}
	found := map[uint64]bool{}
	for _, kv := range answer.Kvs {
		if generation, isRecord, ok := s.keys.generationOf(string(kv.Key)); ok {
			found[generation] = found[generation] || isRecord
		}
	}
	return found, nil
}

// Publish a config for all machines: as the next generation after what was seen,
// and above one that runs somewhere. Of record, where it came from is used.
// ErrChanged: `current` is not what was seen.
func (s *Store) Publish(ctx context.Context, seen Seen, above uint64, record *fleetv1.ConfigRecord, text []byte) (*Config, error) {
	stored, err := s.StoreText(ctx, seen, above, text)
	if err != nil {
		return nil, err
	}
	return stored, s.Commit(ctx, seen, stored, record)
}

// StoreText as the next generation, which no machine is to run yet.
func (s *Store) StoreText(ctx context.Context, seen Seen, above uint64, text []byte) (*Config, error) {
	if len(text) > config.FilesBytesMax {
		return nil, fmt.Errorf("the config has more than %d MiB, the limit", config.FilesBytesMax>>20)
	}
	parts, err := split(text)
	if err != nil {
		return nil, err
	}
	generation, err := s.claim(ctx, nextGeneration(above, seen), parts[0])
	if err != nil {
		return nil, err
	}
	for i, part := range parts[1:] {
		if err := s.put(ctx, s.keys.part(generation, i+1), part); err != nil {
			return nil, err
		}
	}
	return &Config{Current: &fleetv1.Current{Generation: generation, Digest: digestOf(text), Parts: uint32(len(parts))}, Text: text}, nil
}

// nextGeneration after those that steps lead to from one that runs.
func nextGeneration(running uint64, seen Seen) uint64 {
	latest := running
	for _, stored := range []uint64{seen.Current.GetGeneration(), seen.Canary.GetConfig().GetGeneration()} {
		if !buckets.IsJump(running, stored) {
			latest = max(latest, stored)
		}
	}
	return latest + 1
}

// Commit a config whose text is stored: every machine is to run it, or that which
// the record names as canary. Candidate and canary of before are gone then.
func (s *Store) Commit(ctx context.Context, seen Seen, stored *Config, record *fleetv1.ConfigRecord) error {
	record.Generation, record.Digest, record.Parts, record.Bytes = stored.Generation, stored.Digest, stored.Parts, uint64(len(stored.Text))
	record.Time = timestamppb.New(time.Now())
	err := s.commit(ctx, seen, stored.Current, record)
	if err != nil && record.Canary == "" && s.isCurrent(ctx, stored.Current, err) {
		return nil
	}
	return err
}

// claim the lowest generation from the given one on that has no parts yet, by
// storing the first part: what a controller that died left behind stays apart,
// and so does what another stores at this moment.
func (s *Store) claim(ctx context.Context, generation uint64, part []byte) (uint64, error) {
	client, err := s.client()
	if err != nil {
		return 0, err
	}
	for {
		key := s.keys.part(generation, 0)
		claimed, err := s.transact(ctx, client, clientv3.Compare(clientv3.CreateRevision(key), "=", 0), clientv3.OpPut(key, string(part)))
		if err != nil || claimed {
			return generation, err
		}
		generation++
	}
}

func (s *Store) put(ctx context.Context, key string, value []byte) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = client.Put(ctx, key, string(value))
	return s.explain(err)
}

func (s *Store) commit(ctx context.Context, seen Seen, current *fleetv1.Current, record *fleetv1.ConfigRecord) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	next, canary := current, clientv3.OpDelete(s.keys.canary())
	if record.Canary != "" {
		next = seen.Current
		if canary, err = opPut(s.keys.canary(), &fleetv1.Canary{Config: current, Machine: record.Canary, User: record.User, Time: record.Time}); err != nil {
			return err
		}
	}
	putCurrent, err := opPut(s.keys.current(), next)
	if err != nil {
		return err
	}
	putRecord, err := opPut(s.keys.record(current.Generation), record)
	if err != nil {
		return err
	}
	committed, err := s.transact(ctx, client, s.unchanged(seen), putRecord, putCurrent, canary, clientv3.OpDelete(s.keys.candidate()))
	if err == nil && !committed {
		err = ErrChanged
	}
	return err
}

func (s *Store) unchanged(seen Seen) clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(s.keys.current()), "=", seen.modRevision)
}

func opPut(key string, value proto.Message, options ...clientv3.OpOption) (clientv3.Op, error) {
	encoded, err := protojson.Marshal(value)
	if err != nil {
		return clientv3.Op{}, fmt.Errorf("store %s: %w", key, err)
	}
	return clientv3.OpPut(key, string(encoded), options...), nil
}

// isCurrent: a commit that ended without an answer may have been made.
func (s *Store) isCurrent(ctx context.Context, current *fleetv1.Current, failed error) bool {
	if errors.Is(failed, ErrChanged) {
		return false
	}
	seen, err := s.See(ctx)
	return err == nil && proto.Equal(seen.Current, current)
}

// transact returns whether the condition held, and so the operations were done.
func (s *Store) transact(ctx context.Context, client *clientv3.Client, condition clientv3.Cmp, operations ...clientv3.Op) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := client.Txn(ctx).If(condition).Then(operations...).Commit()
	if err != nil {
		return false, s.explain(err)
	}
	return answer.Succeeded, nil
}

// ForgetOldest removes all but the latest configs, and what never became one.
func (s *Store) ForgetOldest(ctx context.Context) error {
	seen, err := s.See(ctx)
	if err != nil {
		return err
	}
	stored, err := s.generations(ctx)
	if err != nil {
		return err
	}
	kept := 0
	for _, generation := range slices.Backward(slices.Sorted(maps.Keys(stored))) {
		if generation > seen.Current.GetGeneration() {
			continue // on its way: what is older than `current` cannot be committed any more
		}
		if stored[generation] && kept < recordsMax {
			kept++
			continue
		}
		if err := s.Remove(ctx, generation); err != nil {
			return err
		}
	}
	return nil
}

// Remove a generation that no machine runs.
func (s *Store) Remove(ctx context.Context, generation uint64) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = client.Delete(ctx, s.keys.config(generation), clientv3.WithPrefix())
	return s.explain(err)
}
