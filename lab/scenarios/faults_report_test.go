package scenarios_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// What becomes of faults, as docs/faults.md shows it.

const reportHead = `# Faults that must not hurt

Written by ` + "`make faults FAULTS_REPORT=$PWD/docs/faults.md`" + `, which does each of these to a lab of
two load balancers ([lab.md](lab.md#faults)) while clients send 300 requests a second and
exchange messages on 100 long-lived connections; a test fails if a request does, if a
connection breaks that the text below does not name, or if anything takes longer than its
limit. Times are of one run on a machine of two cores that plays all of them. Faults that are not
in the table take a machine of their own: ` + "`make vms SUITES=labs`" + ` does them in an emulated one, under
the same limits.

- *failed*: of the requests; *broken*: of the long-lived connections
- *pause*: the longest that a message took there and back
- *told*: from the fault to the first words for an operator, who looks each 50 ms
- *again*: from its cure (for a process: its start) until every machine has its routes, its
  plan, its peers and its config

`

func writeReport(t *testing.T, file string, outcomes []outcome) {
	t.Helper()
	if err := os.WriteFile(file, []byte(reportHead+tableOf(outcomes)+"\n"+wordsOf(slices.Concat(outcomes, ofOwnMachine()))), 0o644); err != nil {
		t.Fatal(err)
	}
}

func tableOf(outcomes []outcome) string {
	var b strings.Builder
	b.WriteString("| fault | router | failed | broken | pause | told | again |\n|---|---|---|---|---|---|---|\n")
	for _, o := range outcomes {
		told := "–"
		if len(o.words) > 0 {
			told = shown3(o.told)
		}
		router := map[string]string{"bird": "BIRD", "frr": "FRR"}[o.router]
		fmt.Fprintf(&b, "| [%s](#%[1]s) | %s | %d of %d | %d of %d | %s | %s | %s |\n", o.name, router, o.failed, o.requests, o.broken, o.connections, shown3(o.pause), told, shown3(o.again))
	}
	return b.String()
}

// ofOwnMachine are the faults that happen in an emulated machine only, whose times say nothing.
func ofOwnMachine() (untimed []outcome) {
	for _, f := range faults {
		if f.ownMachine {
			untimed = append(untimed, outcome{name: f.name})
		}
	}
	return untimed
}

// shown3 is a time in seconds with as many digits as matter.
func shown3(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.2f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// wordsOf each fault once: what was done, what may break, and what was told.
func wordsOf(outcomes []outcome) string {
	var b strings.Builder
	var done []string
	for _, o := range outcomes {
		if slices.Contains(done, o.name) {
			continue
		}
		done = append(done, o.name)
		fmt.Fprintf(&b, "## %s\n\n", o.name)
		set, err := faultsNamed(o.name)
		if err != nil {
			panic(err) // it happened
		}
		for _, f := range set {
			b.WriteString(wrapped(f.what) + "\n")
		}
		for _, words := range o.words {
			b.WriteString("\n" + wrapped("Told by "+words) + "\n")
		}
		b.WriteString("\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// wrapped at 90 columns.
func wrapped(text string) string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > 90 {
			lines, line = append(lines, line), ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return strings.Join(append(lines, line), "\n")
}

// The table in the documentation has every fault, and nothing that is gone.
func TestEveryFaultIsInTheDocumentation(t *testing.T) {
	content, err := os.ReadFile("../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	if !strings.HasPrefix(page, reportHead) {
		t.Error("docs/faults.md does not begin as a report does: `make faults FAULTS_REPORT=$PWD/docs/faults.md` writes it")
	}
	for _, f := range faults {
		row := fmt.Sprintf("| [%s](#%[1]s) | BIRD |", f.name)
		if strings.Contains(page, row) == f.ownMachine || f.routes && !strings.Contains(page, strings.Replace(row, "BIRD", "FRR", 1)) || !strings.Contains(page, "## "+f.name+"\n\n"+wrapped(f.what)+"\n") {
			t.Errorf("docs/faults.md lacks %s", f.name)
		}
	}
	if sections, rows := strings.Count(page, "\n## "), strings.Count(page, "\n| ["); sections != len(faults) || rows < sections-len(ofOwnMachine()) {
		t.Errorf("docs/faults.md has %d faults in %d rows, and there are %d", sections, rows, len(faults))
	}
}
