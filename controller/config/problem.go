package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/guideway/guideway/controller/outside"
)

// Problem is one thing wrong (or doubtful) with a config, and its cure.
type Problem struct {
	File string `json:"file"`
	// From 1; 0 when the place is the whole file.
	Line   int `json:"line,omitempty"`
	Column int `json:"column,omitempty"`
	// As in `services[0].vips[1].ports`; empty for the whole file.
	Field string `json:"field,omitempty"`
	// What is wrong, then what to do.
	Message string `json:"message"`
}

func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
		if p.Column > 0 {
			fmt.Fprintf(&b, ":%d", p.Column)
		}
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	if p.Field != "" {
		b.WriteString(p.Field + ": ")
	}
	b.WriteString(p.Message)
	return b.String()
}

// Problems are in order of place. As an error they are one line per problem.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Refusal is what Parse returns when a config cannot be used.
type Refusal struct {
	// At least one.
	Errors Problems
	// Of what could be read in spite of them: there may be more.
	Warnings Problems
	// The errors again, those that are alike at several items each by itself.
	Each Problems
}

func (r *Refusal) Error() string { return r.Errors.Error() }

// Unwrap gives the errors to those who look for Problems.
func (r *Refusal) Unwrap() error { return r.Errors }

// reporter collects problems, at most one per field: what follows from a
// mistake that was already told is noise.
type reporter struct {
	document *document
	purpose  purpose
	errors   Problems
	warnings Problems
	reported map[string]bool
	// Parents that hold a field of unknown name: a field missing there was
	// probably misspelt, and that was told.
	misspelt map[string]bool
	// Fields that could not be read at all: nothing is said about what they
	// should have held.
	opaque map[string]bool
}

func newReporter(d *document, p purpose) *reporter {
	return &reporter{document: d, purpose: p, reported: map[string]bool{}, misspelt: map[string]bool{}, opaque: map[string]bool{}}
}

// errorf reports an error at a field.
func (r *reporter) errorf(field, format string, args ...any) {
	field = r.document.real(field)
	if r.reported[field] || r.insideOpaque(field) {
		return
	}
	r.reported[field] = true
	r.errors = append(r.errors, r.problem(field, fmt.Sprintf(format, args...)))
}

// unreadable reports that a field holds nothing of its type.
func (r *reporter) unreadable(field, format string, args ...any) {
	r.errorf(field, format, args...)
	r.opaque[r.document.real(field)] = true
}

func (r *reporter) insideOpaque(field string) bool {
	if len(r.opaque) == 0 {
		return false
	}
	for i, c := range field {
		if (c == '.' || c == '[') && r.opaque[field[:i]] {
			return true
		}
	}
	return r.opaque[field]
}

// missing reports that a field should be there.
func (r *reporter) missing(field, format string, args ...any) {
	parent, _ := splitLast(r.document.real(field))
	if !r.misspelt[parent] {
		r.errorf(field, format, args...)
	}
}

// warnf reports something that is allowed.
func (r *reporter) warnf(field, format string, args ...any) {
	r.warnings = append(r.warnings, r.problem(field, fmt.Sprintf(format, args...)))
}

// breaks reports what can be compiled, and breaks connections once it serves.
func (r *reporter) breaks(field, format string, args ...any) {
	if r.purpose == toCompile {
		r.warnf(field, format, args...)
	} else {
		r.errorf(field, format, args...)
	}
}

func (r *reporter) problem(field, message string) Problem {
	field = r.document.real(field)
	at := r.document.position(field)
	return Problem{File: at.file, Line: at.line, Column: at.column, Field: field, Message: message}
}

// refusal is everything that was found.
func (r *reporter) refusal() *Refusal {
	each := r.sorted(r.errors)
	return &Refusal{Errors: slices.Clone(each).gathered(), Warnings: r.sorted(r.warnings).gathered(), Each: each}
}

// Of a text with its cure; a config that etcd holds may have a part in it.
const problemBytesMax = 2 << 10

// gathered lists a mistake once that was made at the same place of several
// items: where it is first, and in which lines else.
func (ps Problems) gathered() Problems {
	type mistake struct{ file, field, message string }
	first := map[mistake]int{}
	again := map[int][]string{}
	var told Problems
	for _, p := range ps {
		p.Field, p.Message = outside.Line(p.Field, problemBytesMax), outside.Line(p.Message, problemBytesMax)
		m := mistake{p.File, itemIndex.ReplaceAllString(p.Field, "[]"), p.Message}
		if i, ok := first[m]; ok && p.Field != "" {
			again[i] = append(again[i], strconv.Itoa(p.Line))
			continue
		}
		first[m] = len(told)
		told = append(told, p)
	}
	for i, lines := range again {
		more := len(lines)
		lines = slices.Compact(lines)
		if len(lines) > linesShown {
			lines = append(lines[:linesShown:linesShown], "...")
		}
		told[i].Message += fmt.Sprintf(" (and %d times more: line %s)", more, strings.Join(lines, ", "))
	}
	return told
}

// More lines show when the first ones are mended.
const linesShown = 20

var itemIndex = regexp.MustCompile(`\[\d+\]`)

// sorted puts problems in order of place: file as given, line, column.
func (r *reporter) sorted(ps Problems) Problems {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(r.document.fileOrder(a.File), r.document.fileOrder(b.File)),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column),
		)
	})
	return ps
}
