package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// functionLines is the ratchet: no function is longer, but for those that
// ratchet.txt lists, and they may only shrink. Tests are free.
const functionLines = 70

const ratchetFile = "tools/lint/ratchet.txt"

type function struct {
	file  string
	name  string
	line  int
	lines int
}

// functionLengths looked at functions.
func functionLengths(t *tree) (violations []violation, looked int) {
	allowed, violations := readRatchet(t)
	long := map[string]bool{}
	for _, f := range append(rustFunctions(t), goFunctions(t)...) {
		looked++
		key := f.file + ":" + f.name
		limit, excepted := allowed[key]
		if !excepted {
			limit = functionLines
		}
		if f.lines > limit {
			violations = append(violations, violation{f.file, f.line,
				fmt.Sprintf("%s has %d lines, at most %d: split it where it decides and where it does", f.name, f.lines, limit)})
		}
		if excepted && f.lines == limit {
			long[key] = true
		}
		if excepted && f.lines < limit {
			long[key] = true
			violations = append(violations, violation{ratchetFile, 0,
				fmt.Sprintf("%s has only %d lines now: lower its entry (or remove it at %d)", key, f.lines, functionLines)})
		}
	}
	for key := range allowed {
		if !long[key] {
			violations = append(violations, violation{ratchetFile, 0, key + " is no longer there: remove its entry"})
		}
	}
	return violations, looked
}

// readRatchet: lines of `path:function lines`; # starts a comment.
func readRatchet(t *tree) (allowed map[string]int, violations []violation) {
	allowed = map[string]int{}
	for i, line := range strings.Split(t.read(ratchetFile), "\n") {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		lines := 0
		if len(fields) == 2 {
			lines, _ = strconv.Atoi(fields[1])
		}
		if lines <= functionLines {
			violations = append(violations, violation{ratchetFile, i + 1,
				fmt.Sprintf("an entry is `path:function lines`, with more than %d lines", functionLines)})
			continue
		}
		allowed[fields[0]] = lines
	}
	return allowed, violations
}

var rustFunction = regexp.MustCompile(`\bfn\s+(\w+)`)

func rustFunctions(t *tree) (found []function) {
	for _, file := range t.under("", ".rs") {
		code := t.rustProduct(file)
		for _, at := range rustFunction.FindAllStringSubmatchIndex(code, -1) {
			end := itemEnd(code, at[1])
			found = append(found, function{
				file:  file,
				name:  code[at[2]:at[3]],
				line:  lineOf(code, at[0]),
				lines: 1 + strings.Count(code[at[0]:end], "\n"),
			})
		}
	}
	return found
}

func goFunctions(t *tree) (found []function) {
	for _, file := range t.under("", ".go") {
		if strings.HasSuffix(file, "_test.go") || isGeneratedGo(file) {
			continue
		}
		positions := token.NewFileSet()
		parsed, err := parser.ParseFile(positions, file, t.read(file), parser.SkipObjectResolution)
		if err != nil {
			continue // gofmt and vet say it better
		}
		for _, declaration := range parsed.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok {
				first, last := positions.Position(f.Pos()).Line, positions.Position(f.End()).Line
				found = append(found, function{file, f.Name.Name, first, last - first + 1})
			}
		}
	}
	return found
}

func isGeneratedGo(file string) bool {
	return strings.HasSuffix(file, ".pb.go")
}
