package main

import (
	"regexp"
	"slices"
	"strings"

	"github.com/guideway/guideway/tools/counters"
)

var (
	metricInText = regexp.MustCompile(`\bguideway_[a-z0-9_]+`)
	// In code, where crates and tables have such names too.
	metricInCode = regexp.MustCompile(`\bguideway_[a-z0-9_]+_total\b`)
	// What the library adds to a histogram's name.
	histogramPart = regexp.MustCompile(`_(?:bucket|sum|count)$`)
)

// countersDocument: the tables of metrics and drop reasons are those of the
// sources, and no document or test names a metric that no program has. It
// looked at definitions.
func countersDocument(t *tree) (violations []violation, looked int) {
	definitions, problems := counters.Read(counters.Tree{Paths: t.paths, Read: t.read})
	names := definitions.Names()
	looked = len(names) + len(definitions.Reasons)
	if looked == 0 {
		return nil, 0
	}
	for _, p := range append(problems, definitions.Differences(t.read(counters.Document))...) {
		violations = append(violations, violation{p.Path, p.Line, p.What})
	}
	for _, file := range t.paths {
		pattern := metricInCode
		switch {
		case file == "CHANGELOG.md": // what was
			continue
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
				violations = append(violations, violation{file, lineOf(text, at[0]), name + " is no metric of any program"})
			}
		}
	}
	return violations, looked
}
