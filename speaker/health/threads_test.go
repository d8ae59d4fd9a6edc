package health

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// thread of this process with a name of its own, that does this and then ends.
func thread(t *testing.T, name string, do func()) {
	t.Helper()
	named, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		text, err := unix.BytePtrFromString(name)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0, 0, 0)
		}
		if err != nil {
			t.Error(err)
		}
		close(named)
		do()
	}()
	<-named
	t.Cleanup(func() { <-ended })
}

// foundHanging looks as Watch does at a thread whose heartbeat ends now, and says after
// how long it counts as one that hangs; 0: not within the limit.
func foundHanging(pid int, name string, limit time.Duration) time.Duration {
	c, began := &client{}, time.Now()
	for pause := time.Duration(0); time.Since(began) < limit; time.Sleep(pause) {
		if hanging, _ := lookOnce(c, pid, name, time.Since(began)); len(hanging) > 0 {
			return time.Since(began)
		}
		if pause = Interval; c.late {
			pause = latePause
		}
	}
	return 0
}

func lookOnce(c *client, pid int, name string, age time.Duration) (hanging, waiting []string) {
	asked := time.Now()
	health := &forwarderv1.Health{Pid: uint32(pid), Threads: []*forwarderv1.ThreadHealth{{Name: name, HeartbeatAgeMs: uint64(age.Milliseconds())}}}
	return c.lookAt(asked, time.Now(), health)
}

func TestAThreadThatIsBlockedHangs(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(pipe[0]) })
	thread(t, "blocked", func() { _, _ = unix.Read(pipe[0], make([]byte, 1)) })
	defer unix.Close(pipe[1])
	time.Sleep(10 * time.Millisecond) // it goes to sleep
	if after := foundHanging(os.Getpid(), "blocked", time.Second); after == 0 || after > 250*time.Millisecond {
		t.Errorf("found after %v", after)
	}
}

func TestAThreadInAnEndlessLoopHangs(t *testing.T) {
	var stop atomic.Bool
	thread(t, "endless", func() {
		for !stop.Load() {
		}
	})
	defer stop.Store(true)
	if after := foundHanging(os.Getpid(), "endless", 2*time.Second); after == 0 {
		t.Error("not found")
	}
}

// On one processor with a process that the kernel prefers a hundredfold.
func TestAThreadThatWaitsForAProcessorDoesNotHang(t *testing.T) {
	endless := []string{"sh", "-c", "while :; do :; done"}
	start := func(args ...string) int {
		process := exec.Command(args[0], append(args[1:], endless...)...)
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
		return process.Process.Pid
	}
	start("taskset", "-c", oneProcessor(t))
	starved := start("taskset", "-c", oneProcessor(t), "chrt", "--idle", "0")
	time.Sleep(100 * time.Millisecond) // until both are what they will be
	if after := foundHanging(starved, "sh", time.Second); after != 0 {
		t.Errorf("it hangs, after %v", after)
	}
}

// oneProcessor that this process may use.
func oneProcessor(t *testing.T) string {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatal(err)
	}
	for cpu := range 1024 {
		if allowed.IsSet(cpu) {
			return strconv.Itoa(cpu)
		}
	}
	return ""
}

func TestAHeartbeatEndsTheSuspicion(t *testing.T) {
	c := &client{}
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(pipe[0]) })
	thread(t, "slow", func() { _, _ = unix.Read(pipe[0], make([]byte, 1)) })
	defer unix.Close(pipe[1])
	for range 4 { // late each time, with a heartbeat since the last look
		time.Sleep(lateAfter + 4*latePause)
		if hanging, _ := lookOnce(c, os.Getpid(), "slow", lateAfter+latePause); len(hanging) > 0 {
			t.Errorf("hanging: %v", hanging)
		}
	}
	if hanging, _ := lookOnce(c, os.Getpid(), "slow", 0); len(hanging) > 0 || c.late {
		t.Errorf("hanging %v, late %v", hanging, c.late)
	}
}

func TestAThreadThatRanWhileItWasLookedAtCountsAsRunnable(t *testing.T) {
	for name, c := range map[string]struct {
		before, stat, after string
		runnable            bool
	}{
		"it sleeps":            {"70 30 2", "4711 (w) S 1", "70 30 2", false},
		"it runs, or waits":    {"70 30 2", "4711 (w) R 1", "70 30 2", true},
		"it waited, and slept": {"70 30 2", "4711 (w) S 1", "72 99 3", true},
	} {
		sample, ok := sampleOf(time.Now(), c.before, c.stat, c.after)
		if !ok || sample.runnable != c.runnable || sample.ran != 70 || sample.waited != 30 {
			t.Errorf("%s: %+v, %t", name, sample, ok)
		}
	}
}

// look is one at a thread: at this time the kernel said that it had run and waited for so
// long, and its heartbeat was so old.
type look struct {
	at, age, ran, waited int // ms
	runnable             bool
}

func TestOnlyAThreadsOwnTimeCounts(t *testing.T) {
	began := time.Now()
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for name, c := range map[string]struct {
		looks []look
		hangs bool
	}{
		"it sleeps":              {[]look{{at: 0}, {at: 100, age: 100}, {at: 115, age: 115}}, true},
		"it runs without end":    {[]look{{at: 0}, {at: 100, age: 100, ran: 99, runnable: true}, {at: 115, age: 115, ran: 114, runnable: true}}, true},
		"it sleeps now and then": {[]look{{at: 0}, {at: 100, age: 100, ran: 5, waited: 5}, {at: 115, age: 115, ran: 6, waited: 6}, {at: 130, age: 130, ran: 7, waited: 6}}, true},
		"it waits":               {[]look{{at: 0}, {at: 100, age: 100, runnable: true}, {at: 115, age: 115, runnable: true}, {at: 2000, age: 2000, runnable: true}}, false},
		"it waited, ran, and sleeps the rest of its round": {
			[]look{{at: 0}, {at: 100, age: 98, ran: 3, waited: 80}, {at: 115, age: 113, ran: 3, waited: 80}, {at: 130, age: 128, ran: 3, waited: 80}}, false,
		},
		"it went round between two looks": {[]look{{at: 0}, {at: 100, age: 100}, {at: 300, age: 100, waited: 150}, {at: 315, age: 115, waited: 150, runnable: true}}, false},
		"the machine stood still": {
			[]look{{at: 0}, {at: 900, age: 900}, {at: 915, age: 915, runnable: true}, {at: 930, age: 10, ran: 1, waited: 20}}, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var w watched
			for _, l := range c.looks {
				at := began.Add(ms(l.at))
				w.look(threadSample{at: at, runnable: l.runnable, ran: ms(l.ran), waited: ms(l.waited)}, at, at, ms(l.age))
			}
			if w.hangs != c.hangs {
				t.Errorf("hangs: %t, by %+v", w.hangs, w)
			}
		})
	}
}
