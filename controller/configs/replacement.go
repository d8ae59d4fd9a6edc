package configs

// Replacing the config's file as a whole: by the CLI or the controller, with their rights.

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/guideway/guideway/controller/statedir"
)

// Replacement of a file by another of its name, with its owner and mode.
type Replacement struct {
	Path           string
	former, latter []byte
	info           os.FileInfo
}

// ReplaceFile if it still holds what the digest says.
func ReplaceFile(path, digest string, data []byte) (*Replacement, error) {
	former, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the config file: %w", err)
	}
	if sum := sha256.Sum256(former); hex.EncodeToString(sum[:]) != digest {
		return nil, fmt.Errorf("%s was edited since it was loaded: it is not overwritten", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the config file: %w", err)
	}
	r := &Replacement{Path: path, former: former, latter: data, info: info}
	return r, r.write(data)
}

// PutBack the former content, unless the file was edited since.
func (r *Replacement) PutBack() error {
	now, err := os.ReadFile(r.Path)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, r.latter) {
		return fmt.Errorf("%s was edited meanwhile", r.Path)
	}
	return r.write(r.former)
}

// write as a whole: a crash leaves one or the other, and both are complete.
func (r *Replacement) write(data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(r.Path), "."+filepath.Base(r.Path)+"-*")
	if err != nil {
		return fmt.Errorf("write the config file %s: %w", r.Path, statedir.Cause(err))
	}
	defer os.Remove(file.Name()) // gone after the rename
	_, err = file.Write(data)
	err = errors.Join(err, r.sameOwner(file), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), r.Path)
	}
	if err == nil {
		err = syncDirectory(filepath.Dir(r.Path))
	}
	if err != nil {
		return fmt.Errorf("write the config file %s: %w", r.Path, statedir.Cause(err))
	}
	return nil
}

// sameOwner and mode; the mode comes last, because chown takes bits of it.
func (r *Replacement) sameOwner(file *os.File) error {
	uid, gid := ownerOf(r.info)
	if err := file.Chown(uid, gid); err != nil {
		return err
	}
	return file.Chmod(r.info.Mode().Perm())
}

// ownerOf a file; -1, which changes nothing, where it has none.
func ownerOf(info os.FileInfo) (uid, gid int) {
	if owner, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(owner.Uid), int(owner.Gid)
	}
	return -1, -1
}

func syncDirectory(path string) error {
	directory, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(directory.Sync(), directory.Close())
}
