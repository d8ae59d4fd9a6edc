package scenarios_test

import (
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
// has sent an RST from a VIP that it cannot excuse: what came before it says why.
//
// Excused is an RST of a connection that both sides have closed: a client whose last ACK is
// late gets the server's FIN again, and its second ACK finds no socket, whatever is between.
type resetWatch struct {
	t         *testing.T
	lab       *hosts.Lab
	resets    vipResets
	directory string
	files     []string // by backend
	// By backend; and which these were.
	excused map[string]uint64
	judged  map[sentReset]bool
	stop    chan struct{}
	stopped chan struct{}
}

const (
	// Files of the recorder's ring, of a million bytes each: half a minute of a load.
	resetFileBytes, resetFiles = "16", "4"
	// How often RSTs are counted, and after how many times one has to be recorded.
	resetInterval, resetTries = 500 * time.Millisecond, 10
	// Of a flow, at each backend.
	resetPacketsMax = 12
	resetFlowsMax   = 3
)

func watchResets(t *testing.T, running *hosts.Lab) *resetWatch {
	t.Helper()
	w := &resetWatch{
		t: t, lab: running, directory: t.TempDir(), excused: map[string]uint64{}, judged: map[sentReset]bool{},
		stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	var endRecord func()
	w.files, endRecord = record(t, running, "-n", "-s", "192", "-B", "8192", "--immediate-mode", "-C", resetFileBytes, "-W", resetFiles)
	w.resets = countVIPResets(t, running) // of those that are recorded
	go w.run(endRecord)
	t.Cleanup(w.end)
	return w
}

// run until an RST was sent that nothing excuses, or the watch ends.
func (w *resetWatch) run(endRecord func()) {
	defer close(w.stopped)
	defer endRecord()
	for tries := 0; tries < resetTries; {
		isEnd := false
		select {
		case <-w.stop:
			isEnd = true
		default:
		}
		time.Sleep(resetInterval) // what was sent before is written then
		switch excused := w.excuse(w.sent()); {
		case !excused:
			tries++
		case isEnd:
			return
		default:
			tries = 0
		}
	}
}

// sent by backend since those that were excused.
func (w *resetWatch) sent() map[string]uint64 {
	sent := map[string]uint64{}
	for _, backend := range w.lab.Backends() {
		if n, err := w.resets.of(backend); err == nil && n > w.excused[backend] {
			sent[backend] = n - w.excused[backend]
		}
	}
	return sent
}

// excuse these RSTs if each of them is recorded, and of a connection that was closed.
func (w *resetWatch) excuse(sent map[string]uint64) bool {
	for i, backend := range w.lab.Backends() {
		if sent[backend] == 0 {
			continue
		}
		fresh := slices.DeleteFunc(w.recorded(w.files[i]), func(r sentReset) bool { return w.judged[r] })
		if uint64(len(fresh)) != sent[backend] || slices.ContainsFunc(fresh, w.isOpen) {
			return false
		}
		for _, r := range fresh {
			w.judged[r] = true
		}
		w.excused[backend] += sent[backend]
	}
	return true
}

func (w *resetWatch) end() {
	select {
	case <-w.stop:
	default:
		close(w.stop)
	}
	<-w.stopped
}

// check that no backend's kernel has sent an RST but for those that are excused; else say
// about which flows, and which packets of theirs came to which backend by which maps.
func (w *resetWatch) check() {
	w.t.Helper()
	w.end()
	if w.resets.check(w.excused) {
		w.t.Logf("RSTs of connections that both sides had closed: %v", w.excused)
		return
	}
	var shown []string
	for _, file := range w.files {
		for _, r := range w.recorded(file) {
			if !slices.Contains(shown, r.flow) && len(shown) < resetFlowsMax {
				shown = append(shown, r.flow)
				w.show(r.flow)
			}
		}
	}
	if len(shown) == 0 {
		w.t.Log("none of them is in what was recorded")
	}
}

func (w *resetWatch) show(flow string) {
	for _, file := range w.files {
		lines := w.read(file, "", flow)
		w.t.Logf("%s, %s: time, from, to, bucket, generation, hop limit, try next, flags, sequence, acknowledged, bytes:\n%s",
			filepath.Base(file), flow, strings.Join(lines[max(0, len(lines)-resetPacketsMax):], ""))
	}
}

// sentReset is an RST from a VIP.
type sentReset struct {
	time string
	// The client's port, and a filter of tshark's for its flow.
	port, flow string
	sequence   uint32
}

// For tcpdump, in a quarter of a second; tshark takes a minute for as much. To it `and` binds no
// closer than `or`.
const resetsFromVIPs = "(src net 203.0.113.0/24 and tcp[tcpflags] & tcp-rst != 0) or (src net 2001:db8:a::/64 and ip6[6] == 6 and ip6[53] & 4 != 0)"

func (w *resetWatch) recorded(file string) (resets []sentReset) {
	for _, line := range w.read(file, resetsFromVIPs, "tcp", "frame.time_epoch", "ip.dst", "ipv6.dst", "tcp.dstport", "tcp.seq_raw") {
		fields := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(fields) != 5 {
			continue
		}
		family, address := "ip", fields[1]
		if fields[2] != "" {
			family, address = "ipv6", fields[2]
		}
		r := sentReset{time: fields[0], port: fields[3], flow: fmt.Sprintf("%s.addr==%s && tcp.port==%s", family, address, fields[3])}
		if _, err := fmt.Sscan(fields[4], &r.sequence); err == nil {
			resets = append(resets, r)
		}
	}
	return resets
}

// isOpen, as far as the recorder knows: not that the client has sent a FIN, and acknowledges
// one of the server with the packet that the RST answers.
func (w *resetWatch) isOpen(r sentReset) bool {
	byClient, byServer := false, false
	fins := func(file, packets string) {
		for _, line := range w.read(file, packets+"tcp port "+r.port, r.flow+" && tcp.flags.fin==1", "tcp.srcport", "tcp.seq_raw", "tcp.len") {
			var port string
			var sequence, length uint32
			if _, err := fmt.Sscan(line, &port, &sequence, &length); err != nil {
				continue
			}
			byClient = byClient || port == r.port
			byServer = byServer || port != r.port && sequence+length+1 == r.sequence
		}
	}
	for _, file := range w.files {
		fins(file, "")            // from the server
		fins(file, "geneve and ") // to it, in tunnels
	}
	return !byClient || !byServer
}

// read the packets of a recorder that pass a filter of tcpdump's, which may be empty, and one
// of tshark's, in order.
func (w *resetWatch) read(file, quick, filter string, fields ...string) (lines []string) {
	if fields == nil {
		fields = []string{
			"frame.time_epoch", "ip.src", "ipv6.src", "ip.dst", "ipv6.dst", "guideway.route.bucket", "guideway.route.generation", "guideway.route.hop_limit",
			"guideway.route.ipv4", "guideway.route.ipv6", "tcp.flags.str", "tcp.seq_raw", "tcp.ack_raw", "tcp.len",
		}
	}
	parts, _ := filepath.Glob(file + "*")
	slices.SortFunc(parts, func(a, b string) int { return modified(a).Compare(modified(b)) })
	for _, part := range parts {
		if quick != "" {
			part = w.chosen(part, quick)
		}
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

// chosen packets of a file, in another.
func (w *resetWatch) chosen(file, filter string) string {
	chosen := filepath.Join(w.directory, "chosen")
	if out, err := exec.CommandContext(cleanUp(w.t), "tcpdump", "-n", "-r", file, "-w", chosen, filter).CombinedOutput(); err != nil {
		w.t.Logf("tcpdump: %v: %s", err, out)
	}
	return chosen
}

func modified(file string) time.Time {
	info, err := os.Stat(file)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
