package show

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/guideway/guideway/cli/clitest"
	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/api"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

func TestShowWithBothProcesses(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, &clitest.FakeForwarder{})
	cases := []struct {
		verb string
		want []string
	}{
		{"services", []string{"web 203.0.113.10 tcp 80 serving 1/2 990 9900"}},
		{"backends", []string{"web web-1 10.1.0.11 2 active - ok: status 200 990", "web web-2 10.1.0.12 1 down - ok: status 503, wanted 200 0"}},
		{"drops", []string{"too_big 7 does not fit usually: MTU 1.5s ago: tcp 192.0.2.7:40000 > 203.0.113.10:80, 1600 bytes", "no_service 3 no service has it"}},
		{"connections", []string{"web web-1 established 40", "web web-1 closing 2"}},
		{"peers", []string{"lb-2 10.0.0.2 healthy - answers", "lb-3 10.0.0.3 unhealthy - no answer"}},
		{"pools", []string{
			"web file /etc/guideway/web.json 4 1 - 3 backends are no longer listed, and stay until 1970-01-01T00:00:01Z (shrink_delay)",
			"mail dns mail.internal 0 0 - answered by SERVFAIL",
		}},
		{"vrrp", []string{"51 ipv4 active - 250 this machine 203.0.113.10 -", "52 ipv6 backup - 242 fe80::2 2001:db8:a::10 started",
			"probe 10.0.0.254 (gateway): answers", "probe fe80::254 (gateway): never answered, so it does not count", "probe 10.0.0.3: never answered"}},
		{"bgp", []string{"neighbor 10.0.0.254 active - AS 64513, 0 prefixes, med 10, prepend 2, BFD down hold-timer-expired", "route 203.0.113.10/32 withdrawn - for web, communities 64512:100 64512:1:2 no backend"}},
	}
	for _, c := range cases {
		t.Run(c.verb, func(t *testing.T) {
			out, _, err := guideway(t, "show", c.verb, "--run-dir", runDir)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range c.want {
				if !strings.Contains(clitest.Fields(out), want) {
					t.Errorf("lacks %q:\n%s", want, out)
				}
			}
			asJSON, _, err := guideway(t, "show", c.verb, "--run-dir", runDir, "-o", "json")
			if err != nil {
				t.Fatal(err)
			}
			asYAML, _, err := guideway(t, "show", c.verb, "--run-dir", runDir, "-o", "yaml")
			if err != nil {
				t.Fatal(err)
			}
			sameValue(t, asJSON, asYAML)
			if _, _, err := guideway(t, "show", c.verb, "--run-dir", runDir, "-o", "xml"); err == nil || commandline.ExitCode(err) != commandline.ExitUsage || !strings.Contains(err.Error(), "give one of table, wide, json, yaml") {
				t.Errorf("unknown format: %v", err)
			}
		})
	}
}

func TestShowAsJSONHasTheMessagesOfTheAPI(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, &clitest.FakeForwarder{})
	for command, want := range map[string]string{
		"services":                    `[ { "name": "web", "vips": [ "203.0.113.10 tcp 80" ], "state": "serving", "backends_active": 1, "backends": 2, "pools": [ "web" ], "backup_pools": [], "on_backup": false, "backends_min": 0, "packets": 990, "bytes": 9900, "new_connections": 12, "connections": 42 } ]`,
		"backends web-2 web-9*":       `nothing here has the name "web-9*"`,
		"backends *-2 --sort packets": `[ { "service": "web", "name": "web-2", "address": "10.1.0.12", "weight": 1, "state": "down", "reason": "ok: status 503, wanted 200", "pools": [], "services": 0, "weight_percent": 0, "held": false, "packets": 0, "bytes": 0, "new_connections": 0 } ]`,
		"pools mail":                  `[ { "name": "mail", "source": "dns mail.internal", "backends": 0, "leaving": 0, "problem": "answered by SERVFAIL", "waiting": 0 } ]`,
		"peers --only-trouble":        `[ { "name": "lb-3", "addresses": [ "10.0.0.3" ], "healthy": false, "reason": "no answer" } ]`,
		"bgp 10.0.0.254":              `{ "routes": [], "neighbors": [ { "address": "10.0.0.254", "asn": 64513, "state": "active", "reason": "hold-timer-expired", "announced_prefixes": 0, "attributes": [ "med 10", "prepend 2" ], "bfd": "down" } ] }`,
		"vrrp":                        `{ "vrrp": [ { "vrid": 51, "family": "ipv4", "state": "active", "priority": 250, "vips": [ "203.0.113.10" ], "owner_priority": 0 },`,
		"connections --limit 1":       `{ "connections_max": 5000, "counts": [ { "service": "web", "backend": "web-1", "class": "established", "connections": 40 } ] }`,
		"cache":                       `{ "state": "on", "packets": 742, "entries": 12, "entries_max": 4096, "targets": 3, "targets_max": 65536, "targets_refused": 0, "not_cached": [ { "service": "dns", "reason": "the backend has several next hops", "backends": 2 } ] }`,
		"interfaces":                  `[ { "interface": "eth1", "driver": "af_xdp", "mode": "generic", "queues": 2, "up": true,`,
	} {
		out, _, err := guideway(t, append([]string{"show", "-o", "json", "--run-dir", runDir}, strings.Fields(command)...)...)
		if err != nil {
			out = err.Error()
		}
		if !strings.HasPrefix(clitest.Fields(out), want) {
			t.Errorf("%s:\n%s\nwant\n%s", command, clitest.Fields(out), want)
		}
	}
}

