package report

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Remarks about one event, for people.
type Remarks struct {
	// Words for what happened.
	Words string
	// May break, for a reason that nothing helps.
	May      string
	Detail   string
	Problems []string
}

// Problem is what makes the event fail.
func (r *Remarks) Problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// Whole is what a report says of a whole run, for people.
type Whole struct {
	Problems []string
	Duration time.Duration
	// Busy says why this machine was too busy for a fair run; empty: it was not.
	Busy string
	// LeftOut events: a line for each reason.
	LeftOut []string
	// Kept are the directories of configs and logs, if something went wrong.
	Kept []string
}

// named are the remarks about an event of a name.
type named struct {
	name string
	*Remarks
}

// good if no event has a problem, nor the whole.
func good(events []named, problems []string) bool {
	for _, e := range events {
		if len(e.Problems) > 0 {
			return false
		}
	}
	return len(problems) == 0
}

// asExpected is the verdict of a run without problems.
const asExpected = "everything as expected"

// verdict of a run; `expected` where it has no problems.
func (w *Whole) verdict(events []named, expected string) string {
	if !good(events, w.Problems) {
		expected = "NOT as expected"
	}
	return fmt.Sprintf("%s, in %.0f s", expected, w.Duration.Seconds())
}

// print the problems of all events and of the whole.
func (w *Whole) print(output *lines, events []named) {
	for _, e := range events {
		for _, problem := range e.Problems {
			output.bad("FAILED %s: %s", e.name, problem)
		}
	}
	for _, problem := range w.Problems {
		output.bad("FAILED %s", problem)
	}
	for _, left := range w.LeftOut {
		output.line("left out: %s", left)
	}
	if w.Busy != "" {
		output.line("this machine was too busy for a fair run: %s", w.Busy)
	}
}

// writeJSON of a report.
func writeJSON(path string, report any) error {
	content, err := json.MarshalIndent(report, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(content, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
