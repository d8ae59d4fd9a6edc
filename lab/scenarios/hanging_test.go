package scenarios_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// aHangingThreadWithdrawsTheRoutes: whichever of the threads that packets need.
// A tracer stops one thread of the forwarder and nothing else of it.
func aHangingThreadWithdrawsTheRoutes(t *testing.T, running *hosts.Lab, machine string) {
	for _, thread := range []string{"slow-path", "steering", "worker-0"} {
		resume := hang(t, running, machine, thread)
		waitWithdrawn(t, running, machine)
		resume()
		if err := running.WaitReady(t.Context(), 30*time.Second); err != nil {
			t.Fatalf("thread %s goes on: %v", thread, err)
		}
		if _, err := askDatagram(t, running, netip.Addr{}, topology.EchoVIPs[0], 100); err != nil {
			t.Errorf("thread %s goes on: %v", thread, err)
		}
	}
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
