package hooks

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// trial has hooks that run, and a directory where their programs write.
type trial struct {
	*Hooks
	t               *testing.T
	programs, wrote string
	log             *safeBuffer
}

type safeBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func newTrial(t *testing.T) *trial {
	t.Helper()
	tr := &trial{t: t, programs: t.TempDir(), wrote: t.TempDir(), log: &safeBuffer{}}
	tr.Hooks = New(tr.programs, slog.New(slog.NewTextHandler(tr.log, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); tr.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return tr
}

func (tr *trial) program(name, script string, mode os.FileMode) {
	tr.t.Helper()
	path := filepath.Join(tr.programs, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+strings.ReplaceAll(script, "OUT", filepath.Join(tr.wrote, name))+"\n"), 0o600); err != nil {
		tr.t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // whatever the umask is
		tr.t.Fatal(err)
	}
}

func (tr *trial) until(what string, holds func() bool) {
	tr.t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			tr.t.Fatalf("%s: log\n%s", what, tr.log)
		}
	}
}

func (tr *trial) written(name string) string {
	text, _ := os.ReadFile(filepath.Join(tr.wrote, name))
	return string(text)
}

func numbered(i int) events.Event {
	return events.Event{Time: time.Unix(1_700_000_000, 0).UTC(), Machine: "lb-1", Object: events.Object{Kind: "backend", Name: fmt.Sprint("web-", i)}, From: "up", To: "down", Cause: "no \"answer\"\n"}
}

func TestAProgramHearsEachEventAsOneLine(t *testing.T) {
	tr := newTrial(t)
	tr.program("notify", "cat >>OUT", 0o755)
	tr.Set([]config.Hook{{Program: "notify", Timeout: 10 * time.Second}})
	for i := range 3 {
		tr.Tell(numbered(i))
	}
	tr.until("three lines", func() bool { return strings.Count(tr.written("notify"), "\n") == 3 })
	for i, line := range strings.Split(strings.TrimSpace(tr.written("notify")), "\n") {
		var event events.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil || event != numbered(i) {
			t.Errorf("%s: %v", line, err)
		}
		for _, field := range []string{"time", "machine", "object", "from", "to", "cause", "who"} {
			if !strings.Contains(line, `"`+field+`":`) {
				t.Errorf("no %s in %s", field, line)
			}
		}
	}
	// One that is removed hears nothing more.
	tr.Set(nil)
	tr.Tell(numbered(9))
	time.Sleep(100 * time.Millisecond)
	if strings.Contains(tr.written("notify"), "web-9") {
		t.Error("it hears on")
	}
}

func TestAProgramThatHangsIsKilledWithWhatItBegan(t *testing.T) {
	tr := newTrial(t)
	tr.program("hang", "sleep 300 & echo $! >OUT; wait", 0o755)
	tr.Set([]config.Hook{{Program: "hang", Timeout: 200 * time.Millisecond}})
	tr.Tell(numbered(1))
	tr.until("it is killed", func() bool { return strings.Contains(tr.log.String(), "was killed after 200ms, its timeout") })
	tr.until("its child, too", func() bool {
		state, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(tr.written("hang")), "stat"))
		return err != nil || strings.Contains(string(state), ") Z ")
	})
}

func TestWhoTellsWaitsForNoProgram(t *testing.T) {
	tr := newTrial(t)
	tr.program("slow", "sleep 300", 0o755)
	tr.program("quick", "cat >>OUT", 0o755)
	tr.Set([]config.Hook{{Program: "slow", Timeout: time.Minute}, {Program: "quick", Timeout: time.Minute}})
	began := time.Now()
	for i := range 20 * queueMax {
		tr.Tell(numbered(i))
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("%v", took)
	}
	tr.until("another hook is not held up", func() bool { return tr.written("quick") != "" })
}

func TestAProgramThatFailsIsToldOnceWithWhatItSays(t *testing.T) {
	tr := newTrial(t)
	tr.program("fail", "echo x >>OUT; echo 'no such channel' >&2; yes | head -c 100000; exit 3", 0o755)
	tr.Set([]config.Hook{{Program: "fail", Timeout: 10 * time.Second}})
	for i := range 3 {
		tr.Tell(numbered(i))
	}
	tr.until("all were told", func() bool { return strings.Count(tr.written("fail"), "x") == 3 })
	tr.until("it is logged", func() bool { return strings.Contains(tr.log.String(), "exit status 3: no such channel") })
	if log := tr.log.String(); strings.Count(log, "a hook fails") != 1 || len(log) > 4<<10 {
		t.Errorf("log of %d bytes", len(log))
	}
}

func TestWhatOthersMayWriteIsNotRun(t *testing.T) {
	for what, c := range map[string]struct {
		prepare func(*trial)
		says    string
	}{
		"a file that others write": {func(tr *trial) { tr.program("p", "echo x >OUT", 0o777) }, "can be written by others than its owner"},
		"a directory that others write": {func(tr *trial) {
			tr.program("p", "echo x >OUT", 0o755)
			_ = os.Chmod(tr.programs, 0o777)
		}, "can be written by others than its owner"},
		"a link": {func(tr *trial) {
			tr.program("real", "echo x >OUT", 0o755)
			_ = os.Symlink("real", filepath.Join(tr.programs, "p"))
		}, "no link is followed"},
		"nothing":    {func(*trial) {}, "put the program there"},
		"no program": {func(tr *trial) { tr.program("p", "echo x >OUT", 0o644) }, "permission denied"},
		"somebody else's": {func(tr *trial) {
			tr.program("p", "echo x >OUT", 0o755)
			if os.Getuid() == 0 {
				_ = os.Chown(filepath.Join(tr.programs, "p"), 65534, 65534)
			} else {
				_ = os.Chmod(filepath.Join(tr.programs, "p"), 0o777)
			}
		}, "p "},
	} {
		t.Run(what, func(t *testing.T) {
			tr := newTrial(t)
			c.prepare(tr)
			tr.Set([]config.Hook{{Program: "p", Timeout: time.Second}})
			tr.Tell(numbered(1))
			tr.until("it is told", func() bool { return strings.Contains(tr.log.String(), "a hook fails") })
			if !strings.Contains(tr.log.String(), c.says) || tr.written("p") != "" || tr.written("real") != "" {
				t.Errorf("ran, or:\n%s", tr.log)
			}
		})
	}
}
