package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/guideway/guideway/lab/topology"
)

// state is what a lab leaves on disk: enough to show it, to go on with it, and
// to remove it after a crash. It is written before and after each step.
type state struct {
	Options topology.Options
	// Owner is set by those who take the lab down themselves (demo, tests):
	// a lab whose owner is gone is a left-over.
	Owner *process `json:",omitempty"`
	// Processes in the order of their start.
	Processes []process
}

const stateFile = "lab.json"

// DefaultRunDir of an instance.
func DefaultRunDir(name string) string { return filepath.Join("/run/guideway-lab", name) }

func readState(runDir string) (state, error) {
	var s state
	path := filepath.Join(runDir, stateFile)
	content, err := os.ReadFile(path)
	if err != nil {
		return s, fmt.Errorf("read lab state: %w", err)
	}
	if err := json.Unmarshal(content, &s); err != nil {
		return s, fmt.Errorf("read lab state %s: %w", path, err)
	}
	return s, nil
}

// write replaces the file as a whole: a crash leaves the old or the new one.
func (s state) write() error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write lab state: %w", err)
	}
	return writeWhole(filepath.Join(s.Options.RunDir, stateFile), content, 0o600)
}

func writeWhole(path string, content []byte, mode os.FileMode) error {
	temporary := path + ".new"
	if err := os.WriteFile(temporary, content, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// exists, if anything of the instance is there: state or namespaces.
func exists(o topology.Options) (bool, error) {
	if _, err := os.Stat(filepath.Join(o.RunDir, stateFile)); err == nil {
		return true, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("look for lab state: %w", err)
	}
	namespaces, err := topology.ListNamespaces(o.Name)
	return len(namespaces) > 0, err
}
