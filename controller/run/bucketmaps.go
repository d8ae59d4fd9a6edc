package run

// Bucket maps of stateless services, kept in the state directory: a file each, in
// bucket-maps/. A map is written before the plan that has it is pushed, so that what
// is kept is never older than what the forwarder runs. That the other load balancers do
// not wait for this one is kept, too, before etcd has it: the maps here may be older
// than theirs by any number of steps then, also after a restart while etcd is away.

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/buckets"
	"github.com/guideway/guideway/controller/statedir"
)

const (
	bucketMapsDir = "bucket-maps"
	withdrawnFile = "withdrawn.json"
)

// withdrawn: etcd may say that this machine gets no packets.
type withdrawn struct {
	Withdrawn bool `json:"withdrawn"`
}

// restoreBucketMaps that can be read. Of another service the brain goes on from the
// plan that the forwarder runs.
func (c *Controller) restoreBucketMaps() {
	maps, problems := c.store.bucketMaps()
	for _, problem := range problems {
		c.log.Warn("a bucket map cannot be used; the service's buckets stay as in the forwarder's plan, and its open moves close by their age", "error", problem)
	}
	c.restoreWithdrawn()
	c.step(brain.BucketMapsKept{Maps: maps, Withdrawn: c.withdrawn})
}

func (c *Controller) restoreWithdrawn() {
	kept, err := c.store.withdrawn()
	if err != nil {
		c.log.Error("it cannot be read whether moves wait for this machine: stateless services are announced when etcd says so", "error", err)
		kept.Withdrawn = true
	}
	c.withdrawn = kept.Withdrawn
}

// keepWithdrawn before etcd has it.
func (c *Controller) keepWithdrawn(want brain.Desired) {
	if want.Withdrawn == c.withdrawn {
		return
	}
	c.withdrawn = want.Withdrawn
	if err := c.store.setWithdrawn(withdrawn{Withdrawn: want.Withdrawn}); err != nil {
		c.log.Error("whether moves wait for this machine is not kept: leave the controller running until etcd answers and the machine is not drained", "error", err)
	}
}

// keepBucketMaps of these services. What cannot be written is told: moves go on.
func (c *Controller) keepBucketMaps(want brain.Desired) {
	for _, service := range want.MapsChanged {
		if err := c.store.setBucketMap(service, want.Maps[service]); err != nil {
			c.log.Error("a bucket map is not kept: after a restart its open moves close by their age", "service", service, "error", err)
		}
	}
}

func (s stateStore) withdrawn() (withdrawn, error) {
	var kept withdrawn
	return kept, s.read(withdrawnFile, &kept)
}

func (s stateStore) setWithdrawn(kept withdrawn) error { return s.write(withdrawnFile, kept) }

func (s stateStore) bucketMaps() (maps map[string]*buckets.Map, problems []error) {
	maps = map[string]*buckets.Map{}
	dir := filepath.Join(s.dir, bucketMapsDir)
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

// setBucketMap of a service; nil: it has none any more.
func (s stateStore) setBucketMap(service string, m *buckets.Map) error {
	dir := filepath.Join(s.dir, bucketMapsDir)
	if m == nil {
		err := os.Remove(filepath.Join(dir, bucketMapFile(service)))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	data, err := m.Marshal(service)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return statedir.Write(dir, bucketMapFile(service), data)
}

func bucketMapFile(service string) string { return url.PathEscape(service) + ".json" }
