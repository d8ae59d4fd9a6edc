package configs

// Replaces the config file as a whole, with the rights of the CLI or of the controller. The
// directory may belong to a user who is trusted less than the caller, so no link on the
// path to the file is followed, and all operations use the directory's descriptor.

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/statedir"
)

// Replacement of a file by another of its name, with its owner and mode.
type Replacement struct {
	Path           string
	Former, latter []byte
	info           unix.Stat_t
}

// NewReplacement is refused unless the path names a regular file that still holds what the
// digest says. Nothing is written before Write.
func NewReplacement(path, digest string, data []byte) (*Replacement, error) {
	r := &Replacement{Path: path, latter: data}
	directory, err := r.openDirectory()
	if err != nil {
		return nil, err
	}
	defer directory.Close()
	if r.Former, r.info, err = r.read(directory); err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(r.Former); hex.EncodeToString(sum[:]) != digest {
		return nil, fmt.Errorf("%s was edited since it was loaded: it is not overwritten", path)
	}
	return r, nil
}

// Write the new content, unless the file was edited since it was read.
func (r *Replacement) Write() error { return r.replace(r.Former, r.latter) }

// PutAside the former content, an edit that never ran, in a file of its own beside it.
func (r *Replacement) PutAside() (path string, err error) {
	directory, err := r.openDirectory()
	if err != nil {
		return "", err
	}
	defer directory.Close()
	name := filepath.Base(r.Path) + time.Now().UTC().Format(".edited-20060102T150405Z")
	if err := r.write(directory, name, r.Former); err != nil {
		return "", fmt.Errorf("put the edit of %s aside: %w", r.Path, statedir.Cause(err))
	}
	return filepath.Join(filepath.Dir(r.Path), name), nil
}

// ChangesNothing: the file holds already what it is to hold.
func (r *Replacement) ChangesNothing() bool { return bytes.Equal(r.Former, r.latter) }

// PutBack the former content, unless the file was edited since.
func (r *Replacement) PutBack() error { return r.replace(r.latter, r.Former) }

func (r *Replacement) replace(expected, data []byte) error {
	directory, err := r.openDirectory()
	if err != nil {
		return err
	}
	defer directory.Close()
	now, _, err := r.read(directory)
	if err != nil {
		return err
	}
	if !bytes.Equal(now, expected) {
		return fmt.Errorf("%s was edited meanwhile", r.Path)
	}
	if err := r.write(directory, filepath.Base(r.Path), data); err != nil {
		return fmt.Errorf("write the config file %s: %w", r.Path, statedir.Cause(err))
	}
	return nil
}

func (r *Replacement) openDirectory() (*os.File, error) {
	name := filepath.Dir(r.Path)
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("the config file %s: its directory is reached by a symbolic link, and none is followed: name the file without links", r.Path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the directory of the config file %s: %w", r.Path, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// read a regular file, without waiting for anything else.
func (r *Replacement) read(directory *os.File) (data []byte, info unix.Stat_t, err error) {
	fd, err := unix.Openat(int(directory.Fd()), filepath.Base(r.Path), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, info, fmt.Errorf("the config file %s is a symbolic link, and none is followed: name the file that it leads to", r.Path)
	}
	if err != nil {
		return nil, info, fmt.Errorf("read the config file %s: %w", r.Path, err)
	}
	file := os.NewFile(uintptr(fd), r.Path)
	defer file.Close()
	if err = unix.Fstat(fd, &info); err == nil {
		if info.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil, info, fmt.Errorf("the config file %s is not a regular file", r.Path)
		}
		data, err = io.ReadAll(io.LimitReader(file, config.FilesBytesMax)) // what is cut has another digest
	}
	if err != nil {
		return nil, info, fmt.Errorf("read the config file %s: %w", r.Path, statedir.Cause(err))
	}
	return data, info, nil
}

// write as a whole: a crash leaves one or the other, and both are complete.
func (r *Replacement) write(directory *os.File, name string, data []byte) error {
	at := int(directory.Fd())
	temporary := "." + name + "-" + rand.Text()
	fd, err := unix.Openat(at, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), temporary)
	_, err = file.Write(data)
	err = errors.Join(err, r.sameOwner(file), file.Sync(), file.Close())
	if err == nil {
		err = unix.Renameat(at, temporary, at, name)
	}
	if err != nil {
		return errors.Join(err, unix.Unlinkat(at, temporary, 0))
	}
	return directory.Sync()
}

// sameOwner and mode; the mode comes last, because chown takes bits of it.
func (r *Replacement) sameOwner(file *os.File) error {
	if err := file.Chown(int(r.info.Uid), int(r.info.Gid)); err != nil {
		return err
	}
	return file.Chmod(os.FileMode(r.info.Mode).Perm())
}
