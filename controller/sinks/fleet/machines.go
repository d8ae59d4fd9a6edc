package fleet

// The machines of the cluster in etcd: all read them, and each writes its own.

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/outside"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// Machines that are registered, in order of name. One whose key cannot be read has
// its name and, as its reason, why.
func (s *Store) Machines(ctx context.Context) ([]*fleetv1.Machine, error) {
	client, err := s.client()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := client.Get(ctx, s.keys.machines(), clientv3.WithPrefix())
	if err != nil {
		return nil, s.explain(err)
	}
	machines := make([]*fleetv1.Machine, 0, len(answer.Kvs))
	for _, kv := range answer.Kvs {
		name := outside.Text(strings.TrimPrefix(string(kv.Key), s.keys.machines()))
		machine := &fleetv1.Machine{}
		if err := s.decode(string(kv.Key), kv.Value, machine); err != nil {
			machine = &fleetv1.Machine{State: "unreadable", Reason: err.Error()}
		}
		machine.Name = name
		machines = append(machines, machine)
	}
	return machines, nil
}

// register writes a machine's key by a lease. Another machine's key, of the same
// name and with other addresses, is left alone.
func (s *Store) register(ctx context.Context, by clientv3.LeaseID, machine *fleetv1.Machine) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	key := s.keys.machine(machine.Name)
	found, err := client.Get(ctx, key)
	if err != nil {
		return s.explain(err)
	}
	var revision int64
	if len(found.Kvs) > 0 {
		revision = found.Kvs[0].ModRevision
		former := &fleetv1.Machine{}
		// One that is damaged is replaced.
		if s.decode(key, found.Kvs[0].Value, former) == nil && len(former.Addresses) > 0 && !slices.Equal(former.Addresses, machine.Addresses) {
			return fmt.Errorf("another machine is registered as %s, with the addresses %s (here: %s): machine.name is to be another on each; if it is the former of this name, its key goes within %v",
				machine.Name, strings.Join(former.Addresses, ", "), strings.Join(machine.Addresses, ", "), leaseTTL)
		}
	}
	machine.Time = timestamppb.New(time.Now())
	value, err := protojson.Marshal(machine)
	if err != nil {
		return fmt.Errorf("register this machine: %w", err)
	}
	written, err := s.transact(ctx, client, clientv3.Compare(clientv3.ModRevision(key), "=", revision), clientv3.OpPut(key, string(value), clientv3.WithLease(by)))
	if err == nil && !written {
		err = fmt.Errorf("register this machine: its key %s is being written by another", key)
	}
	return err
}
