package scenarios_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
)

// resetWatch records what comes to backends and from them, until one of their kernels
// has sent an RST from a VIP: what came before it says why.
type resetWatch struct {
	t         *testing.T
	lab       *hosts.Lab
	resets    vipResets
	recorders []*exec.Cmd
	files     []string
	stop      chan struct{}
	stopped   chan struct{}
}

const (
	// Files of the recorder's ring, of a million bytes each: half a minute of a load.
	resetFileBytes, resetFiles = "16", "4"
	// Of a flow, at each backend.
	resetPacketsMax = 12
	resetFlowsMax   = 3
)

func watchResets(t *testing.T, running *hosts.Lab) *resetWatch {
	t.Helper()
	w := &resetWatch{t: t, lab: running, resets: countVIPResets(t, running), stop: make(chan struct{}), stopped: make(chan struct{})}
	directory := t.TempDir()
	for _, backend := range running.Backends() {
		file := filepath.Join(directory, backend+".pcap")
		recorder := exec.Command("ip", "netns", "exec", running.Network.Router, "tcpdump", "-i", backend, "-n", "-s", "192", "-B", "8192", "--immediate-mode",
			"-Z", "root", "-C", resetFileBytes, "-W", resetFiles, "-U", "-w", file)
		if err := recorder.Start(); err != nil {
			t.Logf("RSTs will be counted, and not explained: %v", err)
			continue
		}
		w.files, w.recorders = append(w.files, file), append(w.recorders, recorder)
	}
	go w.run()
	t.Cleanup(w.end)
	return w
}

// run until an RST was sent, or the watch ends.
func (w *resetWatch) run() {
	defer close(w.stopped)
	for isAfter := false; ; {
		select {
		case <-w.stop:
			isAfter = true
		case <-time.After(500 * time.Millisecond):
		}
		if isAfter {
			for _, recorder := range w.recorders {
				_ = errors.Join(recorder.Process.Signal(os.Interrupt), recorder.Wait())
			}
			return
		}
		isAfter = slices.ContainsFunc(w.lab.Backends(), func(backend string) bool {
			sent, err := w.resets.of(backend)
			return err == nil && sent > 0
		})
	}
}

func (w *resetWatch) end() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	<-w.stopped
}

// check that no backend's kernel has sent an RST; else say about which flows, and which
// packets of theirs came to which backend by which maps.
func (w *resetWatch) check() {
	w.t.Helper()
	w.end()
	if w.resets.check() {
		return
	}
	for _, flow := range w.flows() {
		for _, file := range w.files {
			lines := w.read(file, flow)
			w.t.Logf("%s, %s: time, from, to, bucket, generation, hop limit, try next, flags, sequence, acknowledged, bytes:\n%s",
				filepath.Base(file), flow, strings.Join(lines[max(0, len(lines)-resetPacketsMax):], ""))
		}
	}
}

// flows that VIPs have sent an RST of, as filters.
func (w *resetWatch) flows() (flows []string) {
	for _, file := range w.files {
		for _, line := range w.read(file, "tcp.flags.reset==1 && !geneve && (ip.src==203.0.113.0/24 || ipv6.src==2001:db8:a::/64)", "ip.dst", "ipv6.dst", "tcp.dstport") {
			fields := strings.Split(strings.TrimSpace(line), "\t")
			if len(fields) < 2 {
				continue
			}
			family, address := "ip", fields[0]
			if strings.Contains(line, ":") {
				family = "ipv6"
			}
			flow := fmt.Sprintf("%s.addr==%s && tcp.port==%s", family, address, fields[len(fields)-1])
			if !slices.Contains(flows, flow) && len(flows) < resetFlowsMax {
				flows = append(flows, flow)
			}
		}
	}
	return flows
}

// read the packets of a recorder that a filter of tshark's lets through, in order.
func (w *resetWatch) read(file, filter string, fields ...string) (lines []string) {
	if fields == nil {
		fields = []string{
			"frame.time_epoch", "ip.src", "ipv6.src", "ip.dst", "ipv6.dst", "guideway.route.bucket", "guideway.route.generation", "guideway.route.hop_limit",
			"guideway.route.ipv4", "guideway.route.ipv6", "tcp.flags.str", "tcp.seq_raw", "tcp.ack_raw", "tcp.len",
		}
	}
	parts, _ := filepath.Glob(file + "*")
	slices.SortFunc(parts, func(a, b string) int { return modified(a).Compare(modified(b)) })
	for _, part := range parts {
		args := []string{"-n", "-r", part, "-X", "lua_script:../../packaging/wireshark/guideway.lua", "-Y", filter, "-T", "fields"}
		for _, field := range fields {
			args = append(args, "-e", field)
		}
		out, err := exec.CommandContext(cleanUp(w.t), "tshark", args...).Output()
		if err != nil {
			w.t.Logf("tshark: %v", err)
		}
		lines = slices.AppendSeq(lines, strings.Lines(string(out)))
	}
	return lines
}

func modified(file string) time.Time {
	info, err := os.Stat(file)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
