package main

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

const countersDoc = "docs/counters.md"

var (
	dropReasonEnum = regexp.MustCompile(`\benum\s+DropReason\s*\{`)
	enumVariant    = regexp.MustCompile(`(?m)^\s*([A-Z]\w*)\s*(?:=\s*\d+\s*)?(?:,|$)`)
)

// dropReasons: each variant of datapath's DropReason has its metric label in
// docs/counters.md, and a test or a golden folder in which it happens.
// It looked at variants.
func dropReasons(t *tree) (violations []violation, looked int) {
	document := t.read(countersDoc)
	evidence := testEvidence(t)
	for _, file := range t.under("datapath/src", ".rs") {
		code := t.rustCode(file)
		at := dropReasonEnum.FindStringIndex(code)
		if at == nil {
			continue
		}
		body := code[at[0]:blockEnd(code, at[1]-1)]
		for _, variant := range enumVariant.FindAllStringSubmatchIndex(body, -1) {
			looked++
			name := body[variant[2]:variant[3]]
			line := lineOf(code, at[0]+variant[2])
			label := snakeCase(name)
			if !strings.Contains(document, "`"+label+"`") {
				violations = append(violations, violation{file, line,
					fmt.Sprintf("DropReason::%s (`%s`) is not in %s", name, label, countersDoc)})
			}
			if !mentions(evidence, "DropReason::"+name) && !strings.Contains(evidence, `"`+label+`"`) {
				violations = append(violations, violation{file, line,
					fmt.Sprintf("no test has a packet dropped for DropReason::%s (`%s`)", name, label)})
			}
		}
	}
	return violations, looked
}

// testEvidence is all Rust test code, and the counters of the golden folders.
func testEvidence(t *tree) string {
	var all strings.Builder
	for _, file := range t.under("", ".rs") {
		code, product := t.read(file), t.rustProduct(file)
		// What the product's view has blanked out is test code, text included.
		for i := range code {
			if i >= len(product) || product[i] == ' ' || product[i] == '\n' {
				all.WriteByte(code[i])
			}
		}
		all.WriteByte('\n')
	}
	for _, file := range t.under("", "counters.json") {
		all.WriteString(t.read(file))
	}
	return all.String()
}

func mentions(text, word string) bool {
	for {
		at := strings.Index(text, word)
		if at < 0 {
			return false
		}
		text = text[at+len(word):]
		if text == "" || !isWord(text[0]) {
			return true
		}
	}
}

func snakeCase(camel string) string {
	var out strings.Builder
	for i, r := range camel {
		if unicode.IsUpper(r) && i > 0 {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}
