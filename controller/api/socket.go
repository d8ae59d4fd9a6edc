package api

// The socket in the run directory: one controller per directory.

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

const (
	socketMode = 0o660
	// Members may talk to the controller without being root.
	socketGroup = "guideway"
)

// Socket is the listening socket and the lock that makes it ours.
type Socket struct {
	net.Listener
	lock *os.File
}

// Listen takes the run directory's controller.sock. A socket that a dead
// controller left behind is replaced; a living one is an error.
func Listen(runDir string) (*Socket, error) {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return nil, fmt.Errorf("make the run directory %s: %w: create it, or name another by --run-dir", runDir, err)
	}
	lock, err := takeLock(filepath.Join(runDir, "controller.lock"))
	if err != nil {
		return nil, err
	}
	path := filepath.Join(runDir, "controller.sock")
	listener, err := listen(path)
	if err != nil {
		lock.Close()
		return nil, err
	}
	giveToGroup(path)
	return &Socket{Listener: listener, lock: lock}, nil
}

// Close removes the socket and gives the lock back.
func (s *Socket) Close() error {
	return errors.Join(s.Listener.Close(), s.lock.Close())
}

// The kernel gives a lock back when its process ends, however it ends: so a
// lock that is held means a controller that lives.
func takeLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock %s: %w", path, err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		holder, _ := os.ReadFile(path)
		file.Close()
		return nil, fmt.Errorf("another controller runs in %s (process %s): stop it, or give this one its own --run-dir",
			filepath.Dir(path), strings.TrimSpace(string(holder)))
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

func listen(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is there and is no socket: move it away", path)
		}
		if err := os.Remove(path); err != nil { // stale: we hold the lock
			return nil, fmt.Errorf("remove the stale socket: %w", err)
		}
	}
	// Without the umask everybody could connect between bind and chmod.
	former := syscall.Umask(0o777 &^ socketMode)
	listener, err := net.Listen("unix", path)
	syscall.Umask(former)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	return listener, nil
}

// Where the group does not exist (the lab, a first try), root alone talks.
func giveToGroup(path string) {
	group, err := user.LookupGroup(socketGroup)
	if err != nil {
		return
	}
	if gid, err := strconv.Atoi(group.Gid); err == nil {
		_ = os.Chown(path, -1, gid) // not ours to give: the group is the process's then
	}
}
