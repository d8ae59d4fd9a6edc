package lab

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

func testOptions() Options {
	return Options{Name: "t", RunDir: "/nowhere", LoadBalancers: 2, Backends: 3, Spares: 1, Queues: 2}
}

func TestEveryNodeHasItsOwnNameAndAddresses(t *testing.T) {
	o := testOptions()
	o.LoadBalancers, o.Backends, o.Spares = limitMachines, limitMachines-1, 1
	l := newLayout(o)
	seen := map[string]bool{}
	for _, n := range l.nodes() {
		for _, text := range []string{n.Namespace, n.Port, n.address(0).String(), n.address(1).String(), n.gateway(0).String(), n.gateway(1).String()} {
			if seen[text] {
				t.Errorf("%s: %s is used twice", n.Name, text)
			}
			seen[text] = true
		}
		if len(n.Port) > 15 {
			t.Errorf("%s: a link's name has at most 15 characters", n.Port)
		}
		if !strings.HasPrefix(n.Namespace, "gw-t.") {
			t.Errorf("namespace %s does not carry the instance", n.Namespace)
		}
	}
	if len(seen) != 6*(1+2*limitMachines) {
		t.Errorf("%d names", len(seen))
	}
}

func TestNoInstanceIsThePrefixOfAnother(t *testing.T) {
	for _, name := range newLayout(Options{Name: "t-1", LoadBalancers: 1, Backends: 1}).namespaces() {
		if strings.HasPrefix(name, namespacePrefix("t")) {
			t.Errorf("lab t would take namespace %s of lab t-1 down", name)
		}
	}
}

func TestBadOptionsAreRefusedWithTheirCure(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"name":               func(o *Options) { o.Name = "a b" },
		"name \"../etc\"":    func(o *Options) { o.Name = "../etc" },
		"load balancers 0":   func(o *Options) { o.LoadBalancers = 0 },
		"backends 0":         func(o *Options) { o.Backends = 0 },
		"backends 200 (and ": func(o *Options) { o.Backends = 200 },
		"queues 17":          func(o *Options) { o.Queues = 17 },
		"encap \"vxlan\"":    func(o *Options) { o.Encap = "vxlan" },
		"steering \"hand\"":  func(o *Options) { o.Steering = "hand" },
		"workers 3: only":    func(o *Options) { o.Workers = 3 },
		"workers 65: give":   func(o *Options) { o.Steering, o.Workers = "software", 65 },
		"fabric MTU 1400":    func(o *Options) { o.FabricMTU = 1400 },
	} {
		o := testOptions()
		change(&o)
		if err := o.check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", want, err)
		}
	}
	if err := testOptions().check(); err != nil {
		t.Error(err)
	}
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
		t.Error("somebody else's file is gone")
	}
}

func TestKernelCountersAreFoundByTheirColumn(t *testing.T) {
	const snmp = `Ip: Forwarding DefaultTTL InCsumErrors
Ip: 1 64 9
Tcp: RtoAlgorithm RtoMin RtoMax MaxConn InErrs OutRsts InCsumErrors
Tcp: 1 200 120000 -1 4 6 3
Udp: InDatagrams NoPorts InCsumErrors IgnoredMulti
Udp: 7 8 2 0
`
	counters := map[string]uint64{}
	parseSnmp(snmp, counters)
	parseSnmp6("Udp6InErrors  3\nUdp6InCsumErrors   4\nUdpLite6InCsumErrors 5\n", counters)
	for name, want := range map[string]uint64{"Ip.InCsumErrors": 9, "Tcp.InCsumErrors": 3, "Udp.InCsumErrors": 2, "Udp6InCsumErrors": 4, "Tcp.MaxConn": 0} {
		if got, known := counters[name]; !known || got != want {
			t.Errorf("%s is %d", name, got)
		}
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
	if err := o.check(); err != nil {
		t.Fatal(err)
	}
	l := newLayout(o)
	weights := map[string]uint32{"be-1": 1, "be-2": 1, "be-3": 1, "be-4": 1}
	for i, wants := range [][]string{
		{"name: lab,", "prefixes: [\"203.0.113.0/24\", ", "encapsulators: [10.20.2.1/32, ", "be-1,", "be-2,", "prefix: \"198.51.100.0/24\"", "suffix: \"0.0.0.10\"", "suffix: \"::10\""},
		{"name: other,", "prefixes: [\"198.51.100.0/24\", ", "encapsulators: [10.20.1.1/32, ", "be-3,", "be-4,", "prefix: \"203.0.113.0/24\"", "peers:\n- {name: lb-3,"},
	} {
		config := machineConfig(l, l.LoadBalancers[i], weights, o.Settings)
		for _, want := range wants {
			if !strings.Contains(config, want) {
				t.Errorf("cluster %d: no %q in\n%s", i, want, config)
			}
		}
		if strings.Contains(config, []string{"be-3", "be-1"}[i]) || strings.Contains(config, []string{"peers:", "name: lb-1,"}[i]) {
			t.Errorf("cluster %d names what is the other's:\n%s", i, config)
		}
	}
	if got := OtherVIP(WebVIPs[0]).String() + " " + OtherVIP(EchoVIPs[1]).String(); got != "198.51.100.10 2001:db8:b::20" {
		t.Errorf("the other cluster's VIPs are %s", got)
	}
	o.Backends = 1
	if err := o.check(); err == nil || !strings.Contains(err.Error(), "two clusters") {
		t.Errorf("error %v", err)
	}
}

func TestNextHopsOfSingleAndMultipathRoutes(t *testing.T) {
	first, second := netip.MustParseAddr("10.20.1.1"), netip.MustParseAddr("10.20.2.1")
	single := netlink.Route{Gw: first.AsSlice()}
	multi := netlink.Route{MultiPath: []*netlink.NexthopInfo{{Gw: first.AsSlice()}, {Gw: second.AsSlice()}}}
	if got := nextHops(single); len(got) != 1 || got[0] != first {
		t.Errorf("single: %v", got)
	}
	if got := nextHops(multi); len(got) != 2 || got[1] != second {
		t.Errorf("multipath: %v", got)
	}
	routes := Routes{WebVIPs[0]: {first}, WebVIPs[1]: nil}
	if !routes.Via([]netip.Addr{first, second}) || routes.Via([]netip.Addr{second}) {
		t.Error("via tells another route")
	}
	if err := routes.complete(WebVIPs, 1); err == nil {
		t.Error("routes lack, but are complete")
	}
}

func TestConfigsNameExactlyTheGivenBackends(t *testing.T) {
	l := newLayout(testOptions())
	config := machineConfig(l, l.LoadBalancers[0], map[string]uint32{"be-1": 1, "be-4": 0}, Settings{})
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
