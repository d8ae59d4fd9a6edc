package main

import (
	"regexp"
	"strings"
)

var (
	innerAllow = regexp.MustCompile(`#!\[(?:cfg_attr\([^,]*,\s*)?(?:allow|expect)\(`)
	outerAllow = regexp.MustCompile(`#\[(?:cfg_attr\([^,]*,\s*)?(?:allow|expect)\([^\]]*\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([a-z]+\))?\s+)?(mod|impl)\b[^;{]*([;{])`)
	// What a module that only takes in generated code consists of.
	includes = regexp.MustCompile(`#!?\[[^\]]*\]|(?:pub(?:\([a-z]+\))?\s+)?mod\s+\w+|\b(?:\w+::)*include\w*!\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|[{};\s]`)
	// Helpers shared by test programs, each of which uses a part of them.
	sharedByTests = regexp.MustCompile(`/tests/[^/]+/`)
	deadCodeOnly  = regexp.MustCompile(`^#!\[allow\(dead_code\b[^)]*\)\]`)
)

// moduleAllows finds lints switched off for a whole file, module or impl: they
// hide what comes later. Modules that only include generated code are free.
// It looked at Rust files.
func moduleAllows(t *tree) (violations []violation, looked int) {
	const cure = "put the allow on the one item that needs it, with a reason"
	for _, file := range t.under("", ".rs") {
		looked++
		code := t.rustCode(file)
		for _, at := range innerAllow.FindAllStringIndex(code, -1) {
			shared := sharedByTests.MatchString(file) && deadCodeOnly.MatchString(code[at[0]:])
			unsafeFile := file == prefetchFile && strings.HasPrefix(code[at[0]:], "#![allow(unsafe_code")
			if !shared && !unsafeFile && !onlyIncludes(code) {
				violations = append(violations, violation{file, lineOf(code, at[0]), "an allow for a whole module: " + cure})
			}
		}
		for _, at := range outerAllow.FindAllStringSubmatchIndex(code, -1) {
			open := at[4]
			if code[open] == '{' && onlyIncludes(code[open:blockEnd(code, open)]) {
				continue
			}
			violations = append(violations, violation{file, lineOf(code, at[0]),
				"an allow for a whole " + code[at[2]:at[3]] + ": " + cure})
		}
	}
	return violations, looked
}

func onlyIncludes(code string) bool {
	return includes.ReplaceAllString(code, "") == "" && strings.Contains(code, "include")
}

var ignoreAttribute = regexp.MustCompile(`#\[ignore\b`)

// ignoredTests: nothing runs an ignored test, and nobody notices. One that
// needs root skips itself, by name. It looked at Rust files.
func ignoredTests(t *tree) (violations []violation, looked int) {
	for _, file := range t.under("", ".rs") {
		looked++
		code := t.rustCode(file)
		for _, at := range ignoreAttribute.FindAllStringIndex(code, -1) {
			violations = append(violations, violation{file, lineOf(code, at[0]),
				"an ignored test runs nowhere: run it, or let it skip itself (CONTRIBUTING.md, Tests)"})
		}
	}
	return violations, looked
}
