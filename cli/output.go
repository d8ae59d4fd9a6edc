package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// listing is what a `show` verb prints: values for machines, a table for
// people.
type listing struct {
	// As JSON; YAML is made from it.
	value any
	// The columns from wideFrom on are shown by `-o wide` only; 0: all always.
	header   []string
	wideFrom int
	rows     [][]string
	// The last column is wrapped, so that lines have at most widthMax columns;
	// not by `-o wide`.
	wrapped bool
	// What counts up, for rates; and how many of the first columns name a row.
	counters []counter
	named    int
	// Said when there are no rows.
	none string
	// Lines below the table.
	notes []string
}

// What terminals show, and mails quote.
const widthMax = 100

func (l listing) print(w io.Writer, format string) error {
	if format == "table" || format == "wide" {
		return l.printTable(w, format == "wide")
	}
	return printValue(w, format, l.value)
}

func (l listing) printTable(w io.Writer, wide bool) error {
	if len(l.rows) == 0 {
		if _, err := fmt.Fprintln(w, l.none); err != nil {
			return err
		}
		return l.printNotes(w)
	}
	columns := len(l.header)
	if l.wideFrom > 0 && !wide {
		columns = l.wideFrom
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	rows := append([][]string{l.header}, l.rows...)
	if l.wrapped && !wide {
		rows = wrapLast(rows)
	}
	for _, row := range rows {
		fmt.Fprintln(table, strings.Join(row[:columns], "\t"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	return l.printNotes(w)
}

func (l listing) printNotes(w io.Writer) error {
	for i, note := range l.notes {
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
		for i, text := range wrap(row[last], max(widthMax-used, 20)) {
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

// wrap breaks a text between words; a word that is too long stays whole.
func wrap(text string, width int) []string {
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

// ago is how people read times.
func ago(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return time.Since(t.AsTime()).Round(time.Second).String()
}

// at is how machines read times; empty: none.
func at(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339Nano)
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
