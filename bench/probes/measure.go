package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// tenth of the interval: a probe that starts within it is punctual.
const tenth = 0.1

// measure one kind of check with a controller of its own.
func measure(s settings, kind string, servers *exec.Cmd, ask io.Writer, answers io.Reader) error {
	dir, err := os.MkdirTemp("", "probes")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := writeConfig(s, filepath.Join(dir, "config.yaml"), kind); err != nil {
		return err
	}
	stop, pid, err := startController(s, dir)
	if err != nil {
		return err
	}
	defer stop()
	time.Sleep(s.warmUp)
	before, began, err := scrape()
	if err != nil {
		text, _ := os.ReadFile(filepath.Join(dir, "controller.log"))
		return fmt.Errorf("%w; the controller's log:\n%s", err, text)
	}
	if _, err := arrived(ask, answers, "reset"); err != nil {
		return err
	}
	cpu, serversCPU := processorTime(pid), processorTime(servers.Process.Pid)
	time.Sleep(s.while)
	cpu, serversCPU = processorTime(pid)-cpu, processorTime(servers.Process.Pid)-serversCPU
	gaps, err := arrived(ask, answers, "take")
	if err != nil {
		return err
	}
	after, ended, err := scrape()
	if err != nil {
		return err
	}
	report(kind, ended.Sub(began), cpu, serversCPU, before, after, gaps)
	return nil
}

type gaps struct {
	count, late int
	longest     time.Duration
}

func arrived(ask io.Writer, answers io.Reader, what string) (g gaps, err error) {
	if _, err = fmt.Fprintln(ask, what); err == nil {
		_, err = fmt.Fscanln(answers, &g.count, &g.late, &g.longest)
	}
	return g, err
}

func row(what string, format string, args ...any) {
	fmt.Printf("  %-58s %s\n", what, fmt.Sprintf(format, args...))
}

func report(kind string, took, cpu, serversCPU time.Duration, before, after page, g gaps) {
	name, _, _ := strings.Cut(kind, ":")
	fmt.Println(name)
	probes := after.count("guideway_health_check_start_delay_seconds") - before.count("guideway_health_check_start_delay_seconds")
	punctual := after.within("guideway_health_check_start_delay_seconds", tenth) - before.within("guideway_health_check_start_delay_seconds", tenth)
	soon := after.within("guideway_health_check_start_delay_seconds", 0.01) - before.within("guideway_health_check_start_delay_seconds", 0.01)
	failed := after.failed() - before.failed()
	row("probes a second", "%.0f (%d failed of %d)", float64(probes)/took.Seconds(), failed, probes)
	row("processor time of the controller's process", "%.2f cores (%.0f µs a probe)", cpu.Seconds()/took.Seconds(), cpu.Seconds()*1e6/float64(probes))
	row("that of the servers", "%.2f cores", serversCPU.Seconds()/took.Seconds())
	row("started within a tenth of the interval after they were due", "%.4f %%", 100*float64(punctual)/float64(probes))
	row("started within 10 ms", "%.4f %%", 100*float64(soon)/float64(probes))
	row("longest delay since the controller started", "%.1f ms", 1e3*after.gauge("guideway_health_check_start_delay_max_seconds"))
	row("gaps between two connections at a server above 1.2 s", "%d of %d, longest %v", g.late, g.count, g.longest.Round(time.Millisecond))
}

// page of the controller's metrics.
type page map[string]*dto.MetricFamily

// scrape returns when the page was made, too.
func scrape() (page, time.Time, error) {
	var response *http.Response
	var err error
	for range 100 { // it may just have started
		if response, err = http.Get("http://127.0.0.1:9470/metrics"); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("the controller's metrics: %w", err)
	}
	made := time.Now()
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	return families, made, err
}

func (p page) count(name string) uint64 {
	return p[name].GetMetric()[0].GetHistogram().GetSampleCount()
}

func (p page) within(name string, seconds float64) uint64 {
	for _, bucket := range p[name].GetMetric()[0].GetHistogram().GetBucket() {
		if bucket.GetUpperBound() == seconds {
			return bucket.GetCumulativeCount()
		}
	}
	return 0
}

func (p page) gauge(name string) float64 { return p[name].GetMetric()[0].GetGauge().GetValue() }

func (p page) failed() uint64 {
	for _, m := range p["guideway_health_checks_total"].GetMetric() {
		if m.GetLabel()[0].GetValue() == "fail" {
			return uint64(m.GetCounter().GetValue())
		}
	}
	return 0
}

// processorTime of a process so far: user's and system's, in hundredths.
func processorTime(pid int) time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	var user, system int64
	fields := strings.Fields(rest)
	if len(fields) > 12 {
		fmt.Sscan(fields[11], &user)
		fmt.Sscan(fields[12], &system)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
