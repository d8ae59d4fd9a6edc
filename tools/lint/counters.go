package main

import (
	"regexp"
	"slices"
	"strings"
)

const countersDocument = "docs/counters.md"

var (
	metricRow    = regexp.MustCompile("(?m)^\\| `(guideway_[a-z0-9_]+)")
	metricInText = regexp.MustCompile(`\bguideway_[a-z0-9_]+`)
	// In code, where crates and tables have such names too.
	metricInCode = regexp.MustCompile(`\bguideway_[a-z0-9_]+_total\b`)
	// What the library adds to a histogram's name.
	histogramPart = regexp.MustCompile(`_(?:bucket|sum|count)$`)
)

// metricNames: no document or test names a metric that no program has; their
// table in docs/counters.md is generated. It looked at metrics.
func metricNames(t *tree) (violations []violation, looked int) {
	var names []string
	for _, row := range metricRow.FindAllStringSubmatch(t.read(countersDocument), -1) {
		names = append(names, row[1])
	}
	for _, file := range t.paths {
		pattern := metricInCode
		switch {
		case len(names) == 0:
			return nil, 0
		case strings.HasPrefix(file, "tools/"): // speaks of names
			continue
		case strings.HasSuffix(file, ".md"):
			pattern = metricInText
		case !strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, ".rs"):
			continue
		}
		text := t.read(file)
		for _, at := range pattern.FindAllStringIndex(text, -1) {
			name := text[at[0]:at[1]]
			if !slices.Contains(names, name) && !slices.Contains(names, histogramPart.ReplaceAllString(name, "")) {
				violations = append(violations, violation{file, lineOf(text, at[0]), name + " is no metric in " + countersDocument})
			}
		}
	}
	return violations, len(names)
}
