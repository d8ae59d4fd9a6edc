package scenarios_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// aHangingThreadWithdrawsTheRoutes: whichever of the threads that packets need.
// A tracer stops one thread of the forwarder and nothing else of it.
func aHangingThreadWithdrawsTheRoutes(t *testing.T, running *hosts.Lab, machine string, threads ...string) {
	for _, thread := range threads {
		gone := watchWithdrawal(t, running, machine)
		began := time.Now()
		resume := hang(t, running, machine, thread)
		checkWithdrawn(t, gone().Sub(began), "had its thread "+thread+" hang")
		resume()
		if err := running.WaitReady(t.Context(), readyMax); err != nil {
			t.Fatalf("thread %s goes on: %v", thread, err)
		}
		if _, err := askDatagram(t, running, netip.Addr{}, topology.EchoVIPs[0], 100); err != nil {
			t.Errorf("thread %s goes on: %v", thread, err)
		}
	}
}

// aHangingNextHopsThreadMakesTheRoutesWorse: what it knew still arrives, so nothing is
// withdrawn.
func aHangingNextHopsThreadMakesTheRoutesWorse(t *testing.T, running *hosts.Lab, runDir, machine string) {
	log := filepath.Join(runDir, machine, "speaker.log")
	before := withdrawals(t, log)
	defer hang(t, running, machine, "next-hops")()
	eventually(t, 30*time.Second, "the speaker makes the routes worse", func() error {
		text, err := os.ReadFile(log)
		if err == nil && !strings.Contains(string(text), "thread next-hops has had no heartbeat") {
			err = errNotYet
		}
		return err
	})
	if _, err := askDatagram(t, running, netip.Addr{}, topology.EchoVIPs[0], 100); err != nil {
		t.Error(err)
	}
	if after := withdrawals(t, log); after != before {
		t.Errorf("the routes were withdrawn %d times: see %s", after-before, log)
	}
}

// aStarvedThreadKeepsTheRoutes: programs that the kernel prefers have the worker's
// processor again and again, for longer than a thread that hangs is given. The speaker
// is asked, not the router: one that was on that processor as well would miss BFD.
func aStarvedThreadKeepsTheRoutes(t *testing.T, running *hosts.Lab, runDir, machine string) {
	log := filepath.Join(runDir, machine, "speaker.log")
	before := withdrawals(t, log)
	worker := func() *forwarderv1.Thread {
		status, err := running.ForwarderStatus(t.Context(), machine)
		if err != nil {
			t.Fatal(err)
		}
		for _, thread := range status.GetThreads() {
			if thread.GetName() == "worker-0" {
				return thread
			}
		}
		t.Fatal("there is no worker")
		return nil
	}
	cpu, oldest := worker().GetCpu(), uint64(0)
	if cpu < 0 {
		t.Fatal("the worker is not pinned")
	}
	for range 8 {
		hog := exec.Command("timeout", "0.4", "chrt", "--rr", "1", "taskset", "-c", fmt.Sprint(cpu), "sh", "-c", "while :; do :; done")
		if err := hog.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { _ = hog.Wait(); close(ended) }() // told to stop by timeout
		for running := true; running; {
			select {
			case <-ended:
				running = false
			case <-time.After(20 * time.Millisecond):
				oldest = max(oldest, worker().GetHeartbeatAgeMs())
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	if after := withdrawals(t, log); after != before {
		t.Errorf("the routes were withdrawn %d times: see %s", after-before, log)
	}
	t.Logf("the oldest heartbeat was of %d ms before", oldest)
	if oldest < 200 {
		t.Errorf("the oldest heartbeat was of %d ms before: nothing was starved, so this says nothing", oldest)
	}
}

// withdrawals of everything, by the speaker's log.
func withdrawals(t *testing.T, log string) int {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "nothing is announced")
}

// hang one thread of a load balancer's forwarder, until the returned function
// is called.
func hang(t *testing.T, running *hosts.Lab, machine, thread string) (resume func()) {
	t.Helper()
	status, err := running.ForwarderStatus(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}
	id := threadOf(t, int(status.GetPid()), thread)
	started, stop, ended := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		// The tracer is a thread, too.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.PtraceSeize(id); err != nil {
			started <- fmt.Errorf("trace thread %d: %w", id, err)
			return
		}
		defer func() { _ = unix.PtraceDetach(id) }()
		if err := unix.PtraceInterrupt(id); err != nil {
			started <- fmt.Errorf("stop thread %d: %w", id, err)
			return
		}
		var how unix.WaitStatus
		_, err := unix.Wait4(id, &how, unix.WALL, nil)
		started <- err
		<-stop
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return func() { close(stop); <-ended }
}

// threadOf a process that has this name.
func threadOf(t *testing.T, process int, name string) int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", process))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		if found, err := os.ReadFile(task); err == nil && strings.TrimSpace(string(found)) == name {
			id, err := strconv.Atoi(filepath.Base(filepath.Dir(task)))
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
	}
	t.Fatalf("process %d has no thread %s among %d", process, name, len(tasks))
	return 0
}
