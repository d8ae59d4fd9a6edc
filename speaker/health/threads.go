package health

// Whether a thread without a heartbeat hangs, or only waits for a processor: the
// kernel knows how long each thread ran, and how long it waited to be run
// (/proc/PID/task/TID/schedstat). What is left is the thread's own time.
//
//	own time = since the last look − waited for a processor
//
// Threads go round each 50 ms at least, and a round takes some milliseconds of a
// processor at most. So a thread that spends 90 ms of its own time without a
// heartbeat hangs, whether it sleeps or runs; one that waits for a processor does not,
// however long that takes.
//
// Each thread is looked at with each answer, and once its heartbeat is 75 ms old each
// 15 ms. It hangs if a second such look finds that more of its own time has passed, so
// that a virtual machine that stood still is not taken for a thread that slept. With a
// request each 100 ms that is found between 115 and 200 ms after the last heartbeat. An
// endless loop is found when it has run that long, and no sooner.

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

const (
	// A heartbeat that is older, or an answer that took longer, is late.
	lateAfter = 75 * time.Millisecond
	// Between two looks at a thread that is late.
	latePause = 15 * time.Millisecond
	// Of its own time, without a heartbeat: it hangs. More than a sleep and a round, and
	// as much as may have passed between a look and the heartbeat behind it.
	ownTimeMax = 90 * time.Millisecond
)

// threadSample is what the kernel says of a thread at one time.
type threadSample struct {
	at       time.Time
	runnable bool
	ran      time.Duration // since it began
	waited   time.Duration // for a processor, since it began; not the wait under way
}

// ownTime of a thread from one look to the next. Of one that is runnable it is not
// known whether it sleeps between two looks; it counts as waiting but for what it ran.
func ownTime(former, now threadSample) time.Duration {
	ran := now.ran - former.ran
	if now.runnable {
		return ran
	}
	return max(ran, now.at.Sub(former.at)-(now.waited-former.waited))
}

// watched is a thread of the forwarder.
type watched struct {
	task   string // its folder; empty: not found
	sample threadSample
	// When the answer was asked for after which it was looked at last; zero: never.
	asked time.Time
	// Its own time since its heartbeat; and that until the last look, which the next
	// answer confirms: between an answer and the look behind it a thread may go round.
	own, unconfirmed time.Duration
	hangs            bool
}

// look at a thread that by the answer to what was asked then, and heard at `heard`, has
// had no heartbeat for that long.
func (w *watched) look(now threadSample, asked, heard time.Time, age time.Duration) {
	switch {
	case age <= lateAfter || w.asked.IsZero():
		w.own, w.unconfirmed, w.hangs = 0, 0, false
	case heard.Add(-age).Before(w.asked): // the same heartbeat as before
		w.own += w.unconfirmed
		w.unconfirmed = ownTime(w.sample, now)
		w.hangs = w.hangs || w.own >= ownTimeMax && w.unconfirmed > 0
	default:
		w.own, w.unconfirmed, w.hangs = 0, min(age, ownTime(w.sample, now)), false
	}
	w.sample, w.asked = now, asked
}

// lookAt the threads of an answer that was just received: which of those that are late
// hang, and which wait for a processor. Of others nothing is known.
func (c *client) lookAt(asked, heard time.Time, health *forwarderv1.Health) (hanging, waiting []string) {
	former := c.threads
	if health.GetPid() != c.pid {
		former = nil
	}
	c.pid, c.threads, c.late = health.GetPid(), make(map[string]watched, len(health.GetThreads())+1), false
	c.watch(former, answeringThread, asked, heard, 0)
	for _, t := range health.GetThreads() {
		age := time.Duration(t.GetHeartbeatAgeMs()) * time.Millisecond
		thread, known := c.watch(former, t.GetName(), asked, heard, age)
		if age <= lateAfter {
			continue
		}
		c.late = true
		switch {
		case known && thread.hangs:
			hanging = append(hanging, t.GetName())
		case known:
			waiting = append(waiting, t.GetName())
		}
	}
	return hanging, waiting
}

// watch one thread further; false: the kernel does not say how it does.
func (c *client) watch(former map[string]watched, name string, asked, heard time.Time, age time.Duration) (watched, bool) {
	thread := former[name]
	now, ok := taskSample(thread.task)
	if !ok {
		thread = watched{task: c.taskOf(name)}
		if now, ok = taskSample(thread.task); !ok {
			return watched{}, false
		}
	}
	thread.look(now, asked, heard, age)
	c.threads[name] = thread
	return thread, true
}

// taskOf the forwarder's thread of this name; empty: there is none.
func (c *client) taskOf(name string) string {
	comms, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", c.pid)) // the pattern is good
	for _, comm := range comms {
		if text, err := os.ReadFile(comm); err == nil && strings.TrimSpace(string(text)) == name {
			return filepath.Dir(comm)
		}
	}
	return ""
}

// taskSample is false for a thread that is gone, and on a kernel without
// CONFIG_SCHEDSTATS, which says that no thread ever ran.
func taskSample(task string) (threadSample, bool) {
	if task == "" {
		return threadSample{}, false
	}
	before, err := os.ReadFile(filepath.Join(task, "schedstat"))
	at := time.Now()
	stat, statErr := os.ReadFile(filepath.Join(task, "stat"))
	after, afterErr := os.ReadFile(filepath.Join(task, "schedstat"))
	if err != nil || statErr != nil || afterErr != nil {
		return threadSample{}, false
	}
	return sampleOf(at, string(before), string(stat), string(after))
}

// sampleOf a thread's schedstat, then its stat, then its schedstat again. This process
// may itself wait for a processor between two of these reads. A thread that ran
// meanwhile may have waited before and sleep now, and that wait is in neither number:
// it counts as runnable.
func sampleOf(at time.Time, before, stat, after string) (threadSample, bool) {
	// Nanoseconds that it ran and that it waited come first.
	fields := strings.Fields(before)
	if len(fields) < 2 || fields[0] == "0" {
		return threadSample{}, false
	}
	ran, ranErr := strconv.ParseInt(fields[0], 10, 64)
	waited, waitedErr := strconv.ParseInt(fields[1], 10, 64)
	if ranErr != nil || waitedErr != nil {
		return threadSample{}, false
	}
	// The name is in parentheses; the state comes behind it.
	state := strings.TrimSpace(stat[strings.LastIndexByte(stat, ')')+1:])
	return threadSample{
		at: at, ran: time.Duration(ran), waited: time.Duration(waited),
		runnable: strings.HasPrefix(state, "R") || before != after,
	}, true
}
