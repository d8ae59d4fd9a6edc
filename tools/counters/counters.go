// Package counters prints a Go program's table for docs/counters.md from its registry of
// metrics. The Rust programs print theirs by `examples/*_counters.rs`, and tools/generate.sh
// inserts all of them.
package counters

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Folder that tables are written to, if the environment has it.
const folder = "COUNTERS_TABLES"

// nameOf a description, which has no other way to read it.
var nameOf = regexp.MustCompile(`fqName: "(guideway_\w+)"`)

// Write the table of a registry whose state shows every metric at least once: one that
// is described and has no sample fails the test.
func Write(t *testing.T, table string, registry *prometheus.Registry) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	rows, shown := "| metric | kind | meaning |\n|---|---|---|\n", map[string]bool{}
	for _, family := range families {
		if shown[family.GetName()] = true; strings.HasPrefix(family.GetName(), "guideway_") {
			rows += fmt.Sprintf("| `%s%s` | %s | %s |\n", family.GetName(), labels(family.Metric[0]), strings.ToLower(family.GetType().String()), family.GetHelp())
		}
	}
	descriptions := make(chan *prometheus.Desc)
	go func() {
		registry.Describe(descriptions)
		close(descriptions)
	}()
	for description := range descriptions {
		if found := nameOf.FindStringSubmatch(description.String()); found != nil && !shown[found[1]] {
			t.Errorf("the state of this test shows no %s: add what has it", found[1])
		}
	}
	if path := os.Getenv(folder); path != "" && !t.Failed() {
		name := strings.ReplaceAll(table, " ", "-")
		if err := os.WriteFile(filepath.Join(path, name), []byte(table+"\n"+rows), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func labels(metric *dto.Metric) string {
	var names []string
	for _, label := range metric.GetLabel() {
		names = append(names, label.GetName())
	}
	if names == nil {
		return ""
	}
	return "{" + strings.Join(names, ",") + "}"
}
