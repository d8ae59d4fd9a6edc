package fleet

// Drains that all machines follow: one key for each drained backend or service. Like
// `current` they are watched, and also read every few seconds.

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/outside"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// Kind of what is drained.
type Kind string

// The kinds there are; others are a later version's.
const (
	KindBackend Kind = "backend"
	KindService Kind = "service"
)

// Drained on all machines.
type Drained struct {
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
}

func (d Drained) String() string { return string(d.Kind) + "/" + d.Name }

// Compare for sorting.
func (d Drained) Compare(other Drained) int {
	return cmp.Or(cmp.Compare(d.Kind, other.Kind), cmp.Compare(d.Name, other.Name))
}

// Drains at one moment.
type Drains struct {
	Drained []Drained
	// The config that is to run then; nil: etcd holds none, and what it says of
	// drains is not to be followed.
	Current *fleetv1.Current
	// Of etcd then.
	revision int64
}

// Drains that etcd holds, from its quorum.
func (s *Store) Drains(ctx context.Context) (Drains, error) {
	client, err := s.client()
	if err != nil {
		return Drains{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := client.Txn(ctx).Then(clientv3.OpGet(s.keys.current()), clientv3.OpGet(s.keys.drains(), clientv3.WithPrefix(), clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return Drains{}, s.explain(err)
	}
	drains := Drains{revision: answer.Header.Revision}
	for _, kv := range answer.Responses[0].GetResponseRange().Kvs {
		drains.Current = &fleetv1.Current{}
		if err := s.decode(string(kv.Key), kv.Value, drains.Current); err != nil {
			return Drains{}, err
		}
	}
	for _, kv := range answer.Responses[1].GetResponseRange().Kvs {
		kind, name, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), s.keys.drains()), "/")
		if drained := (Drained{Kind(kind), outside.Text(name)}); drained.Kind == KindBackend || drained.Kind == KindService {
			drains.Drained = append(drains.Drained, drained)
		}
	}
	return drains, nil
}

// Drain on all machines, by a controller of the machine named.
func (s *Store) Drain(ctx context.Context, what Drained, machine string) error {
	value, err := protojson.Marshal(&fleetv1.Drain{Machine: machine, Time: timestamppb.Now()})
	if err != nil {
		return fmt.Errorf("encode the drain of %s: %w", what, err)
	}
	client, err := s.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err = client.Put(ctx, s.keys.drain(what), string(value))
	return s.explain(err)
}

// Undrain on all machines; false: it was not drained on all.
func (s *Store) Undrain(ctx context.Context, what Drained) (bool, error) {
	client, err := s.client()
	if err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// One that may only read need not write where there is nothing to remove.
	found, err := client.Get(ctx, s.keys.drain(what), clientv3.WithKeysOnly())
	if err != nil || len(found.Kvs) == 0 {
		return false, s.explain(err)
	}
	_, err = client.Delete(ctx, s.keys.drain(what))
	return err == nil, s.explain(err)
}

// FollowDrains calls take with what etcd holds, every few seconds and when it has
// changed, until the context ends. An etcd that is away changes nothing.
func (s *Store) FollowDrains(ctx context.Context, log *slog.Logger, take func(Drains)) {
	for ctx.Err() == nil {
		drains, err := s.Drains(ctx)
		if err != nil {
			log.Debug("drains in etcd cannot be read: those that are known go on", "error", err)
			pause(ctx, readInterval)
			continue
		}
		take(drains)
		s.waitForDrains(ctx, drains.revision+1)
	}
}

// waitForDrains until a watch from that revision reports something, or ends, or the
// next reading is due.
func (s *Store) waitForDrains(ctx context.Context, revision int64) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), readInterval)
	defer cancel()
	client, err := s.client()
	if err != nil {
		<-ctx.Done()
		return
	}
	began := time.Now()
	<-client.Watch(ctx, s.keys.drains(), clientv3.WithPrefix(), clientv3.WithRev(revision))
	// One that ends at once must not become a loop.
	pause(ctx, watchPause-time.Since(began))
}
