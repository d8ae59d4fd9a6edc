package store

// Bucket maps of stateless services: a file each, in bucket-maps/.

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/statedir"
)

const (
	bucketMapsDir = "bucket-maps"
	withdrawnFile = "withdrawn.json"
)

// Withdrawn: etcd may say that this machine gets no packets.
type Withdrawn struct {
	Withdrawn bool `json:"withdrawn"`
}

// Withdrawn as it was kept last.
func (s Store) Withdrawn() (Withdrawn, error) {
	var kept Withdrawn
	err := s.read(withdrawnFile, &kept)
	return kept, err
}

// SetWithdrawn for the next start.
func (s Store) SetWithdrawn(kept Withdrawn) Write { return s.write(withdrawnFile, kept) }

// BucketMaps by service, and why others cannot be used.
func (s Store) BucketMaps() (maps map[string]*buckets.Map, problems []error) {
	maps = map[string]*buckets.Map{}
	dir := filepath.Join(s.Dir, bucketMapsDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return maps, []error{err}
	}
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".json" {
			continue // half-written
		}
		path := filepath.Join(dir, entry.Name())
		data, err := os.ReadFile(path)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		service, m, err := buckets.Unmarshal(data)
		if err == nil && bucketMapFile(service) != entry.Name() {
			err = fmt.Errorf("it is of service %s", service)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", path, err))
			continue
		}
		maps[service] = m
	}
	return maps, problems
}

// SetBucketMap of a service; nil: it has none any more.
func (s Store) SetBucketMap(service string, m *buckets.Map) Write {
	dir := filepath.Join(s.Dir, bucketMapsDir)
	if m == nil {
		return func() error {
			err := os.Remove(filepath.Join(dir, bucketMapFile(service)))
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
	}
	data, err := m.Marshal(service)
	if err != nil {
		return failing(err)
	}
	return func() error {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		return statedir.Write(dir, bucketMapFile(service), data)
	}
}

func bucketMapFile(service string) string { return url.PathEscape(service) + ".json" }
