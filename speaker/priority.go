package speaker

// The speaker's priority: if other programs occupy the processors, BFD misses its deadlines,
// and all routes are withdrawn at once. It uses a nice value, not a real-time policy: everybody
// with read access sends this process requests, which could otherwise keep the workers from
// running.

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// niceWanted is that of the unit (packaging/systemd/guideway-speaker.service).
const niceWanted = -10

// RaisePriority of this process, where it is permitted.
func RaisePriority(log *slog.Logger) {
	raiseSession()
	if err := raisePriority(); err != nil {
		log.Info("the speaker has no higher priority than others: beside busy programs BFD and sessions may end (`Nice=-10` in the unit, or root)", "error", err)
	}
}

// raiseSession, if this process began it: without a unit's CPUWeight the kernel may share
// processors by sessions first (autogroup, sched(7)), and nice counts within one.
func raiseSession() {
	if session, err := unix.Getsid(0); err == nil && session == os.Getpid() {
		// Not every kernel has it, nor is it permitted to all.
		_ = os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(niceWanted)), 0)
	}
}

// raisePriority of each thread, which is what nice is of. Threads that begin meanwhile
// may be those of one that was not reached yet, so it ends when all have it.
func raisePriority() error {
	for {
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		raised := false
		for _, task := range tasks {
			id, err := strconv.Atoi(task.Name())
			if err != nil {
				return fmt.Errorf("thread %q: %w", task.Name(), err)
			}
			// The kernel answers 20 less nice; a thread that is gone has none.
			if has, err := unix.Getpriority(unix.PRIO_PROCESS, id); err != nil || 20-has <= niceWanted {
				continue
			}
			if err := unix.Setpriority(unix.PRIO_PROCESS, id, niceWanted); err != nil && err != unix.ESRCH {
				return fmt.Errorf("set the priority: %w", err)
			}
			raised = true
		}
		if !raised {
			return nil
		}
	}
}