func TestDropsFitATerminal(t *testing.T) {
	found := output.Listing{Header: []string{"REASON", "PACKETS", "MEANING"}, Wrapped: true, Rows: [][]string{
		{"untrusted_tunnel_source", "18446744073709551615", strings.Repeat("a sentence of some length. ", 12)},
		{"", "", "1.5s ago: tcp [2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:40000 > [2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:65535, 1600 bytes"},
	}}
	var narrow, wide bytes.Buffer
	if err := errors.Join(found.Print(&narrow, "table"), found.Print(&wide, "wide")); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(narrow.String()) {
		if len(strings.TrimRight(line, " \n")) > output.WidthMax {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	if strings.Count(wide.String(), "\n") != 3 || clitest.Fields(narrow.String()) != clitest.Fields(wide.String()) {
		t.Errorf("wide:\n%s\nnot wide:\n%s", wide.String(), narrow.String())
	}
}

// sameValue: both are well formed and say the same.
func sameValue(t *testing.T, asJSON, asYAML string) {
	t.Helper()
	var fromJSON, fromYAML any
	if err := json.Unmarshal([]byte(asJSON), &fromJSON); err != nil {
		t.Fatalf("%v\n%s", err, asJSON)
	}
	if err := yaml.Unmarshal([]byte(asYAML), &fromYAML); err != nil {
		t.Fatalf("%v\n%s", err, asYAML)
	}
	a, _ := json.Marshal(fromJSON)
	b, err := json.Marshal(fromYAML)
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("JSON %s and YAML %s differ (%v)", a, b, err)
	}
}

func TestShowCache(t *testing.T) {
	runDir := clitest.Both(t, nil, &clitest.FakeForwarder{})
	out, _, err := guideway(t, "show", "cache", "--run-dir", runDir)
	if want := "STATE PACKETS OF ALL SENT ENTRIES TARGETS REASON on 742 74.9 % 12 of 4096 3 of 65536 - not cached: service dns, 2 backends: the backend has several next hops"; err != nil || clitest.Fields(out) != want {
		t.Errorf("%v\n%s\nwant %s", err, clitest.Fields(out), want)
	}
	for _, c := range []struct {
		cache *forwarderv1.KernelCache
		want  string
	}{
		{&forwarderv1.KernelCache{State: "none", Reason: "steering is not rss"}, "steering is not rss"},
		{&forwarderv1.KernelCache{State: "off"}, "forwarder.kernel_cache is off"},
		{&forwarderv1.KernelCache{State: "paused"}, "packets are captured: workers get them all"},
		{&forwarderv1.KernelCache{State: "on", TargetsRefused: 7}, "7 more targets found no room: flows to them are not cached"},
	} {
		if why := whyNotCached(c.cache); why != c.want {
			t.Errorf("%v: %q, want %q", c.cache, why, c.want)
		}
	}
}

func TestShowInterfaces(t *testing.T) {
	runDir := clitest.Both(t, nil, &clitest.FakeForwarder{})
	out, _, err := guideway(t, "show", "interfaces", "--run-dir", runDir)
	if want := "INTERFACE DRIVER MODE QUEUES STATE MTU WHY THIS DRIVER eth1 af_xdp generic 2 up 1600 the config names it"; err != nil || clitest.Fields(out) != want {
		t.Errorf("%v\n%s\nwant %s", err, clitest.Fields(out), want)
	}
	for _, c := range []struct {
		device      *forwarderv1.Device
		state, mode string
	}{
		{&forwarderv1.Device{Mode: "-", Up: true, Gone: true}, "gone", ""},
		{&forwarderv1.Device{Mode: "native", ZeroCopy: true}, "down", "native, zero-copy"},
	} {
		if stateOf(c.device) != c.state || ModeOf(c.device) != c.mode {
			t.Errorf("%v: %q, %q", c.device, stateOf(c.device), ModeOf(c.device))
		}
	}
}

func TestShowWarnsOfAStaleConfig(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, &clitest.FakeForwarder{})
	_, stderr, err := guideway(t, "show", "services", "--run-dir", runDir)
	if err != nil || !strings.Contains(stderr, "the config is stale, the former one serves: a.yaml:3: unknown field") {
		t.Errorf("%v %q", err, stderr)
	}
}

