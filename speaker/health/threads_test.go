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

// foundHanging looks as Watch does at a thread without a heartbeat, and says after
// how long it counts as one that hangs; 0: not within the limit.
func foundHanging(pid int, name string, limit time.Duration) time.Duration {
	c, began := &client{pid: uint32(pid)}, time.Now()
	for time.Since(began) < limit {
		age := lateAfter + time.Since(began) + time.Millisecond
		health := &forwarderv1.Health{Threads: []*forwarderv1.ThreadHealth{{Name: name, HeartbeatAgeMs: uint64(age.Milliseconds())}}}
		if len(c.hanging(time.Now(), health)) > 0 {
			return time.Since(began)
		}
		time.Sleep(latePause)
	}
	return 0
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
	if after := foundHanging(os.Getpid(), "blocked", time.Second); after == 0 || after > 100*time.Millisecond {
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
	c := &client{pid: uint32(os.Getpid())}
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(pipe[0]) })
	thread(t, "slow", func() { _, _ = unix.Read(pipe[0], make([]byte, 1)) })
	defer unix.Close(pipe[1])
	for range 4 { // late each time, with a heartbeat since the last look
		time.Sleep(2 * latePause)
		health := &forwarderv1.Health{Threads: []*forwarderv1.ThreadHealth{{Name: "slow", HeartbeatAgeMs: 101}}}
		if hanging := c.hanging(time.Now(), health); len(hanging) > 0 {
			t.Errorf("hanging: %v", hanging)
		}
	}
	if hanging := c.hanging(time.Now(), &forwarderv1.Health{Threads: []*forwarderv1.ThreadHealth{{Name: "slow"}}}); len(hanging)+len(c.late) > 0 {
		t.Errorf("hanging %v, late %v", hanging, c.late)
	}
}
