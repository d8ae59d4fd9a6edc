package diagnose

// The verbs for trouble: explain, show drops, capture, doctor.

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func TestExplainTellsEveryDecisionInOrder(t *testing.T) {
	runDir := clitest.Both(t, nil, &clitest.FakeForwarder{})
	cases := []struct{ destination, want string }{
		{"203.0.113.10:80", `verdict     sent to web-1
service     web, by its entry 203.0.113.10 tcp 80
hash        0123456789abcdef
slot        4711 of 65537, which is web-2
tracked     worker 1 has it at web-1 (established, idle 1.5s), which overrides the hash
cached      in queue 1 of eth1 (idle 300ms): the kernel sends its data packets by itself
backend     web-1 at 10.1.0.11
next hop    02:00:00:00:00:01 on eth1, MTU 1600
outer       gre, of a packet without data:
            0200 0000 0001 0200 0000 00fe 0800 4500
            002a
`},
		{"203.0.113.10:81", `verdict     dropped: no_service
            No service has it.
            usual cause: A scan.
`},
	}
	for _, c := range cases {
		out, _, err := guideway(t, "explain", "tcp", "192.0.2.7:40000", c.destination, "--run-dir", runDir)
		if err != nil || out != c.want {
			t.Errorf("%v\n%s\nwant\n%s", err, out, c.want)
		}
	}
	out, _, err := guideway(t, "explain", "tcp", "192.0.2.7:40000", "203.0.113.10:82", "--run-dir", runDir, "-o", "json")
	var shown forwarderv1.ExplainResponse
	if err != nil || protojson.Unmarshal([]byte(out), &shown) != nil || shown.Tracked != nil || shown.GetSlot() != 4711 || shown.NextHop.Mtu != 1600 {
		t.Errorf("%v\n%s", err, out)
	}
	out, _, err = guideway(t, "explain", "tcp", "192.0.2.7:40000", "203.0.113.10:83", "--run-dir", runDir)
	if want := "then 10.1.0.12, 10.1.0.13: the bucket moves, and agents pass on what is not theirs"; err != nil || !strings.Contains(clitest.Fields(out), want) {
		t.Errorf("%v, lacks %q:\n%s", err, want, out)
	}
	out, _, err = guideway(t, "explain", "tcp", "192.0.2.7:40000", "203.0.113.10:84", "--run-dir", runDir)
	if want := "outer none (l2): the packet itself goes there, one hop older"; err != nil || !strings.Contains(clitest.Fields(out), want) {
		t.Errorf("%v, lacks %q:\n%s", err, want, out)
	}
	if _, _, err := guideway(t, "explain", "tcp", "192.0.2.7:40000", "--run-dir", runDir); err == nil {
		t.Error("two words were accepted")
	}
}

func TestExplainSaysWhatAConnectionIDSays(t *testing.T) {
	id := func(byFlow, backend string) *forwarderv1.ExplainedConnectionId {
		return &forwarderv1.ExplainedConnectionId{Config: proto.Uint32(5), ServerId: "0a0b", Encrypted: true, Backend: backend, ByFlow: byFlow}
	}
	cases := []struct {
		told *forwarderv1.ExplainedConnectionId
		want string
	}{
		{nil, "counts for nothing: the service has no quic_lb"},
		{id("", "web-1"), "config 5 (encrypted), server id 0a0b, which is web-1: decides"},
		{id("unavailable", "web-1"), "config 5 (encrypted), server id 0a0b, which is web-1, and that is down or disabled: the flow decides (unavailable)"},
		{id("unknown_server", ""), "config 5 (encrypted), server id 0a0b, which no backend of the service has: the flow decides (unknown_server)"},
		{&forwarderv1.ExplainedConnectionId{ByFlow: "unroutable"}, "config id 7 names no server: the flow decides (unroutable)"},
		{&forwarderv1.ExplainedConnectionId{ByFlow: "of a newer version"}, "the flow decides (of a newer version)"},
	}
	for _, c := range cases {
		e := explanation{told: &forwarderv1.ExplainResponse{Service: "web", ConnectionId: c.told}, asksForID: true}
		if lines := fmt.Sprint(e.lines()); !strings.Contains(lines, "{QUIC id "+c.want+"}") {
			t.Errorf("%s lacks %q", lines, c.want)
		}
	}
	for _, c := range []struct{ protocol, id, want string }{
		{"udp", "0g", `--connection-id "0g": give 1 to 20 bytes in hexadecimal digits, as captures show them`},
		{"udp", "", `--connection-id "": give 1 to 20 bytes in hexadecimal digits, as captures show them`},
		{"udp", strings.Repeat("00", 21), `--connection-id "` + strings.Repeat("00", 21) + `": give 1 to 20 bytes in hexadecimal digits, as captures show them`},
		{"tcp", "0a", "--connection-id with tcp: QUIC is UDP, give `udp`"},
	} {
		_, _, err := guideway(t, "explain", c.protocol, "192.0.2.7:40000", "203.0.113.10:443", "--connection-id", c.id)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s %s: %v", c.protocol, c.id, err)
		}
	}
}

