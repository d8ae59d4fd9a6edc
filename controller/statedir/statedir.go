// Package statedir writes what outlives a restart.
package statedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Write replaces a file as a whole, so that a crash leaves the old or the new
// one. 0600: it may say more than everybody should know.
func Write(dir, name string, data []byte) error {
	temporary, err := os.CreateTemp(dir, "."+name+"-*") // made with 0600
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	defer os.Remove(temporary.Name()) // gone after the rename
	_, err = temporary.Write(data)
	err = errors.Join(err, temporary.Sync(), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return fmt.Errorf("keep %s: %w", name, err)
	}
	return nil
}
