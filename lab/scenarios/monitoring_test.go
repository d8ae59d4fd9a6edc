package scenarios_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/guideway/guideway/lab/hosts"
	"github.com/guideway/guideway/lab/topology"
)

// What watches Guideway, at work: the prober in the client's namespace, and a
// real Prometheus that scrapes everything and evaluates our alert rules.
func TestMonitoring(t *testing.T) {
	options := optionsAlone(t, "monitoring")
	options.ResponseTimes = true // an alert asks for them
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("needs prometheus: tools/install-deps.sh lab installs it")
	}
	running := up(t, options)
	m := monitor(t, running)
	m.waitAnswered(t)
	t.Run("every query of the dashboard and every alert rule finds what programs export", func(t *testing.T) {
		queriesFindSeries(t, m)
	})
	t.Run("latency is that of the lab", func(t *testing.T) {
		latencyIsPlausible(t, m)
	})
	t.Run("a load balancer that loses packets is a share of the source ports", func(t *testing.T) {
		aLegIsLost(t, m)
	})
	t.Run("a machine that is held fails attempts until its routes are gone", func(t *testing.T) {
		aMachineIsHeld(t, m)
	})
	t.Run("a VIP without backends is unreachable", func(t *testing.T) {
		noBackends(t, m)
	})
}

const (
	probeListen      = "127.0.0.1:9472"
	prometheusListen = "127.0.0.1:9090"
	relayListen      = "127.0.0.1:9469"
)

// monitored is a lab with a prober and a Prometheus.
type monitored struct {
	*hosts.Lab
	targets []string
	log     *lockedBuffer // the prober's
}

// lockedBuffer is written by a process and read by the test.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(data)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// probeTargets: all VIPs, by each protocol that they have.
func probeTargets() (targets []string) {
	for i, web := range topology.WebVIPs {
		targets = append(targets, "http://"+net.JoinHostPort(web.String(), strconv.Itoa(topology.HTTPPort))+"/")
		echo := net.JoinHostPort(topology.EchoVIPs[i].String(), strconv.Itoa(topology.EchoPort))
		targets = append(targets, "tcp://"+echo, "udp://"+echo+"?payload=ping&answer=ping")
	}
	return targets
}

func monitor(t *testing.T, running *hosts.Lab) *monitored {
	t.Helper()
	m := &monitored{Lab: running, targets: probeTargets(), log: &lockedBuffer{}}
	// Root, and nothing that makes root more than another user.
	prober := append([]string{"setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs",
		filepath.Join(running.Options().BinDir, "guideway"), "probe", "--listen", probeListen, "--interval", "1s", "--timeout", "400ms"}, m.targets...)
	m.start(t, m.log, prober...)
	m.relay(t)
	directory := t.TempDir()
	file := filepath.Join(directory, "prometheus.yml")
	if err := os.WriteFile(file, []byte(m.prometheusConfig(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	m.start(t, &lockedBuffer{}, "prometheus", "--config.file="+file, "--storage.tsdb.path="+directory, "--web.listen-address="+prometheusListen, "--log.level=warn")
	return m
}

// start a program in the client's namespace; it ends with the test, by SIGTERM.
func (m *monitored) start(t *testing.T, log *lockedBuffer, words ...string) {
	t.Helper()
	command := exec.Command("ip", append([]string{"netns", "exec", m.Network.Client.Namespace}, words...)...)
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM) // if it ended before, Wait has how
		late := time.AfterFunc(20*time.Second, func() { _ = command.Process.Kill() })
		defer late.Stop()
		if err := command.Wait(); err != nil {
			t.Errorf("%s: %v", words, err)
		}
		if t.Failed() {
			t.Logf("%s: %s", words[0], log)
		}
	})
}