func TestExplainSaysWhatATCPHeaderSelectsBy(t *testing.T) {
	for want, told := range map[string]*forwarderv1.ExplainedMultipath{
		"counts for nothing: the service has no `mptcp: {}`":                                nil,
		"a connection of version 1, which gets key 01, whose token is 02: bucket 3 decides": {By: "key_v1", Key: "01", Token: "02", Bucket: proto.Uint32(3)},
		"a join of the connection with token 02: bucket 3 decides":                          {By: "token", Token: "02", Bucket: proto.Uint32(3)},
		"echoes timestamp 02, whose lowest bits are those of a token: bucket 3 decides":     {By: "timestamp", Token: "02", Bucket: proto.Uint32(3)},
		"the flow decides (repeated_option)":                                                {By: "repeated_option"},
	} {
		e := explanation{told: &forwarderv1.ExplainResponse{Service: "web", Multipath: told}, asksForHeader: true}
		if lines := fmt.Sprint(e.lines()); !strings.Contains(lines, "{mptcp "+want+"}") {
			t.Errorf("%s lacks %q", lines, want)
		}
	}
	for _, c := range []struct{ protocol, header, want string }{
		{"tcp", "00", `--tcp-header "00": give 20 to 60 bytes in hexadecimal digits, as captures show them`},
		{"udp", strings.Repeat("00", 20), "--tcp-header with udp: give `tcp`"},
	} {
		_, _, err := guideway(t, "explain", c.protocol, "192.0.2.7:40000", "203.0.113.10:443", "--tcp-header", c.header)
		if err == nil || err.Error() != c.want {
			t.Errorf("%s %s: %v", c.protocol, c.header, err)
		}
	}
}

