package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

const (
	alertRules = "prometheus/guideway.rules.yml"
	alertTests = "prometheus/guideway.rules.test.yml"
)

// promtool is Prometheus's own program.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	program, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("needs promtool: tools/install-deps.sh lab installs it, as root")
	}
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestPromtoolAcceptsTheAlertRules(t *testing.T) {
	promtool(t, "check", "rules", alertRules)
}

func TestAlertsFireOnWhatTheyAreForAndOnNothingElse(t *testing.T) {
	promtool(t, "test", "rules", alertTests)
}

type alert struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alert } }
	if err := yaml.Unmarshal([]byte(read(t, alertRules)), &file); err != nil {
		t.Fatal(err)
	}
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	if len(all) == 0 {
		t.Fatalf("%s has no alerts", alertRules)
	}
	return all
}

// Each alert says what to do, waits before it fires, and is seen firing by a test.
func TestEachAlertIsCompleteAndTested(t *testing.T) {
	tests := read(t, alertTests)
	seen := map[string]bool{}
	for _, a := range alerts(t) {
		if !strings.HasPrefix(a.Alert, "Guideway") || seen[a.Alert] {
			t.Errorf("%s: its name is another's, or lacks Guideway in front", a.Alert)
		}
		seen[a.Alert] = true
		if a.For == "" || a.Annotations["description"] == "" || !slices.Contains([]string{"critical", "warning"}, a.Labels["severity"]) {
			t.Errorf("%s lacks one of for, severity (critical, warning), description", a.Alert)
		}
		// What is wrong, a colon, what to do.
		if what, cure, found := strings.Cut(a.Annotations["summary"], ": "); !found || what == "" || len(cure) < 10 {
			t.Errorf("%s: its summary does not say what to do: %q", a.Alert, a.Annotations["summary"])
		}
		if !strings.Contains(tests, `{alertname="`+a.Alert+`"`) {
			t.Errorf("%s does not see %s fire", alertTests, a.Alert)
		}
	}
}

func TestAlertsNameMetricsAndLabelsThatThereAre(t *testing.T) {
	defined := definedMetrics(t)
	for _, a := range alerts(t) {
		checkQuery(t, defined, a.Alert, a.Expr)
		for _, text := range a.Annotations {
			for _, name := range metricInQuery.FindAllStringSubmatch(text, -1) {
				if _, known := defined[name[1]]; !known && name[1] != "up" {
					t.Errorf("%s speaks of %s, which no program exports", a.Alert, name[1])
				}
			}
		}
	}
}

// metricRow of docs/counters.md: name, labels and kind.
var metricRow = regexp.MustCompile("(?m)^\\| `(guideway_[a-z0-9_]+)(?:\\{(.*)\\})?` \\| ([a-z]+) \\|")

// definedMetrics and their labels, of all programs, as docs/counters.md has them.
func definedMetrics(t *testing.T) map[string][]string {
	t.Helper()
	defined := map[string][]string{"up": {}}
	for _, row := range metricRow.FindAllStringSubmatch(read(t, "../docs/counters.md"), -1) {
		name, labels, kind := row[1], strings.Split(row[2], ","), row[3]
		if kind != "histogram" {
			defined[name] = append(defined[name], labels...)
			continue
		}
		for _, part := range []string{"_sum", "_count"} {
			defined[name+part] = append(defined[name+part], labels...)
		}
		defined[name+"_bucket"] = append(defined[name+"_bucket"], append(labels, "le")...)
	}
	return defined
}

var (
	metricInQuery = regexp.MustCompile(`\b(guideway_[a-z0-9_]+|up)\b(?:\{([^}]*)\})?`)
	labelInBraces = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	grouping      = regexp.MustCompile(`\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
)

// checkQuery: its metrics are defined, and have the labels that it names.
func checkQuery(t *testing.T, defined map[string][]string, what, query string) {
	t.Helper()
	// Prometheus gives these to every sample.
	labels := []string{"instance", "job"}
	found := metricInQuery.FindAllStringSubmatch(query, -1)
	if len(found) == 0 {
		t.Errorf("%s has no metric of ours: %s", what, query)
	}
	for _, one := range found {
		own, known := defined[one[1]]
		if !known {
			t.Errorf("%s: no program exports %s", what, one[1])
		}
		labels = append(labels, own...)
		for _, label := range labelInBraces.FindAllStringSubmatch(one[2], -1) {
			if !slices.Contains(append([]string{"instance", "job"}, own...), label[1]) {
				t.Errorf("%s: %s has no label %s, but %q", what, one[1], label[1], own)
			}
		}
	}
	for _, group := range grouping.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(group[1], ",") {
			if label = strings.TrimSpace(label); label != "" && !slices.Contains(labels, label) {
				t.Errorf("%s groups by %s, which none of its metrics has", what, label)
			}
		}
	}
}

// The scrape configuration that the document shows.
func TestTheDocumentedScrapeConfigIsPrometheuss(t *testing.T) {
	_, rest, _ := strings.Cut(read(t, "../docs/monitoring.md"), "```yaml\n")
	shown, _, found := strings.Cut(rest, "```")
	if !found || !strings.Contains(shown, "scrape_configs:") {
		t.Fatal("docs/monitoring.md shows no scrape_configs")
	}
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(file, []byte(shown), 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "config", "--syntax-only", file)
	for _, line := range regexp.MustCompile(`job_name: (\S+?)[,}\s]`).FindAllStringSubmatch(shown, -1) {
		if !strings.HasPrefix(line[1], "guideway") {
			t.Errorf("the alert on dead programs needs job names that begin with guideway, and %s does not", line[1])
		}
	}
}
