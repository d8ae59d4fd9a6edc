package fleet

// Converts the values of bucket maps' keys to and from the types of package agreement.

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/guideway/guideway/controller/agreement"
	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/outside"
	fleetv1 "github.com/guideway/guideway/proto/guideway/fleet/v1"
)

// isRefusal: etcd has the request and will not do it, however often it is made.
func isRefusal(err error) bool {
	known := rpctypes.Error(err)
	return errors.Is(known, rpctypes.ErrPermissionDenied) || errors.Is(known, rpctypes.ErrNoSpace) || errors.Is(known, rpctypes.ErrRequestTooLarge)
}

func parseMap(service string, value []byte) (*buckets.Map, error) {
	named, m, err := buckets.Unmarshal(value)
	if err == nil && named != service {
		err = fmt.Errorf("it is of service %s", named)
	}
	if err == nil && m.MadeOf != 0 {
		err = errors.New("it was made by one machine alone, and such a map is not shared")
	}
	return m, outside.Error(err)
}

func mapOf(value any) *buckets.Map {
	m, _ := value.(*buckets.Map)
	return m
}

func encodeTold(told agreement.Told) *fleetv1.Acknowledgements {
	return &fleetv1.Acknowledgements{Shard: told.Shard, Maps: told.Maps, Withdrawn: told.Withdrawn, Drained: told.Drained, Number: told.Number}
}

func (s *Store) parseTold(key string, value []byte) (agreement.Told, error) {
	var read fleetv1.Acknowledgements
	err := s.decode(key, value, &read)
	return agreement.Told{Shard: read.Shard, Maps: read.Maps, Withdrawn: read.Withdrawn, Drained: read.Drained, Number: read.Number}, err
}

func encodeVerdicts(verdicts agreement.Verdicts) *fleetv1.Verdicts {
	encoded := &fleetv1.Verdicts{Groups: map[string]*fleetv1.GroupVerdicts{}}
	for group, votes := range verdicts {
		of := &fleetv1.GroupVerdicts{}
		for _, backend := range slices.Sorted(maps.Keys(votes)) {
			switch votes[backend] {
			case agreement.TakesNew:
				of.TakesNew = append(of.TakesNew, backend)
			case agreement.Keeps:
				of.Keeps = append(of.Keeps, backend)
			case agreement.Down:
				of.Down = append(of.Down, backend)
			}
		}
		encoded.Groups[group] = of
	}
	return encoded
}

func (s *Store) parseVerdicts(key string, value []byte) (agreement.Verdicts, error) {
	var read fleetv1.Verdicts
	err := s.decode(key, value, &read)
	verdicts := agreement.Verdicts{}
	for group, of := range read.Groups {
		votes := map[string]agreement.Vote{}
		for vote, backends := range map[agreement.Vote][]string{agreement.TakesNew: of.TakesNew, agreement.Keeps: of.Keeps, agreement.Down: of.Down} {
			for _, backend := range backends {
				votes[backend] = vote
			}
		}
		verdicts[group] = votes
	}
	return verdicts, err
}
