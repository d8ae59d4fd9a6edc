package main

import (
	"fmt"
	"regexp"
	"strings"
)

const countersDoc = "docs/counters.md"

var (
	dropReasonList = regexp.MustCompile(`(?m)^drop_reasons!\s*\{`)
	// A line of the list: Variant "label" "meaning" "usual cause".
	dropReasonLine = regexp.MustCompile(`(?m)^\s+([A-Z]\w*)\s+"(\w+)"`)
)

// dropReasons: each reason of datapath's list has its metric label in
// docs/counters.md, and a test or a golden folder in which it happens.
// It looked at reasons.
func dropReasons(t *tree) (violations []violation, looked int) {
	document := t.read(countersDoc)
	tests, golden := rustTests(t), goldenCounters(t)
	for _, file := range t.under("datapath/src", ".rs") {
		text, code := t.read(file), t.rustCode(file)
		at := dropReasonList.FindStringIndex(code)
		if at == nil {
			continue
		}
		list := text[at[0]:blockEnd(code, at[1]-1)]
		for _, reason := range dropReasonLine.FindAllStringSubmatchIndex(list, -1) {
			looked++
			name, label := list[reason[2]:reason[3]], list[reason[4]:reason[5]]
			line := lineOf(text, at[0]+reason[2])
			if !strings.Contains(document, "`"+label+"`") {
				violations = append(violations, violation{file, line,
					fmt.Sprintf("DropReason::%s (`%s`) is not in %s", name, label, countersDoc)})
			}
			happened := regexp.MustCompile(`"` + label + `":\s*[1-9]`).MatchString(golden)
			// Also ParseError::Name: the two are one to one where both exist.
			if !happened && !mentions(tests, "::"+name) && !strings.Contains(tests, `"`+label+`"`) {
				violations = append(violations, violation{file, line,
					fmt.Sprintf("no test has a packet dropped for DropReason::%s (`%s`)", name, label)})
			}
		}
	}
	return violations, looked
}

// rustTests is all Rust test code, text included: what the product's view has
// blanked out.
func rustTests(t *tree) string {
	var all strings.Builder
	for _, file := range t.under("", ".rs") {
		text, product := t.read(file), t.rustProduct(file)
		code := t.rustCode(file)
		switch {
		case product == "":
			all.WriteString(text)
		case len(product) == len(code) && product != code:
			writeDifference(&all, text, code, product)
		}
		all.WriteByte('\n')
	}
	return all.String()
}

// writeDifference writes the lines of text in which product lacks code.
func writeDifference(out *strings.Builder, text, code, product string) {
	codeLines, productLines := strings.Split(code, "\n"), strings.Split(product, "\n")
	for i, line := range strings.Split(text, "\n") {
		if codeLines[i] != productLines[i] {
			out.WriteString(line)
			out.WriteByte('\n')
		}
	}
}

// goldenCounters is what the golden folders count.
func goldenCounters(t *tree) string {
	var all strings.Builder
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
