package counters

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A table stands between two comments, which name it:
//
//	<!-- table: drop reasons (from the sources, by make generate) -->
//	<!-- end -->
const (
	begins = "<!-- table: "
	origin = " (from the sources, by make generate) -->"
	ends   = "<!-- end -->"
)

// Update the document's tables; all else stays.
func (d Definitions) Update(document string) (string, error) {
	tables := d.tables()
	var out []string
	inside := false
	for line := range strings.SplitSeq(document, "\n") {
		if inside && line != ends {
			continue
		}
		inside = false
		out = append(out, line)
		name, is := tableName(line)
		if !is {
			continue
		}
		rows, known := tables[name]
		if !known {
			return "", fmt.Errorf("%s: nothing is known of a table %q", Document, name)
		}
		out = append(out, rows...)
		delete(tables, name)
		inside = true
	}
	if inside || len(tables) > 0 {
		return "", fmt.Errorf("%s: write `%s%s%s` and `%s` where the table is to stand", Document, begins,
			strings.Join(slices.Sorted(maps.Keys(tables)), " / "), origin, ends)
	}
	return strings.Join(out, "\n"), nil
}

func tableName(line string) (string, bool) {
	rest, begun := strings.CutPrefix(line, begins)
	name, ended := strings.CutSuffix(rest, origin)
	return name, begun && ended
}

// Differences of the document from the definitions: rows that are missing, and
// rows that nothing defines any more.
func (d Definitions) Differences(document string) []Problem {
	updated, err := d.Update(document)
	if err != nil {
		return []Problem{{Path: Document, What: err.Error()}}
	}
	var problems []Problem
	present, wanted := strings.Split(document, "\n"), strings.Split(updated, "\n")
	for _, row := range wanted {
		if !slices.Contains(present, row) {
			problems = append(problems, Problem{Document, 0, "lacks the row " + row + ": run `make generate`, or `go run ./tools/counterdoc` for these tables alone"})
		}
	}
	for i, row := range present {
		if !slices.Contains(wanted, row) {
			problems = append(problems, Problem{Document, i + 1, "a stale row: run `make generate`, or `go run ./tools/counterdoc` for these tables alone"})
		}
	}
	if len(problems) == 0 && document != updated {
		problems = append(problems, Problem{Document, 0, "its tables have another order: run `make generate`, or `go run ./tools/counterdoc` for these tables alone"})
	}
	return problems
}
