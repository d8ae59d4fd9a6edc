package main

import (
	"regexp"
	"slices"
	"strings"
)

// unsafeFolders may hold unsafe code: the drivers, and the loader of what the
// kernel runs.
var unsafeFolders = []string{"nic", "ebpf"}

// prefetchFile is the one exception in the datapath: a hint to the CPU that
// cannot be given otherwise.
const prefetchFile = "datapath/src/prefetch.rs"

// allocatorFile is the one exception among the tests: that workers do not
// allocate is seen only by the program's allocator, and making one is unsafe.
const allocatorFile = "forwarder/tests/allocation.rs"

var unsafeWord = regexp.MustCompile(`\bunsafe\b`)

// unsafePlaces looked at Rust files, those of tests too.
func unsafePlaces(t *tree) (violations []violation, looked int) {
	for _, file := range t.under("", ".rs") {
		looked++
		if file == prefetchFile || file == allocatorFile || slices.ContainsFunc(unsafeFolders, func(f string) bool { return within(file, f) }) {
			continue
		}
		code := t.rustCode(file)
		for _, at := range unsafeWord.FindAllStringIndex(code, -1) {
			violations = append(violations, violation{file, lineOf(code, at[0]),
				"unsafe code belongs in nic/ or ebpf/"})
		}
	}
	return violations, looked
}

// unsafeForbidden looked at the crates that must say so themselves.
func unsafeForbidden(t *tree) (violations []violation, looked int) {
	for file, attributes := range map[string][]string{
		"wire/src/lib.rs":     {"#![forbid(unsafe_code)]"},
		"plan/src/lib.rs":     {"#![forbid(unsafe_code)]"},
		"agent/src/lib.rs":    {"#![forbid(unsafe_code)]"},
		"datapath/src/lib.rs": {"#![forbid(unsafe_code)]", "#![deny(unsafe_code)]"},
	} {
		code := t.rustCode(file)
		if code == "" {
			continue
		}
		looked++
		if !slices.ContainsFunc(attributes, func(a string) bool { return strings.Contains(code, a) }) {
			violations = append(violations, violation{file, 1, "lacks " + attributes[len(attributes)-1]})
		}
	}
	return violations, looked
}