// The forwarder's program is found in PATH; a stand-in answers as it does.
func TestAPlanFileIsExplainedByTheForwardersProgram(t *testing.T) {
	folder := t.TempDir()
	script := "#!/bin/sh\n[ \"$3\" = good.json ] || { echo 'guideway-forwarder: bad.json: not a plan' >&2; exit 1; }\n" +
		"[ \"$4 $5 $6 $7 $8\" = '6 192.0.2.7 40000 203.0.113.10 80' ] || exit 2\n" +
		`echo '{"generation": 1, "verdict": "sent", "service": "web", "slot": 3, "tracked": null, "next_hop": {"device": "-", "mac": "02:00:00:00:00:fe", "mtu": 65535}}'` + "\n"
	if err := os.WriteFile(filepath.Join(folder, "guideway-forwarder"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	out, _, err := guideway(t, "explain", "tcp", "192.0.2.7:40000", "203.0.113.10:80", "--plan", "good.json")
	for _, want := range []string{"slot 3 of 0", "a plan file has no connections", "not known to a plan file"} {
		if err != nil || !strings.Contains(clitest.Fields(out), want) {
			t.Errorf("%v, lacks %q:\n%s", err, want, out)
		}
	}
	if _, _, err := guideway(t, "explain", "tcp", "192.0.2.7:40000", "203.0.113.10:80", "--plan", "bad.json"); err == nil || err.Error() != "bad.json: not a plan" {
		t.Errorf("%v", err)
	}
}

func TestACaptureHasACommentForEachPacket(t *testing.T) {
	f := &clitest.FakeForwarder{}
	runDir := clitest.Both(t, nil, f)
	file := filepath.Join(t.TempDir(), "out.pcapng")
	_, stderr, err := guideway(t, "capture", "--service", "web", "--client", "192.0.2.0/24", "--reason", "no_service", "--verdict", "sent,dropped",
		"--sample", "1/10", "--count", "2", "-w", file, "--run-dir", runDir)
	if err != nil || !strings.Contains(stderr, "2 packets captured, 4 missed") {
		t.Fatalf("%v\n%s", err, stderr)
	}
	if r := f.Captured; r.Service != "web" || r.Client != "192.0.2.0/24" || r.Sample != 10 || len(r.Reasons) != 1 || len(r.Verdicts) != 2 {
		t.Errorf("requested %v", r)
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []uint32
	for rest := written; len(rest) > 0; {
		length := binary.LittleEndian.Uint32(rest[4:])
		if length%4 != 0 || binary.LittleEndian.Uint32(rest[length-4:]) != length {
			t.Fatalf("a block's lengths disagree: %x", rest[:length])
		}
		kinds = append(kinds, binary.LittleEndian.Uint32(rest))
		rest = rest[length:]
	}
	if want := []uint32{blockSection, blockInterface, blockPacket, blockInterface, blockPacket}; !slices.Equal(kinds, want) {
		t.Errorf("blocks %v, want %v", kinds, want)
	}
	readByTshark(t, file)
}

// An independent reader agrees on times, interfaces and comments.
func readByTshark(t *testing.T, file string) {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Log("tshark is not here; the file is only looked at by ourselves")
		return
	}
	out, err := exec.Command(tshark, "-r", file, "-T", "fields", "-e", "frame.time_epoch", "-e", "frame.interface_name", "-e", "frame.len", "-e", "frame.comment").Output()
	if err != nil {
		t.Fatal(err)
	}
	const want = "1700000000.123456789\teth1\t31\tsent; service web; backend web-1; worker 1\n" +
		"1700000001.000000000\teth2\t31\tdropped: no_service; worker 0\n"
	if string(out) != want {
		t.Errorf("tshark reads\n%swant\n%s", out, want)
	}
}

func TestACaptureReplacesAFormerOneAtItsEndOnly(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "out.pcapng")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	only := func(what string, wanted string) {
		t.Helper()
		entries, err := os.ReadDir(folder)
		if err != nil || len(entries) != 1 {
			t.Errorf("%s: left are %v, %v", what, entries, err)
		}
		if content, _ := os.ReadFile(file); !strings.HasPrefix(string(content), wanted) {
			t.Errorf("%s: the file is %.20q", what, content)
		}
	}
	if _, _, err := guideway(t, "capture", "-w", file, "--run-dir", t.TempDir()); err == nil {
		t.Error("a capture without a forwarder")
	}
	only("without a forwarder", "precious")
	runDir := clitest.Both(t, nil, &clitest.FakeForwarder{})
	if _, _, err := guideway(t, "capture", "-w", file, "--service", "none", "--run-dir", runDir); err == nil {
		t.Error("a capture of no service")
	}
	only("refused", "precious")
	if _, _, err := guideway(t, "capture", "-w", file, "--count", "2", "--run-dir", runDir); err != nil {
		t.Error(err)
	}
	only("captured", "\x0a\x0d\x0d\x0a")
}

func TestACaptureThatCannotBeIsRefused(t *testing.T) {
	runDir := clitest.Both(t, nil, &clitest.FakeForwarder{})
	file := filepath.Join(t.TempDir(), "out.pcapng")
	cases := []struct {
		args []string
		want string
	}{
		{[]string{"-w", file, "--service", "none"}, "no service `none`: there is web"},
		{[]string{"-w", file, "--sample", "10"}, "write 1/N"},
		{[]string{"-w", file, "--sample", "1/0"}, "write 1/N"},
		{[]string{"-w", filepath.Join(file, "x")}, "create the capture"},
		{nil, `required flag(s) "write" not set`},
	}
	for _, c := range cases {
		_, _, err := guideway(t, append([]string{"capture", "--run-dir", runDir}, c.args...)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}

type fakeHost struct{ text string }

func (h fakeHost) features(context.Context, string) (string, error) { return h.text, nil }
func (fakeHost) receiveQueues(string) int                           { return 4 }
func (fakeHost) addresses() []netip.Addr                            { return []netip.Addr{netip.MustParseAddr("203.0.113.10")} }
func (fakeHost) vlans(device string) []string                       { return []string{device + ".100"} }
func (fakeHost) localPorts() (int, int, error)                      { return 32768, 60999, nil }
func (fakeHost) inputDrops(context.Context) ([]string, error)       { return nil, nil }
func (fakeHost) accepts(context.Context, netip.AddrPort, netip.Addr, string) error {
	return nil
}

func TestDoctorNamesWhatIsWrongAndItsCure(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, &clitest.FakeForwarder{})
	findings := examine(t.Context(), machine.Machine{RunDir: runDir}, fakeHost{"large-receive-offload: off [fixed]\ngeneric-receive-offload: on\n"})
	var out bytes.Buffer
	if err := printFindings(&out, "table", findings); !errors.Is(err, commandline.ErrReported) {
		t.Errorf("%v, want an exit code", err)
	}
	for _, want := range []string{
		"ok forwarder answers, version 1",
		"fail forwarder has had no request of a controller for 5s: it goes on by its last plan",
		"fail config the newest is refused, an older one serves: a.yaml:3",
		"fail next hop of web-1 (10.1.0.11) is not known: no route; look at `ip route get 10.1.0.11`",
		"warn path mtu 12 ICMP errors said that a tunnel's packets do not fit, the last 1m1s ago from 10.1.255.254: the path to web-1 carries 1400 bytes.",
		"fail eth1 has 4 receive queues, of which 2 are ours",
		"warn eth1 runs XDP in generic mode",
		"warn eth1 has no way back to the kernel",
		"warn plan is served but not on disk, so a restart would start from an older one (writing plan.json: no space left on device)",
		"ethtool -K eth1 gro off",
		"fail bgp the session with 10.0.0.254 (AS 64513) is active: hold-timer-expired",
		"warn route 203.0.113.10/32 is not announced: no backend",
		"ok peer lb-2 answers",
		"warn peer lb-3: no answer",
		"warn service web is served by 1 of 2 backends",
		"ok accounts all of 1000 packets",
		"warn lost 9 packets before us (interface=\"eth1\",queue=\"1\",where=\"ring_full\")",
		"ok drops 7 of 1000: too_big. Usually: MTU",
	} {
		if !strings.Contains(clitest.Fields(out.String()), want) {
			t.Errorf("lacks %q:\n%s", want, out.String())
		}
	}
}

func TestDoctorBelievesNothingAboutAForwarderThatDoesNotAnswer(t *testing.T) {
	out, _, err := guideway(t, "doctor", "--run-dir", clitest.Both(t, &clitest.FakeController{}, nil))
	if !errors.Is(err, commandline.ErrReported) || strings.Contains(out, "wanted and running") || strings.Contains(out, "mtu") {
		t.Errorf("%v\n%s", err, out)
	}
}

// Both generations are 0 while neither process has a plan.
func TestDoctorDoesNotCallAnAbsentPlanRunning(t *testing.T) {
	for _, c := range []struct {
		running uint64
		want    finding
	}{
		{0, finding{gradeFail, "plan", "the forwarder has none and forwards nothing: start the controller with a good config"}},
		{4, finding{gradeWarn, "plan", "the forwarder goes on with its last one; the controller has none yet: `guideway config check`, then the controller's log"}},
	} {
		p := diagnosis{status: &forwarderv1.GetStatusResponse{Generation: c.running}, state: &controllerv1.GetStateResponse{}}
		p.plan()
		if !slices.Equal(p.findings, []finding{c.want}) {
			t.Errorf("running %d: %v", c.running, p.findings)
		}
	}
}

func TestDoctorNamesAThreadThatHangsAndItsCure(t *testing.T) {
	p := diagnosis{status: &forwarderv1.GetStatusResponse{Helpers: []*forwarderv1.HelperThread{
		{Name: "next-hops", HeartbeatAgeMs: 7000}, {Name: "punt", HeartbeatAgeMs: 50}, {Name: "take-over", HeartbeatAgeMs: 61_000}, {Name: "of-a-later-version", HeartbeatAgeMs: 7000},
	}}}
	p.threads()
	var told []string
	for _, f := range p.findings {
		told = append(told, f.Grade+" "+f.Text)
	}
	want := []string{
		"fail its thread next-hops hangs, no heartbeat for 7s: backends whose MAC address, route or MTU changed since are sent to as before, and a link that goes down is not seen: `systemctl reload guideway-forwarder` has a new process take over",
		"fail its thread take-over hangs, no heartbeat for 1m1s: no other process can take over: `systemctl restart guideway-forwarder`",
	}
	if !slices.Equal(told, want) {
		t.Errorf("%q", told)
	}
}

func TestDoctorWithoutProcessesFails(t *testing.T) {
	out, _, err := guideway(t, "doctor", "--run-dir", t.TempDir())
	if !errors.Is(err, commandline.ErrReported) || strings.Count(out, "no such socket") != 3 || !strings.Contains(out, "systemctl start guideway-forwarder") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDoctorOfALargeSiteIsAFewLines(t *testing.T) {
	p := &diagnosis{state: &controllerv1.GetStateResponse{Machine: &controllerv1.Machine{State: "serving"}}, status: &forwarderv1.GetStatusResponse{}}
	for i := range 10_000 {
		name := fmt.Sprintf("web-%d", i)
		p.state.Services = append(p.state.Services, &controllerv1.Service{Name: name, State: "serving", Backends: 200, BackendsActive: 200 - uint32(i%2)})
		p.state.SilentAgents, p.state.AgentsBehind = append(p.state.SilentAgents, name), append(p.state.AgentsBehind, name)
		p.status.Unresolved = append(p.status.Unresolved, &forwarderv1.UnresolvedBackend{Name: name, Address: "10.1.0.1", Why: "no route"})
	}
	p.nextHops()
	p.backends()
	if len(p.findings) != 5 {
		t.Fatal(len(p.findings), p.findings)
	}
	for i, want := range []string{
		"of web-0 (10.1.0.1) and 9999 more are not known: no route", "web-1 and 4999 more are served by 199 of 200 backends", "web-0 and 4999 more are served by all 200",
		"silent on web-0, web-1, web-2 and 9997 more", "behind on web-0, web-1, web-2 and 9997 more: VIPs",
	} {
		if !strings.HasPrefix(p.findings[i].Text, want) {
			t.Errorf("%q, want %q", p.findings[i].Text, want)
		}
	}
}

func TestDoctorSaysWhatEndsTheDrainOfAService(t *testing.T) {
	p := diagnosis{state: &controllerv1.GetStateResponse{Services: []*controllerv1.Service{
		{Name: "web", State: "drained", Reason: "drained by command", BackendsActive: 2, Backends: 2, Drain: &controllerv1.Drain{}},
	}}}
	p.backends()
	want := finding{gradeWarn, "service", "web is in state `drained`: drained by command; `guideway undrain service web` ends that"}
	if !slices.Equal(p.findings, []finding{want}) {
		t.Errorf("%v", p.findings)
	}
}

func TestDoctorTellsOneCauseOnce(t *testing.T) {
	const cause = "the plan was made with key 1234 and the forwarder's secret makes 5678"
	const reason = "the forwarder refuses the plan: " + cause
	state := &controllerv1.GetStateResponse{
		Machine:   &controllerv1.Machine{State: "not serving", Reason: reason},
		Forwarder: &controllerv1.Forwarder{GenerationWanted: 1, Refusal: cause},
		NotReady:  []string{reason},
		Neighbors: []*controllerv1.Neighbor{{Address: "10.0.0.254", State: "established"}},
	}
	for i := range 3 {
		state.Services = append(state.Services, &controllerv1.Service{Name: fmt.Sprint("web-", i), State: "not serving", Reason: reason, BackendsActive: 1, Backends: 1})
		state.Routes = append(state.Routes, &controllerv1.Route{Prefix: fmt.Sprintf("203.0.113.%d/32", i), Reason: reason})
	}
	for i := 10; i < 30; i++ {
		state.Services = append(state.Services, &controllerv1.Service{Name: fmt.Sprint("api-", i), State: "serving in part", Reason: "203.0.113.9/32 is not announced", BackendsActive: 1, Backends: 1})
		state.Routes = append(state.Routes, &controllerv1.Route{Prefix: fmt.Sprintf("203.0.113.%d/32", i), Reason: "no backend"})
	}
	p := diagnosis{state: state, status: &forwarderv1.GetStatusResponse{Generation: 7}}
	p.machine()
	p.plan()
	p.bgp()
	p.backends()
	var out bytes.Buffer
	_ = printFindings(&out, "table", p.findings)
	for text, times := range map[string]int{
		cause: 1, "fail  plan        the forwarder refuses it: so the machine does not serve": 1, "web-": 0,
		"fail  service     api-10 and 19 more are in state `serving in part`": 1, "warn  route       203.0.113.10/32 and 19 more are not announced: no backend": 1,
	} {
		if got := strings.Count(out.String(), text); got != times {
			t.Errorf("%q stands there %d times, want %d:\n%s", text, got, times, out.String())
		}
	}
}
