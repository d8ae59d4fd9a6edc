package counters

import (
	"regexp"
	"slices"
	"strings"
)

var (
	metricName = regexp.MustCompile(`^guideway_[a-z0-9_]+$`)
	rustText   = regexp.MustCompile(`"((?:[^"\\]|\\.|\\\n)*)"`)
	// A label and its value, in the argument of sample(…).
	rustLabel = regexp.MustCompile(`\(\s*"(\w+)"\s*,`)
	// What is sampled by a function or closure of this name.
	rustSampled = regexp.MustCompile(`^\s*&?(\w+)\(`)
	rustCaller  = regexp.MustCompile(`(\w+)\(\s*$`)
	joined      = regexp.MustCompile(`\\\n\s*`)
	comment     = regexp.MustCompile(`(?m)^\s*//.*$`)
	testsBegin  = regexp.MustCompile(`(?m)^#\[cfg\(test\)\]\s*\nmod \w+ \{`)
	reasonList  = regexp.MustCompile(`(?m)^drop_reasons!\s*\{`)
	reasonEntry = regexp.MustCompile(`(?m)^\s+[A-Z]\w*\s+"(\w+)"\s+"([^"]*)"\s+"([^"]*)"`)
)

// program is the name of the agent's eBPF program, which looks like a metric's.
const program = "guideway_agent"

// rustMetrics finds texts that are a metric's name with its help behind it, as
// metric(name, kind, help) has them; then what is sampled.
func rustMetrics(path, text string) (metrics []Metric, problems []Problem) {
	source := product(text)
	texts := rustText.FindAllStringSubmatchIndex(source, -1)
	value := func(i int) string { return joined.ReplaceAllString(source[texts[i][2]:texts[i][3]], "") }
	var names []int
	for i := range texts {
		if metricName.MatchString(value(i)) && value(i) != program {
			names = append(names, i)
		}
	}
	for position, i := range names {
		line := 1 + strings.Count(source[:texts[i][0]], "\n")
		end := len(source)
		if position+1 < len(names) {
			end = texts[names[position+1]][0]
		}
		metric := Metric{Name: value(i), Kind: "gauge", path: path, line: line}
		if strings.HasSuffix(metric.Name, "_total") {
			metric.Kind = "counter"
		}
		// The agent's have a label between name and help.
		next := i + 1
		if next < len(texts) && !strings.Contains(value(next), " ") && texts[next][0] < end {
			metric.Labels = []string{value(next)}
			next++
		}
		if next == len(texts) || texts[next][0] > end || !strings.Contains(value(next), " ") {
			problems = append(problems, Problem{path, line, metric.Name + " has no help behind it that tools/counters could find"})
			continue
		}
		metric.Help = value(next)
		if metric.Labels == nil {
			labels, found := labelsOf(source, texts[i][0], texts[next][1], end)
			if !found {
				problems = append(problems, Problem{path, line, "no labels found of " + metric.Name + ": write `.value(…)` or `.sample(&[(\"label\", …)], …)` behind it"})
			}
			metric.Labels = labels
		}
		metrics = append(metrics, metric)
	}
	return metrics, problems
}

// labelsOf the metric whose name begins at start and whose help ends at from:
// of the first sample before the next metric, at end.
func labelsOf(source string, start, from, end int) (labels []string, found bool) {
	if caller := rustCaller.FindStringSubmatch(source[:start]); caller != nil && caller[1] != "metric" {
		// A closure makes the metric and samples it.
		body := definition(source[:start], caller[1])
		return labelsOf(body, 0, 0, len(body))
	}
	rest := source[from:end]
	value, sample := strings.Index(rest, ".value("), strings.Index(rest, ".sample(")
	switch {
	case sample >= 0 && (value < 0 || sample < value):
		argument := enclosed(rest[sample+len(".sample"):])
		if by := rustSampled.FindStringSubmatch(argument); by != nil {
			argument = definition(source[:from+sample], by[1])
		}
		for _, label := range rustLabel.FindAllStringSubmatch(argument, -1) {
			if !slices.Contains(labels, label[1]) {
				labels = append(labels, label[1])
			}
		}
		return labels, len(labels) > 0
	default:
		return nil, value >= 0
	}
}

// definition of a function or closure: the latest one before.
func definition(source, name string) string {
	at := -1
	for _, pattern := range []string{"fn " + name + "(", "let " + name + " = |", "let mut " + name + " = |"} {
		at = max(at, strings.LastIndex(source, pattern))
	}
	if at < 0 {
		return ""
	}
	rest := source[at:]
	// A body in braces, or up to the semicolon.
	brace, semicolon := strings.Index(rest, "{"), strings.Index(rest, ";\n")
	if brace >= 0 && (semicolon < 0 || brace < semicolon) {
		return enclosed(rest[brace:])
	}
	return rest[:max(semicolon, 0)]
}

// enclosed is what the bracket at the beginning of a text encloses.
func enclosed(text string) string {
	depth := 0
	for i := range len(text) {
		switch text[i] {
		case '(', '{', '[':
			depth++
		case ')', '}', ']':
			depth--
			if depth == 0 {
				return text[1:i]
			}
		}
	}
	return text
}

// product is a source without comments and tests; lines stay.
func product(text string) string {
	text = comment.ReplaceAllString(text, "")
	if at := testsBegin.FindStringIndex(text); at != nil {
		text = text[:at[0]]
	}
	return text
}

// reasons in the list of datapath's DropReason.
func reasons(text string) (found []Reason) {
	at := reasonList.FindStringIndex(text)
	if at == nil {
		return nil
	}
	for _, entry := range reasonEntry.FindAllStringSubmatch(enclosed(text[at[1]-1:]), -1) {
		found = append(found, Reason{Name: entry[1], Meaning: entry[2], Cause: entry[3]})
	}
	return found
}
