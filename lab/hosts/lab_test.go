package hosts

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/topology"
)

func testOptions() topology.Options {
	return topology.Options{Name: "t", RunDir: "/nowhere", LoadBalancers: 2, Backends: 3, Spares: 1, Queues: 2}
}

func TestARunDirectoryTooLongForSocketsIsRefused(t *testing.T) {
	o := testOptions()
	o.RunDir = "/tmp/" + strings.Repeat("long/", 20)
	if _, err := complete(o); err == nil || !strings.Contains(err.Error(), "give a shorter one") {
		t.Errorf("error %v", err)
	}
}

func TestStartTimeIsReadBehindANameWithParentheses(t *testing.T) {
	const stat = "42 (a) b) (c) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 987654 1000 10 18446744073709551615"
	if start, zombie, err := parseStat(stat); err != nil || start != 987654 || zombie {
		t.Errorf("start %d, zombie %v, %v", start, zombie, err)
	}
	if _, zombie, err := parseStat(strings.Replace(stat, ") S ", ") Z ", 1)); err != nil || !zombie {
		t.Errorf("zombie %v, %v", zombie, err)
	}
	for _, bad := range []string{"", "42", "42 (a) S 1"} {
		if _, _, err := parseStat(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestAnotherProcessOfTheSamePidIsLeftAlone(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	p, err := identify("sleep", cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	other := p
	other.Start--
	if other.alive() {
		t.Error("a process with another start time is alive")
	}
	if err := other.kill(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if !p.alive() {
		t.Fatal("the wrong process was killed")
	}
	if err := p.stop(time.Second); err != nil {
		t.Error(err)
	}
	<-ended
	if p.alive() {
		t.Error("it still runs")
	}
}

func TestStateSurvivesOnDisk(t *testing.T) {
	o := testOptions()
	o.RunDir = t.TempDir()
	s := state{Options: o, Owner: &process{Name: "owner", Pid: 1, Start: 2}, Processes: []process{{Name: "lb-1/forwarder", Pid: 3, Start: 4}}}
	if err := s.write(); err != nil {
		t.Fatal(err)
	}
	got, err := readState(o.RunDir)
	if err != nil || !reflect.DeepEqual(got.Options, o) || *got.Owner != *s.Owner || len(got.Processes) != 1 || got.Processes[0] != s.Processes[0] {
		t.Errorf("state %+v, %v", got, err)
	}
}

func TestOnlyFilesOfTheLabAreRemoved(t *testing.T) {
	o := testOptions()
	o.RunDir = t.TempDir()
	mine, theirs := filepath.Join(o.RunDir, "lb-1", "run"), filepath.Join(o.RunDir, "thesis.tex")
	if err := os.MkdirAll(mine, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(theirs, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := removeFiles(o, removeLogs); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(mine); err == nil {
		t.Error("the lab's directory is still there")
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Error("a file that is not the lab's is gone")
	}
}

func TestMetricsAreFoundByTheirText(t *testing.T) {
	samples, err := parseMetrics("# HELP a A.\n# TYPE a counter\na 3\nb{reason=\"x y\"} 4.5\n")
	if err != nil || samples["a"] != 3 || samples[`b{reason="x y"}`] != 4.5 {
		t.Errorf("%v, %v", samples, err)
	}
	for _, bad := range []string{"", "# only a comment\n", "word\n", "a b\n"} {
		if _, err := parseMetrics(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestTwoClustersKnowEachOther(t *testing.T) {
	o := testOptions()
	o.LoadBalancers, o.Backends, o.TwoClusters = 3, 4, true
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	network := topology.New(o)
	weights := map[string]uint32{"be-1": 1, "be-2": 1, "be-3": 1, "be-4": 1}
	for i, wants := range [][]string{
		{"name: lab,", "prefixes: [\"203.0.113.0/24\", ", "encapsulators: [10.20.2.1/32, ", "be-1,", "be-2,", "prefix: \"198.51.100.0/24\"", "suffix: \"0.0.0.10\"", "suffix: \"::10\""},
		{"name: other,", "prefixes: [\"198.51.100.0/24\", ", "encapsulators: [10.20.1.1/32, ", "be-3,", "be-4,", "prefix: \"203.0.113.0/24\"", "peers:\n- {name: lb-3,"},
	} {
		config := machineConfig(network, network.LoadBalancers[i], weights, o.Settings)
		for _, want := range wants {
			if !strings.Contains(config, want) {
				t.Errorf("cluster %d: no %q in\n%s", i, want, config)
			}
		}
		if strings.Contains(config, []string{"be-3", "be-1"}[i]) || strings.Contains(config, []string{"peers:", "name: lb-1,"}[i]) {
			t.Errorf("cluster %d names what is the other's:\n%s", i, config)
		}
	}
	if got := topology.OtherVIP(topology.WebVIPs[0]).String() + " " + topology.OtherVIP(topology.EchoVIPs[1]).String(); got != "198.51.100.10 2001:db8:b::20" {
		t.Errorf("the other cluster's VIPs are %s", got)
	}
	o.Backends = 1
	if err := o.Check(); err == nil || !strings.Contains(err.Error(), "two clusters") {
		t.Errorf("error %v", err)
	}
}

func TestConfigsNameExactlyTheGivenBackends(t *testing.T) {
	network := topology.New(testOptions())
	config := machineConfig(network, network.LoadBalancers[0], map[string]uint32{"be-1": 1, "be-4": 0}, topology.Settings{})
	for text, want := range map[string]int{
		"{name: be-1,": 2, "{name: be-1-v6,": 1, "{name: be-2,": 0, "{name: be-4-v6, address: \"2001:db8:30:4::1\", weight: 0}": 1,
		"{name: lb-2, addresses": 1, "machine: {name: lb-1": 1,
	} {
		if got := strings.Count(config, text); got != want {
			t.Errorf("%q is there %d times, not %d, in\n%s", text, got, want, config)
		}
	}
	if NodeOf("be-4-v6") != "be-4" || NodeOf("be-4") != "be-4" {
		t.Error("a backend's server")
	}
}

func TestARouterThatMayNotEnterItsDirectoryIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it gives directories away")
	}
	o := testOptions()
	o.RunDir, o.Router = filepath.Join(t.TempDir(), "lab"), "frr"
	lab := &Lab{Network: topology.New(o), state: state{Options: o}}
	if err := os.MkdirAll(lab.path(lab.router(), ""), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(o.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := (frr{lab}).giveDirectory(); err == nil || !strings.Contains(err.Error(), "user frr may not enter "+o.RunDir+": chmod o+x it") {
		t.Errorf("error %v", err)
	}
	if _, named := lab.routing().(frr); !named {
		t.Errorf("the router is %T", lab.routing())
	}
}

func TestFRRTakesTheRoutesOfVIPsAlone(t *testing.T) {
	config := frrConfig(topology.New(testOptions()))
	for _, want := range []string{
		"\nip prefix-list vips seq 6 permit 203.0.113.0/24 ge 32\n", "\nipv6 prefix-list vips seq 16 permit 2001:db8:a::/64 ge 128\n",
		" neighbor 10.20.2.1 update-source 10.20.2.254\n", " bgp bestpath as-path multipath-relax\n",
	} {
		if !strings.Contains(config, want) {
			t.Errorf("no %q in\n%s", want, config)
		}
	}
}
