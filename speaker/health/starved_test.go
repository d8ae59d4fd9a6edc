package health

// A process with the forwarder's threads, on one processor with many busy loops.

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	"github.com/guideway/guideway/speaker/judge"
)

const forwarderMark = "GUIDEWAY_TEST_FORWARDER"

func TestMain(m *testing.M) {
	if runDir := os.Getenv(forwarderMark); runDir != "" {
		runForwarder(runDir)
		return
	}
	goleak.VerifyTestMain(m)
}

// runForwarder answers until its standard input ends, by which it is told to have its
// worker hang: "block" or "loop".
func runForwarder(runDir string) {
	runtime.GOMAXPROCS(16) // no thread waits for another one's turn
	var heartbeat atomic.Int64
	var orders atomic.Value
	orders.Store("")
	heartbeat.Store(time.Now().UnixNano())
	go func() {
		nameThread("worker-0")
		for {
			heartbeat.Store(time.Now().UnixNano())
			order := orders.Load()
			if order != "" {
				fmt.Println(order)
			}
			switch order {
			case "block":
				_, _ = unix.Poll(nil, -1)
			case "loop":
				for orders.Load() == order {
				}
			}
			for began := time.Now(); time.Since(began) < 5*time.Millisecond; {
			}
			_, _ = unix.Poll(nil, 50)
		}
	}()
	go answerFrom(runDir, &heartbeat)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		orders.Store(lines.Text())
	}
}

func answerFrom(runDir string, heartbeat *atomic.Int64) {
	nameThread(answeringThread)
	listener, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err == nil {
		err = unix.Bind(listener, &unix.SockaddrUnix{Name: filepath.Join(runDir, SocketName)})
	}
	if err == nil {
		err = unix.Listen(listener, 8)
	}
	fmt.Println("listening:", err)
	buffer := make([]byte, 64)
	for {
		conn, _, err := unix.Accept(listener)
		for err == nil {
			n, readErr := unix.Read(conn, buffer)
			if n == 0 || readErr != nil {
				break
			}
			request := &forwarderv1.HealthRequest{}
			_ = proto.Unmarshal(buffer[:n], request)
			age := time.Since(time.Unix(0, heartbeat.Load()))
			packet, _ := proto.Marshal(&forwarderv1.Health{
				Sequence: request.Sequence, Pid: uint32(os.Getpid()), Generation: 1,
				Threads: []*forwarderv1.ThreadHealth{{Name: "worker-0", HeartbeatAgeMs: uint64(age.Milliseconds())}},
			})
			_, err = unix.Write(conn, packet)
		}
		_ = unix.Close(conn)
	}
}

// nameThread of the calling goroutine, which keeps it.
func nameThread(name string) {
	runtime.LockOSThread()
	text, err := unix.BytePtrFromString(name)
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(text)), 0, 0, 0)
	}
	if err != nil {
		panic(err)
	}
}

// startForwarder by this command; hang has its worker hang, and returns when it does.
func startForwarder(t *testing.T, runDir string, how ...string) (hang func(order string)) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = write.Close() })
	process := exec.Command(how[0], append(how[1:], os.Args[0])...)
	process.Env = append(os.Environ(), forwarderMark+"="+runDir)
	process.Stdin, process.Stderr = read, os.Stderr
	said, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = read.Close()
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	lines := bufio.NewReader(said)
	await := func(want string) {
		if line, err := lines.ReadString('\n'); strings.TrimSpace(line) != want {
			t.Fatal(line, err)
		}
	}
	await("listening: <nil>")
	return func(order string) {
		if _, err := write.WriteString(order + "\n"); err != nil {
			t.Fatal(err)
		}
		await(order)
	}
}

// keepBusy the processor with so many loops.
func keepBusy(t *testing.T, cpu string, loops int) {
	t.Helper()
	for range loops {
		loop := exec.Command("taskset", "-c", cpu, "sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = loop.Process.Kill(); _ = loop.Wait() })
	}
}

// judged reports what is said of the forwarder, each time that it changes.
func judged(t *testing.T, runDir string) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	reasons, done := make(chan string, 1024), make(chan struct{})
	go func() {
		defer close(done)
		forwarder := judge.New()
		former, formerSlow := forwarder.Reason(), ""
		Watch(ctx, runDir, func(a Answer) {
			switch {
			case a.Waits:
				forwarder.Wait(a.Err.Error(), a.Asked, time.Now())
			case a.Err != nil:
				forwarder.Lose(a.Err.Error(), time.Now())
			default:
				forwarder.Hear(a.Judged(), time.Now())
			}
			if slow := forwarder.Slow(); slow != formerSlow {
				t.Log("slow: ", slow)
				formerSlow = slow
			}
			if reason := forwarder.Reason(); reason != former {
				former = reason
				reasons <- reason
			}
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return reasons
}

func TestAStarvedForwarderIsWellAndItsHangIsFound(t *testing.T) {
	cpu := oneProcessor(t)
	beside := []string{"taskset", "-c", cpu}
	for name, c := range map[string]struct {
		order string
		limit time.Duration
	}{
		"blocked": {"block", 2 * time.Second},
		// By then it has run for 90 ms, of a processor that others share.
		"in an endless loop": {"loop", time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			runDir := t.TempDir()
			hang := startForwarder(t, runDir, beside...)
			reasons := judged(t, runDir)
			if reason := <-reasons; reason != "" {
				t.Fatal(reason)
			}
			keepBusy(t, cpu, 8)
			select {
			case reason := <-reasons:
				t.Fatalf("starved, and judged: %q", reason)
			case <-time.After(5 * time.Second):
			}
			hang(c.order)
			began := time.Now()
			select {
			case reason := <-reasons:
				t.Logf("found after %v: %s", time.Since(began), reason)
			case <-time.After(c.limit):
				t.Error("its hang was not found in time")
			}
		})
	}
}
