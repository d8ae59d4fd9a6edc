// Package store keeps the controller's data that must survive a restart, in the state
// directory: the last good config, the drains by command, bucket maps, members of pools. The
// directory is the controller's own; the forwarder's last plan, next to it, is the
// forwarder's.
package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/sinks/fleet"
	"github.com/guideway/guideway/controller/statedir"
)

const (
	lastGoodFile = "config-last-good.json"
	drainsFile   = "drains.json"
	membersFile  = "members.json"
)

// Store is a state directory.
type Store struct{ Dir string }

// Write a value as it was when the Write was made. It may be called from any goroutine, and
// more than once.
type Write func() error

// keptSource is a config.Source on disk. Names are absolute, because relative
// paths inside a config start at its file's directory.
type keptSource struct {
	Name string `json:"name"`
	Data string `json:"data"`
	// Of what came from etcd.
	Generation uint64 `json:"generation,omitempty"`
}

// Drains by command.
type Drains struct {
	Machine  bool     `json:"machine"`
	Services []string `json:"services,omitempty"`
	Backends []string `json:"backends"`
	// Of all machines, as etcd held them last, or peers told of them.
	Fleet []fleet.Drained `json:"fleet,omitempty"`
	// Without etcd: how that came.
	Changes fleet.Changes `json:"changes,omitempty"`
}

// Prepare makes the directory.
func (s Store) Prepare() error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("make the state directory %s: %w: create it, or name another by --state-dir", s.Dir, err)
	}
	return nil
}

// LastGood returns nothing if no config was ever good.
func (s Store) LastGood() ([]config.Source, error) {
	var kept []keptSource
	if err := s.read(lastGoodFile, &kept); err != nil {
		return nil, err
	}
	var sources []config.Source
	for _, s := range kept {
		sources = append(sources, config.Source{Name: s.Name, Data: []byte(s.Data), Generation: s.Generation})
	}
	return sources, nil
}

// SetLastGood to what the forwarder has accepted.
func (s Store) SetLastGood(sources []config.Source) Write {
	var kept []keptSource
	for _, s := range sources {
		name := s.Name
		if s.Generation == 0 {
			absolute, err := filepath.Abs(name)
			if err != nil {
				return failing(fmt.Errorf("keep config %s: %w", name, err))
			}
			name = absolute
		}
		kept = append(kept, keptSource{Name: name, Data: string(s.Data), Generation: s.Generation})
	}
	return s.write(lastGoodFile, kept)
}

// Drains as they were kept last.
func (s Store) Drains() (Drains, error) {
	var d Drains
	err := s.read(drainsFile, &d)
	return d, err
}

// SetDrains for the next start.
func (s Store) SetDrains(d Drains) Write { return s.write(drainsFile, d) }

// Members of pools that have a source, as they were kept last.
func (s Store) Members() (map[string]config.MemberSet, error) {
	var pools map[string]config.MemberSet
	err := s.read(membersFile, &pools)
	return pools, err
}

// SetMembers for the next start.
func (s Store) SetMembers(pools map[string]config.MemberSet) Write {
	return s.write(membersFile, pools)
}

// read leaves value alone if there is no such file.
func (s Store) read(name string, value any) error {
	path := filepath.Join(s.Dir, name)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read kept state: %w", err)
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("read kept state %s: %w: remove the file to go on without it", path, err)
	}
	return nil
}

func (s Store) write(name string, value any) Write {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return failing(fmt.Errorf("keep %s: %w", name, err))
	}
	data = append(data, '\n')
	return func() error { return statedir.Write(s.Dir, name, data) }
}

func failing(err error) Write { return func() error { return err } }
