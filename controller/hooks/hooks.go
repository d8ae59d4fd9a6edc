// Package hooks runs programs when something changes. A program gets each event as one line
// of JSON on its standard input.
//
//	Tell(event) ─► a queue for each hook ─► one run of its program at a time
//
// The caller of Tell never waits. If a program is slower than events arrive, the latest
// events are dropped, which is logged. A program that exceeds its time is killed, with all
// processes that it started.
//
// A config only names programs: each is a file in one directory, and only root (or the
// controller's own user) may write the directory and its files. So a person who may change
// the config, or etcd, can only run programs that an administrator of the machine has put
// there. A program gets no arguments and almost no environment.
package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/events"
	"github.com/guideway/guideway/controller/outside"
)

const (
	// Events that wait for a program.
	queueMax = 256
	// Of what a program says, in the log.
	outputBytesMax = 1 << 10
	// For what it has open when it was killed.
	waitDelay = time.Second
)

// Hooks of a controller.
type Hooks struct {
	directory string
	log       *slog.Logger

	mu      sync.Mutex
	running []*hook
	// nil: Run was not called yet.
	work  context.Context
	tasks sync.WaitGroup
}

type hook struct {
	config.Hook
	queue chan events.Event
	// Ends it.
	stop chan struct{}
	// Events that found no room, since it was said last.
	missed int
}

// New hooks, whose programs are in that directory.
func New(directory string, log *slog.Logger) *Hooks { return &Hooks{directory: directory, log: log} }

// Run programs until the context ends; one that runs then is killed.
func (h *Hooks) Run(ctx context.Context) {
	h.mu.Lock()
	h.work = ctx
	for _, one := range h.running {
		h.begin(one)
	}
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	h.running = nil // nothing begins any more
	h.mu.Unlock()
	h.tasks.Wait()
}

func (h *Hooks) begin(one *hook) { h.tasks.Go(func() { h.run(h.work, one) }) }

// Set which hooks there are. Those that stay go on with what waits for them.
func (h *Hooks) Set(wanted []config.Hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var running []*hook
	for _, one := range h.running {
		if slices.Contains(wanted, one.Hook) {
			running = append(running, one)
		} else {
			close(one.stop)
		}
	}
	for _, one := range wanted {
		if slices.ContainsFunc(running, func(r *hook) bool { return r.Hook == one }) {
			continue
		}
		begun := &hook{Hook: one, queue: make(chan events.Event, queueMax), stop: make(chan struct{})}
		running = append(running, begun)
		if h.work != nil && h.work.Err() == nil {
			h.begin(begun)
		}
	}
	h.running = running
}

// Tell all of them. It waits for nothing.
func (h *Hooks) Tell(event events.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, one := range h.running {
		select {
		case one.queue <- event:
			if one.missed > 0 {
				h.log.Warn("events were not told to a hook, which takes longer than they come", "program", one.Program, "events", one.missed)
			}
			one.missed = 0
		default:
			one.missed++
		}
	}
}

func (h *Hooks) run(ctx context.Context, one *hook) {
	said := "" // a failure is logged once
	for {
		select {
		case event := <-one.queue:
			failure := ""
			if err := h.tell(ctx, one.Hook, event); err != nil && ctx.Err() == nil {
				failure = err.Error()
			}
			if failure != "" && failure != said {
				h.log.Error("a hook fails", "program", one.Program, "error", failure)
			}
			said = failure
		case <-one.stop:
			return
		case <-ctx.Done():
			return
		}
	}
}

// tell one event, and wait for the program's end.
func (h *Hooks) tell(ctx context.Context, one config.Hook, event events.Event) error {
	path := filepath.Join(h.directory, one.Program)
	for _, trusted := range []string{h.directory, path} {
		if err := onlyOurs(trusted); err != nil {
			return err
		}
	}
	line, err := json.Marshal(event)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, one.Timeout)
	defer cancel()
	var said limited
	command := exec.CommandContext(ctx, path)
	command.Env, command.Dir = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "/"
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(append(line, '\n')), &said, &said
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = waitDelay
	err = command.Run()
	switch {
	case ctx.Err() != nil && err != nil:
		return fmt.Errorf("%s was killed after %v, its timeout", path, one.Timeout)
	case err != nil:
		return fmt.Errorf("%s: %w: %s", path, err, outside.Line(strings.TrimSpace(said.String()), outputBytesMax))
	}
	return nil
}

// onlyOurs: nobody but root and this process's user may change what would be run.
func onlyOurs(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("%w: put the program there, or remove it from `hooks`", err)
	}
	owner, _ := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir() && !info.Mode().IsRegular():
		return fmt.Errorf("%s is neither a directory nor a regular file, and no link is followed: put the program itself there", path)
	case owner.Uid != 0 && int(owner.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d: `chown root` it", path, owner.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written by others than its owner: `chmod go-w` it", path)
	}
	return nil
}

// limited keeps the beginning.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	room := max(0, outputBytesMax-l.Len())
	_, err := l.Buffer.Write(p[:min(room, len(p))])
	return len(p), err
}

var _ io.Writer = (*limited)(nil)
