package main

import (
	"path"
	"regexp"
	"strings"
)

// Just enough Rust to tell code from text and tests from product: no parser,
// but literals and comments are gone before anything is searched for.

// rustCode is a Rust file with comments and literals blanked out (newlines
// stay, so that offsets and lines do too).
func (t *tree) rustCode(file string) string {
	return blankRust(t.read(file))
}

// rustProduct is rustCode without test code; empty for a test file.
func (t *tree) rustProduct(file string) string {
	if t.isRustTest(file) {
		return ""
	}
	return blankTests(t.rustCode(file))
}

func (t *tree) isRustTest(file string) bool {
	dir := path.Dir(file)
	if base := path.Base(dir); base == "tests" || base == "benches" || strings.Contains(file, "/tests/") {
		return true
	}
	return t.isDeclaredForTests(file)
}

var testModule = regexp.MustCompile(`#\[cfg\((?:test|all\(test[^)]*\))\)\]\s*(?:#\[[^\]]*\]\s*)*(?:pub(?:\([a-z]+\))?\s+)?mod\s+(\w+)\s*;`)

// isDeclaredForTests: the parent says `#[cfg(test)] mod name;`.
func (t *tree) isDeclaredForTests(file string) bool {
	dir, name := path.Dir(file), strings.TrimSuffix(path.Base(file), ".rs")
	parents := []string{dir + "/mod.rs", dir + "/lib.rs", dir + "/main.rs", dir + ".rs"}
	for _, parent := range parents {
		for _, found := range testModule.FindAllStringSubmatch(t.rustCode(parent), -1) {
			if found[1] == name {
				return true
			}
		}
	}
	return false
}

var testItem = regexp.MustCompile(`#\[cfg\((?:test|all\(test\b[^\]]*)\)\]`)

// blankTests blanks every item under #[cfg(test)].
func blankTests(code string) string {
	out := []byte(code)
	for _, at := range testItem.FindAllStringIndex(code, -1) {
		end := itemEnd(code, at[1])
		for i := at[0]; i < end; i++ {
			if out[i] != '\n' {
				out[i] = ' '
			}
		}
	}
	return string(out)
}

// itemEnd is the offset behind the item that starts at or after from: behind
// its block's closing brace, or behind the semicolon if that comes first.
func itemEnd(code string, from int) int {
	nesting := 0 // of () and []: a semicolon in [u8; 4] ends nothing
	for i := from; i < len(code); i++ {
		switch code[i] {
		case '(', '[':
			nesting++
		case ')', ']':
			nesting--
		case ';':
			if nesting == 0 {
				return i + 1
			}
		case '{':
			if nesting == 0 {
				return blockEnd(code, i)
			}
		}
	}
	return len(code)
}

// blockEnd is the offset behind the brace that closes the one at open.
func blockEnd(code string, open int) int {
	depth := 0
	for i := open; i < len(code); i++ {
		switch code[i] {
		case '{':
			depth++
		case '}':
			depth--
			if depth == 0 {
				return i + 1
			}
		}
	}
	return len(code)
}

var (
	rawString   = regexp.MustCompile(`^b?c?r(#*)"`)
	charLiteral = regexp.MustCompile(`^b?'(?:[^'\\\n]|\\(?:x[0-9a-fA-F]{2}|u\{[0-9a-fA-F_]+\}|.))'`)
)

// blankRust replaces comments and the content of literals by spaces.
func blankRust(text string) string {
	out := []byte(text)
	blank := func(from, to int) {
		for i := from; i < to; i++ {
			if out[i] != '\n' {
				out[i] = ' '
			}
		}
	}
	for i := 0; i < len(text); {
		length := 1
		switch rest := text[i:]; {
		case strings.HasPrefix(rest, "//"):
			length = lengthUpTo(rest, "\n")
			blank(i, i+length)
		case strings.HasPrefix(rest, "/*"):
			length = commentLength(rest)
			blank(i, i+length)
		case rest[0] == '"':
			length = stringLength(rest)
			blank(i+1, i+length-1)
		case (i == 0 || !isWord(text[i-1])) && rawString.MatchString(rest):
			quote := rawString.FindStringSubmatch(rest)
			length = len(quote[0]) + lengthUpTo(rest[len(quote[0]):], `"`+quote[1])
			blank(i, i+length)
		case (i == 0 || !isWord(text[i-1])) && charLiteral.MatchString(rest):
			length = len(charLiteral.FindString(rest))
			blank(i, i+length)
		}
		i += length
	}
	return string(out)
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// lengthUpTo is the length of text up to and with end.
func lengthUpTo(text, end string) int {
	if at := strings.Index(text, end); at >= 0 {
		return at + len(end)
	}
	return len(text)
}

// commentLength of a block comment; they nest.
func commentLength(text string) int {
	depth := 0
	for i := 0; i+1 < len(text); i++ {
		switch text[i : i+2] {
		case "/*":
			depth++
			i++
		case "*/":
			depth--
			i++
			if depth == 0 {
				return i + 1
			}
		}
	}
	return len(text)
}

// stringLength of a literal that starts with a double quote.
func stringLength(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}
