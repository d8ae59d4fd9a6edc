package health

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// forwarder answers as the contract says, with what a test sets otherwise.
type forwarder struct {
	t        *testing.T
	listener *net.UnixListener
	silent   atomic.Bool // receives, and answers nothing
	late     atomic.Bool // answers the request before the last one, too
	mu       sync.Mutex
	open     []*net.UnixConn
}

func listen(t *testing.T, runDir string) *forwarder {
	t.Helper()
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(runDir, SocketName), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{t: t, listener: listener}
	go f.serve()
	t.Cleanup(f.end)
	return f
}

func (f *forwarder) serve() {
	for {
		conn, err := f.listener.AcceptUnix()
		if err != nil {
			return
		}
		f.mu.Lock()
		f.open = append(f.open, conn)
		f.mu.Unlock()
		go f.answer(conn)
	}
}

func (f *forwarder) answer(conn *net.UnixConn) {
	buffer := make([]byte, 64)
	for {
		n, err := conn.Read(buffer)
		if err != nil || n == 0 {
			return
		}
		request := &forwarderv1.HealthRequest{}
		if err := proto.Unmarshal(buffer[:n], request); err != nil || request.Sequence == 0 {
			f.t.Errorf("request %x: %v", buffer[:n], err)
		}
		if f.silent.Load() {
			continue
		}
		if f.late.Load() {
			f.send(conn, &forwarderv1.Health{Sequence: request.Sequence - 1, Generation: 1})
		}
		f.send(conn, &forwarderv1.Health{Sequence: request.Sequence, Generation: 7})
	}
}

func (f *forwarder) send(conn *net.UnixConn, health *forwarderv1.Health) {
	packet, err := proto.Marshal(health)
	if err == nil {
		_, err = conn.Write(packet)
	}
	if err != nil {
		return // the client went away
	}
}

// hangUp on everyone.
func (f *forwarder) hangUp() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.open {
		_ = conn.Close()
	}
	f.open = nil
}

// end as a process does.
func (f *forwarder) end() {
	_ = f.listener.Close()
	f.hangUp()
}

// watch returns every answer.
func watch(t *testing.T, runDir string) <-chan Answer {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	answers, done := make(chan Answer, 1024), make(chan struct{})
	go func() {
		Watch(ctx, runDir, func(a Answer) { answers <- a })
		close(done)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return answers
}

func next(t *testing.T, answers <-chan Answer, within time.Duration) Answer {
	t.Helper()
	select {
	case answer := <-answers:
		return answer
	case <-time.After(within):
		t.Fatalf("no answer within %v", within)
		return Answer{}
	}
}

func wantErr(t *testing.T, answer Answer, runDir, want string) {
	t.Helper()
	if answer.Err == nil || answer.Err.Error() != filepath.Join(runDir, SocketName)+": "+want {
		t.Errorf("answer %+v, not the error %q", answer, want)
	}
}

func TestAForwarderIsAskedTenTimesASecond(t *testing.T) {
	runDir := t.TempDir()
	listen(t, runDir)
	answers := watch(t, runDir)
	began := time.Now()
	for range 5 {
		if a := next(t, answers, time.Second); a.Err != nil || a.Health.Generation != 7 || time.Since(a.Asked) > time.Second {
			t.Errorf("answer %+v", a)
		}
	}
	if took := time.Since(began); took < 4*Interval-10*time.Millisecond {
		t.Errorf("five answers in %v", took)
	}
}

func TestAMissingForwarderIsSaidAndFoundWhenItComes(t *testing.T) {
	runDir := t.TempDir()
	answers := watch(t, runDir)
	wantErr(t, next(t, answers, time.Second), runDir, "no such file or directory")
	listen(t, runDir)
	for {
		if next(t, answers, time.Second).Err == nil {
			return
		}
	}
}

func TestADeathIsSaidAtOnce(t *testing.T) {
	runDir := t.TempDir()
	f := listen(t, runDir)
	answers := watch(t, runDir)
	next(t, answers, time.Second)
	died := time.Now()
	f.end()
	answer := next(t, answers, time.Second)
	wantErr(t, answer, runDir, "no such file or directory")
	if took := time.Since(died); took > Interval/2 {
		t.Errorf("said after %v", took)
	}
}

func TestAConnectionThatIsClosedWhileTheForwarderLivesIsNoDeath(t *testing.T) {
	runDir := t.TempDir()
	f := listen(t, runDir)
	answers := watch(t, runDir)
	for range 5 {
		if a := next(t, answers, time.Second); a.Err != nil {
			t.Errorf("answer %v", a.Err)
		}
		f.hangUp()
	}
}

func TestAFullQueueAtTheSocketIsNoDeath(t *testing.T) {
	runDir := t.TempDir()
	f := listenWithQueue(t, runDir, 1)
	waiting := 0
	for ; ; waiting++ {
		conn, err := net.Dial("unixpacket", filepath.Join(runDir, SocketName))
		if errors.Is(err, syscall.EAGAIN) {
			break
		}
		if err != nil || waiting > 10 {
			t.Fatalf("connection %d: %v", waiting, err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	answers := watch(t, runDir)
	time.Sleep(3 * Interval)
	go f.serve()
	if a := next(t, answers, Timeout); a.Err != nil {
		t.Errorf("answer %v", a.Err)
	}
}

// listenWithQueue accepts nothing yet; so many connections and one may wait.
func listenWithQueue(t *testing.T, runDir string, queue int) *forwarder {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(runDir, SocketName)}), unix.Listen(fd, queue))
	}
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), SocketName)
	defer file.Close()
	listener, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{t: t, listener: listener.(*net.UnixListener)}
	t.Cleanup(f.end)
	return f
}

func TestAForwarderThatHangsIsSaidAfterTheTimeoutAndWellAgainAfterwards(t *testing.T) {
	runDir := t.TempDir()
	f := listen(t, runDir)
	answers := watch(t, runDir)
	next(t, answers, time.Second)
	f.silent.Store(true)
	for {
		if a := next(t, answers, 2*Timeout); a.Err != nil {
			wantErr(t, a, runDir, "no answer within 1s")
			break
		}
	}
	f.silent.Store(false)
	a := next(t, answers, 2*Timeout)
	if a.Err != nil { // its question had come before
		a = next(t, answers, 2*Timeout)
	}
	if a.Err != nil {
		t.Errorf("answer %v", a.Err)
	}
}

func TestALateAnswerIsNotTakenForALaterRequests(t *testing.T) {
	runDir := t.TempDir()
	listen(t, runDir).late.Store(true)
	answers := watch(t, runDir)
	for range 3 {
		if a := next(t, answers, time.Second); a.Err != nil || a.Health.Generation != 7 {
			t.Errorf("answer %+v", a)
		}
	}
}
