package api

// The controller's sockets in the run directory: one controller per directory.

import (
	"errors"
	"net"
	"os"
	"path/filepath"

	"github.com/guideway/guideway/controller/rundir"
)

// Groups whose members may look, and operate.
const (
	ViewGroup    = rundir.ViewGroup
	OperateGroup = rundir.OperateGroup
)

// OperateSocket of the controller: for looking, and for what changes something.
// The directory is the controller's: the run directory itself is root's.
func OperateSocket(runDir string) string {
	return filepath.Join(runDir, "controller", "controller.sock")
}

// ViewSocket of the controller: for looking only.
func ViewSocket(runDir string) string {
	return filepath.Join(runDir, "controller", "controller-view.sock")
}

// Sockets are the listening sockets and the lock that makes them ours.
type Sockets struct {
	Operate, View net.Listener
	// Which socket is its owner's only, and why: no such group (the lab, a first
	// try), or not ours to give.
	NotShared []string
	lock      *os.File
}

// Listen takes the run directory's sockets. What a dead controller left behind
// is replaced; a living one is an error.
func Listen(runDir string) (*Sockets, error) {
	dir := filepath.Dir(OperateSocket(runDir))
	lock, err := rundir.Lock("controller", dir)
	if err != nil {
		return nil, err
	}
	s := &Sockets{lock: lock}
	if s.Operate, err = s.listen(OperateSocket(runDir), OperateGroup); err == nil {
		s.View, err = s.listen(ViewSocket(runDir), ViewGroup)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close removes the sockets and gives the lock back.
func (s *Sockets) Close() error {
	var err error
	for _, listener := range []net.Listener{s.Operate, s.View} {
		if listener != nil {
			err = errors.Join(err, listener.Close())
		}
	}
	return errors.Join(err, s.lock.Close())
}

func (s *Sockets) listen(path, group string) (net.Listener, error) {
	listener, notShared, err := rundir.Listen(path, group)
	if notShared != "" {
		s.NotShared = append(s.NotShared, notShared)
	}
	return listener, err
}
