package output

// Selects rows for display, and merges rows that are one for people.

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/proto/plainjson"
)

// Choice of rows.
type Choice struct {
	// Names, or patterns as the shell has them; each chooses the rows that one of their
	// naming columns fits. None: all rows.
	Patterns    []string
	OnlyTrouble bool
	// A column's header in any case; empty: as they come.
	SortBy string
	// 0: all.
	Max int
}

// IsAll: nothing is left out, and the order stays.
func (c Choice) IsAll() bool {
	return len(c.Patterns) == 0 && !c.OnlyTrouble && c.SortBy == "" && c.Max == 0
}

// Choose rows of a listing. A pattern that fits none is an error.
func (l Listing) Choose(c Choice) (Listing, error) {
	if c.IsAll() {
		return l, nil
	}
	var rows []int
	fits := make([]bool, len(c.Patterns))
	for i, row := range l.Rows {
		if l.fitsAny(row, c.Patterns, fits) && (!c.OnlyTrouble || l.IsTrouble(i)) {
			rows = append(rows, i)
		}
	}
	if i := slices.Index(fits, false); i >= 0 && len(l.Rows) > 0 {
		return l, fmt.Errorf("nothing here has the name %q", c.Patterns[i])
	}
	if err := l.sort(rows, c.SortBy); err != nil {
		return l, err
	}
	if more := len(rows) - c.Max; c.Max > 0 && more > 0 {
		rows = rows[:c.Max]
		l.Notes = append(slices.Clone(l.Notes), fmt.Sprintf("%d more: --limit 0 shows all", more))
	}
	if c.OnlyTrouble && len(l.Rows) > 0 {
		l.None = fmt.Sprintf("no trouble: %s", Counted(len(l.Rows), "row"))
	}
	chosen := make([][]string, 0, len(rows))
	for _, i := range rows {
		chosen = append(chosen, l.Rows[i])
	}
	if l.Pick != nil {
		l.Value = l.Pick(rows)
	} else {
		l.Value = Picked(l.Value.([]plainjson.Value), rows)
	}
	l.Rows, l.IsTrouble, l.Pick = chosen, nil, nil
	return l, nil
}

// fitsAny of the patterns, and notes which.
func (l Listing) fitsAny(row, patterns []string, fits []bool) bool {
	found := len(patterns) == 0
	for i, pattern := range patterns {
		fitsCell := func(cell string) bool {
			is, err := path.Match(pattern, cell)
			return err == nil && is || pattern == cell
		}
		if slices.ContainsFunc(row[:l.Named], fitsCell) {
			fits[i], found = true, true
		}
	}
	return found
}

// sort rows by a column: numbers and times from the greatest, all else by the alphabet.
func (l Listing) sort(rows []int, by string) error {
	if by == "" {
		return nil
	}
	column := slices.IndexFunc(l.Header, func(header string) bool {
		header = strings.TrimSuffix(header, PerSecond)
		return strings.EqualFold(header, by) || strings.EqualFold(strings.ReplaceAll(header, " ", "-"), by)
	})
	if column < 0 {
		return commandline.Usagef("there is no column %q to sort by: give one of %s", by, strings.ToLower(strings.Join(l.Header, ", ")))
	}
	slices.SortStableFunc(rows, func(a, b int) int {
		x, y := l.Rows[a][column], l.Rows[b][column]
		p, isNumber := amount(x)
		q, areNumbers := amount(y)
		if isNumber && areNumbers {
			return cmp.Compare(q, p)
		}
		return cmp.Compare(x, y)
	})
	return nil
}

// amount that a cell says: `1200`, `33.4 %`, `1h2m0s`; the least for a dash.
func amount(cell string) (float64, bool) {
	if cell == "-" {
		return -1, true
	}
	if n, err := strconv.ParseFloat(strings.TrimSuffix(cell, " %"), 64); err == nil {
		return n, true
	}
	d, err := time.ParseDuration(cell)
	return d.Seconds(), err == nil
}

// PerSecond ends the header of a counter's column that has its rate.
const PerSecond = "/S"

// Fewer rows than this that differ in their names alone are shown one by one.
const foldedMin = 4

// Folded has one row for those that are alike, and no more rows than this; only people read
// it.
func (l Listing) Folded(rowsMax int) Listing {
	for _, column := range l.Alike {
		l.Rows = folded(l.Rows, column)
	}
	if more := len(l.Rows) - rowsMax; more > 0 {
		l.Rows = l.Rows[:rowsMax]
		l.Notes = append(slices.Clone(l.Notes), fmt.Sprintf("(%s more: --all shows them)", Counted(more, "row")))
	}
	return l
}

// folded makes one of rows that differ in one column alone, where the first of them was.
func folded(rows [][]string, column int) [][]string {
	alike := map[string][]int{}
	key := func(row []string) string {
		rest := slices.Clone(row)
		rest[column] = ""
		return strings.Join(rest, "\x00")
	}
	for i, row := range rows {
		alike[key(row)] = append(alike[key(row)], i)
	}
	var left [][]string
	for i, row := range rows {
		same := alike[key(row)]
		switch {
		case len(same) < foldedMin:
			left = append(left, row)
		case same[0] == i:
			one := slices.Clone(row)
			one[column] = fmt.Sprintf("%s and %d more", row[column], len(same)-1)
			left = append(left, one)
		}
	}
	return left
}

// Picked of values, of which each row shows one.
func Picked[T any](values []T, rows []int) []T {
	picked := make([]T, 0, len(rows))
	for _, i := range rows {
		picked = append(picked, values[i])
	}
	return picked
}