// relay is Prometheus's way into the other namespaces, where programs serve
// their pages on the loopback.
func (m *monitored) relay(t *testing.T) {
	t.Helper()
	var listener net.Listener
	err := topology.Inside(m.Network.Client.Namespace, func() (err error) {
		listener, err = net.Listen("tcp", relayListen)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		name, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		for _, node := range m.Network.Nodes() {
			if node.Name == name {
				return topology.DialInside(ctx, node.Namespace, net.Dialer{}, network, "127.0.0.1:"+port)
			}
		}
		return nil, fmt.Errorf("there is no node %s", name)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   func(*httputil.ProxyRequest) {}, // where to is in the request
		Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	server := &http.Server{Handler: proxy}
	go func() { _ = server.Serve(listener) }() // until it is closed
	t.Cleanup(func() { _ = server.Close() })
}

func (m *monitored) prometheusConfig(t *testing.T) string {
	t.Helper()
	rules, err := filepath.Abs("../../packaging/prometheus/guideway.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	job := func(name, port string, nodes ...string) string {
		for i, node := range nodes {
			nodes[i] = strconv.Quote(node + ":" + port)
		}
		return fmt.Sprintf("- {job_name: %s, proxy_url: \"http://%s\", static_configs: [{targets: [%s]}]}\n", name, relayListen, strings.Join(nodes, ", "))
	}
	return fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n", rules) +
		job("guideway", "9470", slices.Clone(m.LoadBalancers())...) +
		job("guideway-speaker", "9474", slices.Clone(m.LoadBalancers())...) +
		job("guideway-agent", "9471", slices.Clone(m.Backends())...) +
		job("guideway-probe", "9472", m.Network.Client.Name)
}

// series of an answer: labels, and the value as text.
type series struct {
	Metric map[string]string
	Value  [2]any
}

func (s series) value() float64 {
	text, _ := s.Value[1].(string)
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN()
	}
	return value
}

// ask Prometheus's API.
func (m *monitored) ask(t *testing.T, path string, into any) error {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return topology.DialInside(ctx, m.Network.Client.Namespace, net.Dialer{}, network, address)
		},
	}}
	response, err := client.Get("http://" + prometheusListen + "/api/v1/" + path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: into}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return err
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

func (m *monitored) query(t *testing.T, expr string) ([]series, error) {
	t.Helper()
	var found struct{ Result []series }
	err := m.ask(t, "query?query="+url.QueryEscape(expr), &found)
	if err == nil && len(found.Result) == 0 {
		err = fmt.Errorf("%s finds nothing", expr)
	}
	return found.Result, err
}

// waitAnswered until each target's latest round was answered in full.
func (m *monitored) waitAnswered(t *testing.T) {
	t.Helper()
	m.waitRatios(t, "every source port is answered", func(ratio float64) bool { return ratio == 1 })
}

// waitRatios until those of all targets are as they should be.
func (m *monitored) waitRatios(t *testing.T, what string, good func(float64) bool) {
	t.Helper()
	eventually(t, 30*time.Second, what, func() error {
		found, err := m.query(t, "guideway_probe_answered_ratio")
		if err == nil && len(found) != len(m.targets) {
			err = fmt.Errorf("%d of %d targets", len(found), len(m.targets))
		}
		for _, s := range found {
			if !good(s.value()) {
				err = errors.Join(err, fmt.Errorf("%s: %v", s.Metric["target"], s.value()))
			}
		}
		return err
	})
}

// waitAlert until it is pending or firing for that many series.
func (m *monitored) waitAlert(t *testing.T, name string, count int) {
	t.Helper()
	eventually(t, 60*time.Second, fmt.Sprintf("%s sees %d", name, count), func() error {
		found, err := m.query(t, fmt.Sprintf("ALERTS{alertname=%q}", name))
		if err == nil && len(found) != count {
			err = fmt.Errorf("it sees %d: %v", len(found), found)
		}
		return err
	})
}

type panels struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
	}
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
}

var (
	grouped   = regexp.MustCompile(`\bby\s*\(([^)]*)\)`)
	legend    = regexp.MustCompile(`\{\{(\w+)\}\}`)
	askValues = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
)

