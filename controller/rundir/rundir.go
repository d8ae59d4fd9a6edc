// Package rundir handles the run directory, for all processes of a machine: one process of
// each kind, and its sockets.
package rundir

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Groups whose members may use the sockets of all processes without being root.
const (
	ViewGroup    = "guideway-view"
	OperateGroup = "guideway-operate"
)

// Lock a directory for one process of this kind; it is made if need be. The
// kernel gives a lock back when its process ends, however it ends: so a lock
// that is held means a process that lives.
func Lock(process, dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory for sockets %s: %w: create it for this user, or name another by --run-dir", dir, err)
	}
	path := filepath.Join(dir, process+".lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock %s: %w", path, err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := os.ReadFile(path)
		file.Close()
		return nil, fmt.Errorf("another %s runs in %s (process %s): stop it, or give this one its own --run-dir",
			process, dir, strings.TrimSpace(string(holder)))
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	err = errors.Join(file.Truncate(0), writeAt0(file, strconv.Itoa(os.Getpid())+"\n"))
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("write the lock %s: %w", path, err)
	}
	return file, nil
}

func writeAt0(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

// sun_path has 108 bytes, the last one zero (unix(7)).
const socketPathMax = 107

// Listen on a socket in a directory that is locked, for its owner and for the
// group's members; it accepts Conns, a bounded number at a time. notShared says why it is for its owner only: no such group
// (the lab, a first try), or not ours to give.
func Listen(path, group string) (listener net.Listener, notShared string, err error) {
	if len(path) > socketPathMax {
		return nil, "", fmt.Errorf("listen on %s: a socket's path has at most %d bytes, this one has %d: give a shorter --run-dir", path, socketPathMax, len(path))
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, "", fmt.Errorf("%s is there and is no socket: move it away", path)
		}
		if err := os.Remove(path); err != nil { // stale: we hold the lock
			return nil, "", fmt.Errorf("remove the stale socket: %w", err)
		}
	}
	// Without the umask others could connect between bind and chmod.
	former := syscall.Umask(0o177)
	listener, err = net.Listen("unix", path)
	syscall.Umask(former)
	if err != nil {
		return nil, "", fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := share(path, group); err != nil {
		notShared = fmt.Sprintf("%s is for its owner only: %v", path, err)
	}
	return &clients{Listener: listener}, notShared, nil
}

// share lets the group's members connect. The mode comes last: before that the
// group is another.
func share(path, name string) error {
	group, err := user.LookupGroup(name)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(group.Gid)
	if err != nil {
		return fmt.Errorf("group %s has the id %q", name, group.Gid)
	}
	if err := os.Chown(path, -1, gid); err != nil {
		return fmt.Errorf("%w: make the process's user a member of %s (`make install` does)", err, name)
	}
	return os.Chmod(path, 0o660)
}
