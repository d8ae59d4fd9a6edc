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
			if !shared && !onlyIncludes(code) {
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

var (
	ignoreAttribute = regexp.MustCompile(`#\[ignore\b[^\]]*\]`)
	rootReason      = regexp.MustCompile(`^#\[ignore\s*=\s*"needs root: .+"\]`)
)

// ignoredTests: `make test` runs ignored tests where there is root and names
// them where there is not, so there may be no other reason to ignore one.
// It looked at Rust files.
func ignoredTests(t *tree) (violations []violation, looked int) {
	for _, file := range t.under("", ".rs") {
		looked++
		text := t.read(file)
		for _, at := range ignoreAttribute.FindAllStringIndex(t.rustCode(file), -1) {
			if !rootReason.MatchString(text[at[0]:]) {
				violations = append(violations, violation{file, lineOf(text, at[0]),
					`a test is ignored only as #[ignore = "needs root: why"]`})
			}
		}
	}
	return violations, looked
}