// queriesFindSeries: each query finds some, with the labels that it groups by and
// that its legend shows; each rule can be evaluated, and its metrics are there.
func queriesFindSeries(t *testing.T, m *monitored) {
	content, err := os.ReadFile("../../packaging/grafana/guideway.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard panels
	if err := json.Unmarshal(content, &dashboard); err != nil {
		t.Fatal(err)
	}
	fill := strings.NewReplacer("$__rate_interval", "10s", "$instance", ".*", "$service", ".*")
	looked := 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			looked++
			m.finds(t, panel.Title, fill.Replace(target.Expr), target.LegendFormat)
		}
	}
	for _, variable := range dashboard.Templating.List {
		if of := askValues.FindStringSubmatch(variable.Definition); of != nil {
			looked++
			m.finds(t, "variable "+variable.Name, fmt.Sprintf("count by (%s) (%s)", of[2], of[1]), "")
		} else if variable.Type != "datasource" {
			t.Errorf("variable %s: %s", variable.Name, variable.Definition)
		}
	}
	if looked < 20 {
		t.Errorf("looked at %d queries", looked)
	}
	m.rulesAreEvaluated(t)
}

func (m *monitored) finds(t *testing.T, what, expr, shown string) {
	t.Helper()
	var found []series
	eventually(t, 30*time.Second, what, func() (err error) {
		found, err = m.query(t, expr)
		if err == nil && !slices.ContainsFunc(found, func(s series) bool { return !math.IsNaN(s.value()) }) {
			err = fmt.Errorf("%s has no values yet", expr)
		}
		return err
	})
	var labels []string
	for _, group := range grouped.FindAllStringSubmatch(expr, -1) {
		labels = strings.Split(strings.ReplaceAll(group[1], " ", ""), ",")
	}
	for _, label := range legend.FindAllStringSubmatch(shown, -1) {
		labels = append(labels, label[1])
	}
	for _, label := range labels {
		// A quantile takes the buckets' bounds away.
		if label != "le" && !slices.ContainsFunc(found, func(s series) bool { return s.Metric[label] != "" }) {
			t.Errorf("%s: no series of %s has the label %s", what, expr, label)
		}
	}
}

var (
	metricOfRule = regexp.MustCompile(`\bguideway_[a-z0-9_]+`)
	// Of what this lab has not: a config in etcd, drained services, backup pools,
	// damping, stateless services, VRRP, pools with a source.
	notInTheLab = regexp.MustCompile(`^guideway_(etcd_.*|fleet_.*|service_drained|service_on_backup|backend_held|bucket_.*|speaker_vrrp_running|pool_source_.*)$`)
)

func (m *monitored) rulesAreEvaluated(t *testing.T) {
	t.Helper()
	var found struct {
		Groups []struct {
			Rules []struct{ Name, Query, Health, LastError string }
		}
	}
	if err := m.ask(t, "rules", &found); err != nil {
		t.Fatal(err)
	}
	rules := 0
	for _, group := range found.Groups {
		for _, rule := range group.Rules {
			rules++
			if rule.Health != "ok" || rule.LastError != "" {
				t.Errorf("%s is %s: %s", rule.Name, rule.Health, rule.LastError)
			}
			for _, metric := range metricOfRule.FindAllString(rule.Query, -1) {
				if notInTheLab.MatchString(metric) {
					continue
				}
				if _, err := m.query(t, metric); err != nil {
					t.Errorf("%s: %v", rule.Name, err)
				}
			}
		}
	}
	if rules < 10 {
		t.Errorf("there are %d rules", rules)
	}
}

// latencyIsPlausible: more than a packet's way through five namespaces costs,
// less than what people would notice.
func latencyIsPlausible(t *testing.T, m *monitored) {
	var found []series
	eventually(t, 30*time.Second, "there are latencies of all targets", func() (err error) {
		found, err = m.query(t, "histogram_quantile(0.5, sum by (le, target) (rate(guideway_probe_duration_seconds_bucket[10s]))) > 0")
		if err == nil && len(found) != len(m.targets) {
			err = fmt.Errorf("of %d targets", len(found))
		}
		return err
	})
	for _, s := range found {
		t.Logf("median of %s: %.2f ms", s.Metric["target"], 1000*s.value())
		if !(20e-6 < s.value() && s.value() < 0.1) {
			t.Errorf("median of %s is %v s", s.Metric["target"], s.value())
		}
	}
	for _, s := range m.mustQuery(t, "process_resident_memory_bytes{job=\"guideway-probe\"}") {
		t.Logf("the prober has %.0f MiB", s.value()/(1<<20))
	}
}

