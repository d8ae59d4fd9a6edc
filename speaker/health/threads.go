package health

// Whether a thread without a heartbeat hangs, or only waits for a processor: the
// kernel knows. One that neither runs nor is ready to will not go round its loop
// any more, nor will one that has used a processor for far longer than a round
// takes; one that waits for a processor will.
//
// Threads go round each 50 ms at least, and a round takes some milliseconds of a
// processor at most. So a thread is late after 100 ms, and from then on it is
// looked at each 25 ms. It hangs if two looks in a row find it blocked, or if it
// used 40 ms meanwhile: with a request each 100 ms that is found within 225 and
// 250 ms, the latter on a processor of its own.

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
	lateAfter = 100 * time.Millisecond
	// Between two looks at a thread that is late.
	latePause = 25 * time.Millisecond
	// Looks, one after the other, that find a thread blocked: it hangs.
	looksMax = 2
	// Of a processor, without a heartbeat: it hangs. Less than two pauses, as the
	// kernel counts in ticks of up to 10 ms; and it has to be seen growing twice,
	// since a virtual machine that stood still counts that time all at once.
	usedMax = 40 * time.Millisecond
	// Two heartbeats are one if they are no further apart: their ages were
	// rounded, and took a moment to be read.
	sameHeartbeat = 10 * time.Millisecond
)

// threadSample is what the kernel says of a thread at one time.
type threadSample struct {
	at       time.Time
	runnable bool
	used     time.Duration // of a processor, since it began
}

// lateThread is one without a heartbeat.
type lateThread struct {
	heartbeat   time.Time
	first, last threadSample
	blocked     int // looks in a row that found it so
	ran         int // looks that found that it had run
}

// hanging are those of the late threads that will not go round any more.
func (c *client) hanging(asked time.Time, health *forwarderv1.Health) []string {
	late, hanging := map[string]lateThread{}, []string(nil)
	for _, t := range health.GetThreads() {
		age := time.Duration(t.GetHeartbeatAgeMs()) * time.Millisecond
		if age <= lateAfter {
			continue
		}
		thread, known := c.late[t.GetName()]
		if heartbeat := asked.Add(-age); !known || heartbeat.Sub(thread.heartbeat) > sameHeartbeat {
			thread = lateThread{heartbeat: heartbeat}
		}
		if found, ok := c.sample(t.GetName()); ok {
			thread.see(found)
		}
		if thread.hangs() {
			hanging = append(hanging, t.GetName())
		}
		late[t.GetName()] = thread
	}
	c.late = late
	return hanging
}

func (t *lateThread) see(now threadSample) {
	switch {
	case t.first.at.IsZero():
		t.first = now
	case now.used > t.last.used:
		t.ran++
	}
	t.last = now
	if now.runnable {
		t.blocked = 0
	} else {
		t.blocked++
	}
}

func (t *lateThread) hangs() bool {
	return t.blocked >= looksMax || t.ran >= looksMax && t.last.used-t.first.used >= usedMax
}

// sample a thread of the forwarder that has this name; false: nothing is known.
func (c *client) sample(name string) (threadSample, bool) {
	if c.pid == 0 {
		return threadSample{}, false
	}
	comms, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", c.pid)) // the pattern is good
	for _, comm := range comms {
		if text, err := os.ReadFile(comm); err == nil && strings.TrimSpace(string(text)) == name {
			return taskSample(filepath.Dir(comm))
		}
	}
	return threadSample{}, false
}

func taskSample(task string) (threadSample, bool) {
	stat, err := os.ReadFile(filepath.Join(task, "stat"))
	if err != nil {
		return threadSample{}, false
	}
	// The name is in parentheses; the state comes behind it.
	text := string(stat)
	state := strings.TrimSpace(text[strings.LastIndexByte(text, ')')+1:])
	found := threadSample{at: time.Now(), runnable: strings.HasPrefix(state, "R")}
	// Nanoseconds that it ran come first. A kernel without CONFIG_SCHED_INFO has
	// none: such a thread counts as waiting.
	times, _ := os.ReadFile(filepath.Join(task, "schedstat"))
	if fields := strings.Fields(string(times)); len(fields) > 0 {
		used, _ := strconv.ParseInt(fields[0], 10, 64)
		found.used = time.Duration(used)
	}
	return found, true
}
