// Package statedir writes files that must survive a restart.
package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces a file as a whole, so that a crash leaves the old or the new
// one. 0600: it may say more than everybody should know.
func Write(dir, name string, data []byte) error {
	temporary, err := os.CreateTemp(dir, "."+name+"-*") // made with 0600
	if err != nil {
		return fmt.Errorf("keep %s: %w", filepath.Join(dir, name), Cause(err))
	}
	defer os.Remove(temporary.Name()) // gone after the rename
	_, err = temporary.Write(data)
	err = errors.Join(err, temporary.Sync(), temporary.Close())
	if err == nil {
		err = os.Rename(temporary.Name(), filepath.Join(dir, name))
	}
	if err != nil {
		return fmt.Errorf("keep %s: %w", filepath.Join(dir, name), Cause(err))
	}
	return nil
}

// Cause of an error about a temporary file, whose name is no use to people: what
// the system says, to be told of the file that was meant.
func Cause(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}