func (m *monitored) mustQuery(t *testing.T, expr string) []series {
	t.Helper()
	found, err := m.query(t, expr)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// aLegIsLost: what the router sends to one of two load balancers for VIPs goes
// nowhere, and its BGP session stays.
func aLegIsLost(t *testing.T, m *monitored) {
	t.Cleanup(func() { restore(t, m.Lab); m.waitAnswered(t) })
	const lost = `chain forward {
	type filter hook forward priority 0;
	oifname "lb-2" ip daddr %s drop;
	oifname "lb-2" ip6 daddr %s drop;
}`
	if err := m.Network.FilterRouter(t.Context(), fmt.Sprintf(lost, topology.VIPPrefix4, topology.VIPPrefix6)); err != nil {
		t.Fatal(err)
	}
	// A half of 64 is 32, with a standard deviation of 4.
	m.waitRatios(t, "about half of the source ports are answered", func(ratio float64) bool { return 0.2 < ratio && ratio < 0.8 })
	m.waitAlert(t, "GuidewayVipPartlyUnreachable", len(m.targets))
	if _, err := m.query(t, `ALERTS{alertname="GuidewayVipUnreachable"}`); err == nil {
		t.Error("a VIP of which a share fails is called unreachable")
	}
	log := m.log.String()
	for _, target := range m.targets {
		said := regexp.MustCompile(`level=WARN msg="a share of the source ports fails" target="?` + regexp.QuoteMeta(target) + `"? failed="\d+ of 64" reason="no answer within 400ms" hint="about \d/\d of the source ports: `)
		if !said.MatchString(log) {
			t.Errorf("the log does not say that a share of %s fails", target)
		}
	}
	out, err := guideway(t, m.Lab, m.Network.Client.Namespace, "probe", "--once", "--timeout", "400ms", m.targets[0])
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out, "no answer within 400ms") {
		t.Errorf("once: %v\n%s", err, out)
	}
}

// aMachineIsHeld: attempts by way of it fail until BFD has noticed that its
// speaker hangs, too, which takes it a second.
func aMachineIsHeld(t *testing.T, m *monitored) {
	t.Cleanup(func() { restore(t, m.Lab); m.waitAnswered(t) })
	failed := func() float64 {
		found := m.mustQuery(t, `sum(guideway_probe_attempts_total{result="fail"})`)
		return found[0].value()
	}
	if err := m.WaitBFD(t.Context(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	before := failed()
	var resumes []func() error
	for _, process := range []string{"speaker", "forwarder"} {
		resume, err := m.Hang("lb-2", process)
		if err != nil {
			t.Fatal(err)
		}
		resumes = append(resumes, resume)
		t.Cleanup(func() { _ = resume() }) // nothing new for what goes on
	}
	waitWithdrawn(t, m.Lab, "lb-2")
	// A second's attempts are 64 for each target, half of them by way of it. They
	// are counted when their round has ended.
	expected := 32 * float64(len(m.targets))
	eventually(t, 10*time.Second, "attempts failed", func() error {
		if now := failed() - before; now < expected/4 {
			return fmt.Errorf("%.0f, and a second has some %.0f by way of it", now, expected)
		}
		return nil
	})
	// The other load balancer has everything now.
	m.waitAnswered(t)
	t.Logf("%.0f attempts at %d targets failed", failed()-before, len(m.targets))
	if now := failed() - before; now > 4*expected {
		t.Errorf("%.0f attempts failed, and a second has some %.0f by way of it", now, expected)
	}
	for _, resume := range resumes {
		if err := resume(); err != nil {
			t.Error(err)
		}
	}
}

// noBackends: all servers die, the VIPs are withdrawn.
func noBackends(t *testing.T, m *monitored) {
	t.Cleanup(func() { restore(t, m.Lab); m.waitAnswered(t) })
	for i := range m.Backends() {
		if err := m.KillBackend(t.Context(), i); err != nil {
			t.Fatal(err)
		}
	}
	m.waitRatios(t, "no source port is answered", func(ratio float64) bool { return ratio == 0 })
	m.waitAlert(t, "GuidewayVipUnreachable", len(m.targets))
	m.waitAlert(t, "GuidewayServiceNotServed", 3*len(m.LoadBalancers()))
	if !strings.Contains(m.log.String(), `level=ERROR msg="no source port is answered"`) {
		t.Error("the log does not say that no source port is answered")
	}
}
