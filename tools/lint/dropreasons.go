package main

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	dropReasonList = regexp.MustCompile(`(?m)^drop_reasons!\s*\{`)
	// A line of the list: Variant "label" "meaning" "usual cause".
	dropReasonLine = regexp.MustCompile(`(?m)^\s+([A-Z]\w*)\s+"(\w+)"`)
)

// dropReasons: for each reason of datapath's list there is a golden folder that
// counts packets dropped for it, or a Rust test that asserts it. It looked at
// reasons.
func dropReasons(t *tree) (violations []violation, looked int) {
	asserted, golden := assertions(t), goldenCounters(t)
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
			happened := regexp.MustCompile(`"` + label + `":\s*[1-9]`).MatchString(golden)
			if !happened && !asserts(asserted, name, label) {
				violations = append(violations, violation{file, line,
					fmt.Sprintf("no test has a packet dropped for DropReason::%s (`%s`)", name, label)})
			}
		}
	}
	return violations, looked
}

var assertion = regexp.MustCompile(`\b(?:prop_)?assert(?:_eq)?!\(`)

// assertions in all Rust test code, text included.
func assertions(t *tree) (all []string) {
	for _, file := range t.under("", ".rs") {
		text, code, product := t.read(file), t.rustCode(file), t.rustProduct(file)
		for _, at := range assertion.FindAllStringIndex(code, -1) {
			if product == "" || product[at[0]] == ' ' {
				all = append(all, text[at[0]:callEnd(code, at[1]-1)])
			}
		}
	}
	return all
}

// callEnd is the offset behind the parenthesis that closes the one at open.
func callEnd(code string, open int) int {
	depth := 0
	for i := open; i < len(code); i++ {
		switch code[i] {
		case '(':
			depth++
		case ')':
			depth--
			if depth == 0 {
				return i + 1
			}
		}
	}
	return len(code)
}

// none is how an assertion ends that nothing was dropped.
var none = regexp.MustCompile(`(?:,|==)\s*0\s*\)$`)

// asserts: one of the assertions is that packets are dropped for a reason.
func asserts(assertions []string, name, label string) bool {
	for _, text := range assertions {
		if (mentions(text, "DropReason::"+name) || strings.Contains(text, `"`+label+`"`)) && !none.MatchString(text) {
			return true
		}
	}
	return false
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
