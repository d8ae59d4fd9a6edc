package run

// What outlives the controller, in the state directory: the last good config
// and the drains by command. The directory is its own; the forwarder's last
// plan, beside it, is the forwarder's.

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
)

type stateStore struct{ dir string }

// keptSource is a config.Source on disk. Names are absolute, because relative
// paths inside a config start at its file's directory.
type keptSource struct {
	Name string `json:"name"`
	Data string `json:"data"`
	// Of what came from etcd.
	Generation uint64 `json:"generation,omitempty"`
}

// drains by command.
type drains struct {
	Machine  bool     `json:"machine"`
	Services []string `json:"services,omitempty"`
	Backends []string `json:"backends"`
	// Of all machines, as etcd held them last.
	Fleet []fleet.Drained `json:"fleet,omitempty"`
}

func (s stateStore) prepare() error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make the state directory %s: %w: create it, or name another by --state-dir", s.dir, err)
	}
	return nil
}

// lastGood returns nothing if no config was ever good.
func (s stateStore) lastGood() ([]config.Source, error) {
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

func (s stateStore) setLastGood(sources []config.Source) error {
	var kept []keptSource
	for _, s := range sources {
		name := s.Name
		if s.Generation == 0 {
			absolute, err := filepath.Abs(name)
			if err != nil {
				return fmt.Errorf("keep config %s: %w", name, err)
			}
			name = absolute
		}
		kept = append(kept, keptSource{Name: name, Data: string(s.Data), Generation: s.Generation})
	}
	return s.write(lastGoodFile, kept)
}

func (s stateStore) drains() (drains, error) {
	var d drains
	return d, s.read(drainsFile, &d)
}

func (s stateStore) setDrains(d drains) error { return s.write(drainsFile, d) }

// read leaves value alone if there is no such file.
func (s stateStore) read(name string, value any) error {
	path := filepath.Join(s.dir, name)
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

func (s stateStore) write(name string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	return statedir.Write(s.dir, name, append(data, '\n'))
}
