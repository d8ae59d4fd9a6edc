package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/guideway/guideway/lab/topology"
)

// killLimit of the time that the kernel takes to end a process.
const killLimit = 20 * time.Second

// process is one that the lab has started. A pid alone may belong to another
// process by now; with its start time it cannot.
type process struct {
	// Name is <node>/<what>, as lb-1/forwarder.
	Name string
	Pid  int
	// Start in clock ticks since boot, field 22 of /proc/<pid>/stat.
	Start uint64
}

// identify reads the start time of a running process.
func identify(name string, pid int) (process, error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, fmt.Errorf("identify process %s: %w", name, err)
	}
	start, zombie, err := parseStat(string(content))
	if err != nil {
		return process{}, fmt.Errorf("identify process %s (pid %d): %w", name, pid, err)
	}
	if zombie && !hasThreads(pid) {
		return process{}, fmt.Errorf("%s: %w", name, errEnded)
	}
	return process{Name: name, Pid: pid, Start: start}, nil
}

// hasThreads beside the first: while these end, the process still has its files and
// locks, though the first is a zombie already.
func hasThreads(pid int) bool {
	threads, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return err == nil && len(threads) > 1
}

// parseStat finds state and start time in /proc/<pid>/stat. The command's name
// stands in parentheses and may hold spaces and parentheses itself.
func parseStat(stat string) (start uint64, zombie bool, err error) {
	end := strings.LastIndexByte(stat, ')')
	fields := strings.Fields(stat[end+1:])
	if end < 0 || len(fields) < 20 {
		return 0, false, fmt.Errorf("unexpected /proc stat %q", stat)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0] == "Z", err
}

// alive: this very process still runs.
func (p process) alive() bool {
	now, err := identify(p.Name, p.Pid)
	return err == nil && now.Start == p.Start
}

// kill the process and the group it leads (nginx has workers).
func (p process) kill(signal syscall.Signal) error {
	if !p.alive() {
		return nil
	}
	if err := syscall.Kill(-p.Pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s (pid %d): %w", p.Name, p.Pid, err)
	}
	return nil
}

// stop asks, waits for a while, and then insists.
func (p process) stop(timeout time.Duration) error {
	if err := p.kill(syscall.SIGTERM); err != nil {
		return err
	}
	if p.endsWithin(timeout) {
		return nil
	}
	return p.kill(syscall.SIGKILL)
}

// endsWithin waits for its end. A killed process runs on for as long as the
// kernel takes to give its memory back, when its sockets may be closed already.
func (p process) endsWithin(timeout time.Duration) bool {
	for end := time.Now().Add(timeout); p.alive(); {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// start a long-running program on a node. It leads its own process group and
// session, so that it outlives `lab up` and Ctrl-C reaches only us.
func (lab *Lab) start(n topology.Node, what, program string, args ...string) error {
	name := n.Name + "/" + what
	log, err := os.OpenFile(lab.path(n, what+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	// `ip netns exec` becomes the program: the pid is the program's.
	command := lab.onDisk(n, what, append([]string{program}, args...))
	cmd := exec.Command("ip", append([]string{"netns", "exec", n.Namespace}, command...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	keepShare(cmd.Process.Pid)
	started, err := identify(name, cmd.Process.Pid)
	lab.reaping.Go(func() { _ = cmd.Wait() }) // takes away the zombie; how it went is in its log
	if err != nil {
		return fmt.Errorf("start %s: %w: %s (%s)", name, err, lastLine(log.Name()), log.Name())
	}
	lab.mutex.Lock()
	defer lab.mutex.Unlock()
	lab.state.Processes = append(slices.DeleteFunc(lab.state.Processes, func(p process) bool { return p.Name == name }), started)
	return lab.state.write()
}

// keepShare of the processors: where the kernel shares them by sessions (autogroup), that of
// the process gets what ours does.
func keepShare(pid int) {
	text, err := os.ReadFile("/proc/self/autogroup")
	if err != nil {
		return
	}
	if _, nice, found := strings.Cut(strings.TrimSpace(string(text)), " nice "); found {
		_ = os.WriteFile(fmt.Sprintf("/proc/%d/autogroup", pid), []byte(nice), 0)
	}
}

// find the recorded process of a node.
func (lab *Lab) find(nodeName, what string) (process, bool) {
	lab.mutex.Lock()
	defer lab.mutex.Unlock()
	i := slices.IndexFunc(lab.state.Processes, func(p process) bool { return p.Name == nodeName+"/"+what })
	if i < 0 {
		return process{}, false
	}
	return lab.state.Processes[i], true
}

// errEnded: no waiting brings the process back.
var errEnded = errors.New("it does not run")

// running process of a node, or errEnded with the log that may say why, and its last line.
func (lab *Lab) running(nodeName, what string) (process, error) {
	p, known := lab.find(nodeName, what)
	if !known || !p.alive() {
		log := filepath.Join(lab.Options().RunDir, nodeName, what+".log")
		return p, fmt.Errorf("%s/%s: %w: %s (%s)", nodeName, what, errEnded, lastLine(log), log)
	}
	return p, nil
}

// lastLineBytes of a log are read to find its last line.
const lastLineBytes = 4096

// lastLine of a log, without the escape codes of a terminal's colours.
func lastLine(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return "no log"
	}
	defer file.Close()
	if end, err := file.Seek(0, io.SeekEnd); err == nil {
		_, _ = file.Seek(max(0, end-lastLineBytes), io.SeekStart)
	}
	content, _ := io.ReadAll(io.LimitReader(file, lastLineBytes))
	lines := strings.Split(strings.TrimSpace(colours.ReplaceAllString(string(content), "")), "\n")
	if last := lines[len(lines)-1]; last != "" {
		return last
	}
	return "its log is empty"
}

var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// signal one process of a node; it must be running.
func (lab *Lab) signal(nodeName, what string, signal syscall.Signal) error {
	p, err := lab.running(nodeName, what)
	if err != nil {
		return fmt.Errorf("signal %w", err)
	}
	return p.kill(signal)
}

// killProcesses of a node at once, and wait for their ends.
func (lab *Lab) killProcesses(nodeName string, names ...string) error {
	var errs []error
	for _, what := range names {
		errs = append(errs, lab.signal(nodeName, what, syscall.SIGKILL))
	}
	for _, what := range names {
		if p, known := lab.find(nodeName, what); known && !p.endsWithin(killLimit) {
			errs = append(errs, fmt.Errorf("kill %s (pid %d): it still runs after %v", p.Name, p.Pid, killLimit))
		}
	}
	return errors.Join(errs...)
}

// waitFor a condition, asking now and then until it holds, cannot hold any more
// (errEnded), or the time is up. What it last said is in the error.
func waitFor(ctx context.Context, limit time.Duration, what string, condition func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return nil
		}
		if errors.Is(err, errEnded) {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w after %v: %w", what, ctx.Err(), limit, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
