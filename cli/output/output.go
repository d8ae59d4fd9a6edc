// Package output prints the results of verbs, for people and for programs.
package output

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/cli/commandline"
)

// Listing is what a `show` verb prints: values for machines, a table for
// people.
type Listing struct {
	// As JSON; YAML is made from it.
	Value any
	// Value with these rows alone, in this order; nil: Value is a list of plainjson's, one for
	// each row, or rows cannot be chosen.
	Pick func(rows []int) any
	// Columns of which rows that differ in one of them alone may be one row.
	Alike []int
	// Says of a row that something is wrong with what it shows; nil: no row says so.
	IsTrouble func(row int) bool
	// The columns from WideFrom on are shown by `-o wide` only; 0: all always.
	Header   []string
	WideFrom int
	Rows     [][]string
	// The last column is wrapped, so that lines have at most widthMax columns;
	// not by `-o wide`.
	Wrapped bool
	// What counts up, for rates; and how many of the first columns name a row.
	Counters []Counter
	Named    int
	// Said when there are no rows.
	None string
	// Lines below the table.
	Notes []string
}

// What terminals show, and mails quote.
const WidthMax = 100

// Print in a format of commandline.TableFormats.
func (l Listing) Print(w io.Writer, format string) error {
	if format == "table" || format == "wide" {
		return l.PrintTable(w, format == "wide")
	}
	return commandline.PrintValue(w, format, l.Value)
}

// PrintTable for people; wide: with all columns.
func (l Listing) PrintTable(w io.Writer, wide bool) error {
	if len(l.Rows) == 0 {
		if _, err := fmt.Fprintln(w, l.None); err != nil {
			return err
		}
		return l.printNotes(w)
	}
	columns := len(l.Header)
	if l.WideFrom > 0 && !wide {
		columns = l.WideFrom
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	rows := append([][]string{l.Header}, l.Rows...)
	if l.Wrapped && !wide {
		rows = wrapLast(rows)
	}
	for _, row := range rows {
		cells := make([]string, columns)
		for i, cell := range row[:columns] {
			cells[i] = Printable(cell)
		}
		fmt.Fprintln(table, strings.Join(cells, "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return l.printNotes(w)
}

// Printable has a blank for what breaks a line, or would be an order to a terminal: some
// cells have what servers answered.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

func (l Listing) printNotes(w io.Writer) error {
	for i, note := range l.Notes {
		if i == 0 {
			note = "\n" + note
		}
		if _, err := fmt.Fprintln(w, note); err != nil {
			return err
		}
	}
	return nil
}

// wrapLast breaks the last column's cells into rows that fit.
func wrapLast(rows [][]string) [][]string {
	last := len(rows[0]) - 1
	used := 0
	for column := range last {
		widest := 0
		for _, row := range rows {
			widest = max(widest, len(row[column]))
		}
		used += widest + 2 // what parts columns
	}
	var wrapped [][]string
	for _, row := range rows {
		for i, text := range Wrap(row[last], max(WidthMax-used, 20)) {
			piece := make([]string, len(row))
			if i == 0 {
				copy(piece, row)
			}
			piece[last] = text
			wrapped = append(wrapped, piece)
		}
	}
	return wrapped
}

// Wrap breaks a text between words; a word that is too long stays whole.
func Wrap(text string, width int) []string {
	lines := []string{""}
	for _, word := range strings.Fields(text) {
		line := &lines[len(lines)-1]
		switch {
		case *line == "":
			*line = word
		case len(*line)+1+len(word) <= width:
			*line += " " + word
		default:
			lines = append(lines, word)
		}
	}
	return lines
}

// Ago is how people read times.
func Ago(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return time.Since(t.AsTime()).Round(time.Second).String()
}

// At is how machines read times; empty: none.
func At(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339Nano)
}

// Dash for an empty text.
func Dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// Counted things: `1 error`, `2 errors`.
func Counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Counter is a column whose numbers only grow.
type Counter struct {
	// In JSON.
	Name   string
	Column int
}

// NameOf a row: its first columns; empty: it continues another.
func (l Listing) NameOf(row []string) string {
	if row[0] == "" {
		return ""
	}
	return strings.Join(row[:l.Named], "/")
}

// Counts of each row by its name.
func (l Listing) Counts() map[string]map[string]uint64 {
	counts := map[string]map[string]uint64{}
	for _, row := range l.Rows {
		of := map[string]uint64{}
		for _, counter := range l.Counters {
			if n, err := strconv.ParseUint(row[counter.Column], 10, 64); err == nil {
				of[counter.Name] = n
			}
		}
		if name := l.NameOf(row); name != "" && len(of) > 0 {
			counts[name] = of
		}
	}
	return counts
}
