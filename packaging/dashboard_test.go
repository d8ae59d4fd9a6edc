package packaging

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dashboardFile = "grafana/guideway.json"

type dashboard struct {
	UID         string
	Templating  struct{ List []variable }
	Annotations struct{ List []struct{ Expr string } }
	Panels      []struct {
		ID      int
		Type    string
		Title   string
		GridPos struct{ W, X int }
		Targets []struct{ Expr, LegendFormat string }
	}
}

type variable struct {
	Name, Type, Definition string
	AllValue               string
}

type query struct{ panel, expr, legend string }

// queries of the dashboard, as Grafana fills them in.
func (d dashboard) queries() (all []query) {
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			all = append(all, query{panel.Title, filledIn.Replace(target.Expr), target.LegendFormat})
		}
	}
	return all
}

var filledIn = strings.NewReplacer("$__rate_interval", "1m", "$instance", ".*", "$service", ".*")

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal([]byte(read(t, dashboardFile)), &d); err != nil {
		t.Fatal(err)
	}
	if len(d.queries()) == 0 {
		t.Fatalf("%s has no queries", dashboardFile)
	}
	return d
}

var legendLabel = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)

// lab/scenarios holds the same against what programs export when they run.
func TestTheDashboardAsksOnlyForWhatThereIs(t *testing.T) {
	d, defined := readDashboard(t), definedMetrics(t)
	for _, q := range d.queries() {
		checkQuery(t, defined, q.panel, q.expr)
		if strings.Contains(q.expr, "$") {
			t.Errorf("%s has a variable that is not filled in: %s", q.panel, q.expr)
		}
		// What is summed has the labels that it is summed by, and no others.
		group := grouping.FindStringSubmatch(q.expr)
		for _, label := range legendLabel.FindAllStringSubmatch(q.legend, -1) {
			if group != nil && !slices.Contains(strings.Split(strings.ReplaceAll(group[1], " ", ""), ","), label[1]) {
				t.Errorf("%s: its legend has %s, and its query groups by %s", q.panel, label[1], group[1])
			}
		}
	}
	asked := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
	for _, v := range d.Templating.List {
		if v.Type == "datasource" {
			continue
		}
		found := asked.FindStringSubmatch(v.Definition)
		if found == nil {
			t.Errorf("variable %s: %s", v.Name, v.Definition)
			continue
		}
		checkQuery(t, defined, "variable "+v.Name, fmt.Sprintf("sum by (%s) (%s)", found[2], found[1]))
		// Also what has no such label, as a VIP that was given to the prober by hand.
		if v.AllValue != ".*" {
			t.Errorf("variable %s: all of them are %q", v.Name, v.AllValue)
		}
	}
}

// Prometheus's own parser reads rules.
func TestPrometheusParsesTheDashboardsQueries(t *testing.T) {
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	d := readDashboard(t)
	for i, q := range d.queries() {
		fmt.Fprintf(&rules, "  - {record: panel:%d, expr: %q}\n", i, q.expr)
	}
	for i, annotation := range d.Annotations.List {
		fmt.Fprintf(&rules, "  - {record: annotation:%d, expr: %q}\n", i, annotation.Expr)
	}
	file := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(file, []byte(rules.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

func TestTheDashboardsPanelsHaveTheirPlaces(t *testing.T) {
	d := readDashboard(t)
	ids := map[int]bool{}
	for _, panel := range d.Panels {
		if ids[panel.ID] || panel.Title == "" || panel.GridPos.X+panel.GridPos.W > 24 || (panel.Type == "row") != (len(panel.Targets) == 0) {
			t.Errorf("panel %+v", panel)
		}
		ids[panel.ID] = true
	}
	if d.UID == "" {
		t.Error("without a uid each import makes another dashboard")
	}
}