func TestShowWithoutAController(t *testing.T) {
	runDir := clitest.Both(t, nil, &clitest.FakeForwarder{})
	out, stderr, err := guideway(t, "show", "services", "--run-dir", runDir)
	if err != nil || !strings.Contains(clitest.Fields(out), "web 203.0.113.10 tcp 80,8000-8100 no backend 0/1 990") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{api.ViewSocket(runDir), "systemctl start guideway-controller", "the plan by which the forwarder goes on"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr %q lacks %q", stderr, want)
		}
	}
	if out, _, err = guideway(t, "show", "backends", "--run-dir", runDir); err != nil || !strings.Contains(clitest.Fields(out), "web web-1 10.1.0.11 2 draining - - 990") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, _, err := guideway(t, "show", "bgp", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), "controller-view.sock") {
		t.Errorf("bgp: %v", err)
	}
}

func TestShowWithoutAForwarder(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, nil)
	out, stderr, err := guideway(t, "show", "backends", "--run-dir", runDir)
	if err != nil || !strings.Contains(clitest.Fields(out), "web-2 10.1.0.12 1 down - ok: status 503, wanted 200 -") || !strings.Contains(stderr, "systemctl start guideway-forwarder") {
		t.Errorf("%v\n%s\n%s", err, out, stderr)
	}
	for _, verb := range []string{"drops", "connections"} {
		if _, _, err := guideway(t, "show", verb, "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), "forwarder-view.sock") {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

func TestWithoutEitherBothAreNamed(t *testing.T) {
	_, _, err := guideway(t, "show", "services", "--run-dir", t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "controller-view.sock") || !strings.Contains(err.Error(), "forwarder-view.sock") || !strings.Contains(err.Error(), "no such socket") {
		t.Errorf("%v", err)
	}
}

func TestASocketOfADeadProcessIsToldApart(t *testing.T) {
	runDir := t.TempDir()
	if err := os.Mkdir(filepath.Dir(api.ViewSocket(runDir)), 0o755); err != nil {
		t.Fatal(err)
	}
	stale, err := net.Listen("unix", api.ViewSocket(runDir))
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	if _, _, err := guideway(t, "show", "bgp", "--run-dir", runDir); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v", err)
	}
}

func TestOperatorsMayLookWithoutBeingViewers(t *testing.T) {
	runDir := clitest.Both(t, &clitest.FakeController{}, &clitest.FakeForwarder{})
	for _, socket := range []string{api.ViewSocket(runDir), filepath.Join(runDir, "forwarder-view.sock")} {
		if err := os.Remove(socket); err != nil {
			t.Fatal(err)
		}
	}
	if out, stderr, err := guideway(t, "show", "services", "--run-dir", runDir); err != nil || strings.Contains(stderr, "socket") || !strings.Contains(out, "web") {
		t.Errorf("%v %s\n%s", err, stderr, out)
	}
}

func TestOneConnectionIsLookedUp(t *testing.T) {
	f := &clitest.FakeForwarder{}
	runDir := clitest.Both(t, nil, f)
	out, _, err := guideway(t, "show", "connections", "tcp", "192.0.2.7:40000", "203.0.113.10:80", "--run-dir", runDir)
	if err != nil || !strings.Contains(clitest.Fields(out), "1 web web-1 established 1.5s") {
		t.Errorf("%v\n%s", err, out)
	}
	if k := f.Lookup; k.GetSource() != "192.0.2.7" || k.GetSourcePort() != 40000 || k.GetDestination() != "203.0.113.10" || k.GetDestinationPort() != 80 || k.GetProtocol() != 6 {
		t.Errorf("requested %v", k)
	}
	for _, bad := range [][]string{
		{"tcp", "192.0.2.7", "203.0.113.10:80"},
		{"sctp", "192.0.2.7:1", "203.0.113.10:80"},
		{"tcp", "192.0.2.7:1", "[2001:db8::1]:80"},
		{"tcp", "192.0.2.7:1"},
	} {
		if _, _, err := guideway(t, append([]string{"show", "connections", "--run-dir", runDir}, bad...)...); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}

func TestWhatAProcessAnswersIsShownAsText(t *testing.T) {
	const command = "\x1b[2J\x1b]0;owned\a"
	states := []*controllerv1.GetStateResponse{{Backends: []*controllerv1.Backend{
		{Service: "web", Name: "web-1", Address: "10.1.0.11", State: "down", Reason: command + "\nweb web-2 10.1.0.12 1 active"},
	}}}
	runDir := clitest.Both(t, &clitest.FakeController{States: states}, nil)
	for _, format := range []string{"table", "json", "yaml"} {
		stdout, stderr, err := guideway(t, "show", "backends", "--run-dir", runDir, "-o", format)
		if err != nil || strings.ContainsAny(stdout+stderr, "\x1b\a") || !strings.Contains(stdout, `\x1b[2J`) && !strings.Contains(stdout, `\\x1b[2J`) {
			t.Errorf("%s: %q %v", format, stdout, err)
		}
		if format == "table" && strings.Contains(stdout, "\nweb web-2") {
			t.Errorf("a reason is a row of its own:\n%s", stdout)
		}
	}
	if _, _, err := guideway(t, "show", "backends", command, "--run-dir", runDir); err == nil || strings.ContainsAny(err.Error(), "\x1b\a") {
		t.Errorf("%q", err)
	}
}
