package buckets

// A bucket map as stored on disk and in etcd.

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// Marshal the map of a service.
func (m *Map) Marshal(service string) ([]byte, error) {
	stored := &fleetv1.BucketMap{Service: service, Generation: m.Generation, Unserved: m.Unserved, MadeOf: m.MadeOf}
	index := map[string]uint32{}
	for at, name := range m.Backends() {
		index[name] = uint32(at)
		backend := &fleetv1.BucketBackend{Name: name}
		if address, isKnown := m.Addresses[name]; isKnown && address.IsValid() {
			backend.Address = address.String()
		}
		stored.Backends = append(stored.Backends, backend)
	}
	for bucket := range m.Buckets {
		b := &m.Buckets[bucket]
		if b.Owner == "" {
			break // none has one: no backend was ever there
		}
		stored.ByBucket = append(stored.ByBucket, index[b.Owner])
		if b.chain() > 0 {
			stored.Moves = append(stored.Moves, storedMove(uint32(bucket), b, index))
		}
	}
	for _, generation := range slices.Sorted(maps.Keys(m.Steps)) {
		step := &fleetv1.BucketStep{Generation: generation, At: timestamppb.New(m.Steps[generation].At)}
		if acknowledgedAt := m.Steps[generation].AcknowledgedAt; !acknowledgedAt.IsZero() {
			step.AcknowledgedAt = timestamppb.New(acknowledgedAt)
		}
		stored.Steps = append(stored.Steps, step)
	}
	return protojson.Marshal(stored)
}

func storedMove(bucket uint32, b *Bucket, index map[string]uint32) *fleetv1.BucketMove {
	move := &fleetv1.BucketMove{Bucket: bucket}
	if b.Next != "" {
		next := index[b.Next]
		move.Next = &next
	}
	for _, e := range b.Earlier {
		move.Earlier = append(move.Earlier, &fleetv1.EarlierBackend{Backend: index[e.Backend], Generation: e.Generation})
	}
	return move
}

// Unmarshal what Marshal wrote; anything else is an error.
func Unmarshal(data []byte) (service string, m *Map, err error) {
	var stored fleetv1.BucketMap
	if err := protojson.Unmarshal(data, &stored); err != nil {
		return "", nil, err
	}
	r := reader{stored: &stored, m: &Map{Generation: stored.Generation, Unserved: stored.Unserved, MadeOf: stored.MadeOf, Addresses: map[string]netip.Addr{}}}
	if err := errors.Join(r.backends(), r.steps()); err != nil {
		return "", nil, err
	}
	if err := r.buckets(); err != nil {
		return "", nil, err
	}
	for _, move := range stored.Moves {
		if err := r.move(move); err != nil {
			return "", nil, fmt.Errorf("move of bucket %d: %w", move.Bucket, err)
		}
	}
	return stored.Service, r.m, nil
}

type reader struct {
	stored *fleetv1.BucketMap
	m      *Map
}

func (r *reader) backends() error {
	if r.stored.Service == "" || r.stored.Generation == 0 {
		return errors.New("it names no service, or no generation")
	}
	if r.stored.Generation > GenerationMax || r.stored.MadeOf > r.stored.Generation {
		return fmt.Errorf("generation %d, made of %d, was not made by Guideway", r.stored.Generation, r.stored.MadeOf)
	}
	seen := map[string]bool{"": true}
	for _, backend := range r.stored.Backends {
		if seen[backend.Name] {
			return fmt.Errorf("backend %q is there twice, or has no name", backend.Name)
		}
		seen[backend.Name] = true
		if backend.Address == "" {
			continue
		}
		address, err := netip.ParseAddr(backend.Address)
		if err != nil {
			return fmt.Errorf("backend %s: %w", backend.Name, err)
		}
		r.m.Addresses[backend.Name] = address
	}
	return nil
}

func (r *reader) steps() error {
	for _, step := range r.stored.Steps {
		if step.At == nil {
			return fmt.Errorf("step %d has no time", step.Generation)
		}
		if step.Generation > r.m.Generation {
			return fmt.Errorf("step %d is after the map", step.Generation)
		}
		read := Step{At: step.At.AsTime()}
		if step.AcknowledgedAt != nil {
			read.AcknowledgedAt = step.AcknowledgedAt.AsTime()
		}
		if r.m.Steps == nil {
			r.m.Steps = map[uint64]Step{}
		}
		r.m.Steps[step.Generation] = read
	}
	return nil
}

func (r *reader) buckets() error {
	if count := uint32(len(r.stored.ByBucket)); count > 0 && !Valid(count) {
		return fmt.Errorf("%d buckets are not a power of two within %d to %d", count, Min, Max)
	}
	for bucket, owner := range r.stored.ByBucket {
		name, err := r.name(owner)
		if err != nil {
			return fmt.Errorf("bucket %d: %w", bucket, err)
		}
		r.m.Buckets = append(r.m.Buckets, Bucket{Owner: name})
	}
	return nil
}

func (r *reader) move(move *fleetv1.BucketMove) (err error) {
	if int(move.Bucket) >= len(r.m.Buckets) {
		return fmt.Errorf("there are %d buckets", len(r.m.Buckets))
	}
	b := &r.m.Buckets[move.Bucket]
	if b.chain() > 0 {
		return errors.New("it is there twice")
	}
	if move.Next != nil {
		if b.Next, err = r.name(*move.Next); err != nil {
			return err
		}
	}
	seen := map[string]bool{b.Owner: true}
	for _, stored := range move.Earlier {
		name, err := r.name(stored.Backend)
		if err != nil {
			return err
		}
		if _, isThere := r.m.Steps[stored.Generation]; !isThere || seen[name] {
			return fmt.Errorf("%s left it by map %d, of which there is no step, or is there twice", name, stored.Generation)
		}
		seen[name] = true
		b.Earlier = append(b.Earlier, Earlier{name, stored.Generation})
	}
	if b.Next == b.Owner || b.chain() > ChainMax {
		return fmt.Errorf("it names %d backends, or the one in charge", b.chain())
	}
	return nil
}

func (r *reader) name(index uint32) (string, error) {
	if int(index) >= len(r.stored.Backends) {
		return "", fmt.Errorf("%d is no index of the %d backends", index, len(r.stored.Backends))
	}
	return r.stored.Backends[index].Name, nil
}
