package report

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

// Remarks about one event, for people.
type Remarks struct {
	Detail   string
	Problems []string
}

// Problem is what makes the event fail.
func (r *Remarks) Problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func (r *Remarks) verdict() string {
	if len(r.Problems) > 0 {
		return "FAILED"
	}
	return "ok"
}

// Whole is what a report says of a whole run, for people.
type Whole struct {
	Problems []string
	Duration time.Duration
	// Busy says why this machine was too busy for a fair run; empty: it was not.
	Busy string
	// Kept are the directories of configs and logs, if something went wrong.
	Kept []string
}

// named are the remarks about an event of a name.
type named struct {
	name string
	*Remarks
}

func printDetails(output io.Writer, events []named) {
	for _, e := range events {
		if e.Detail != "" {
			fmt.Fprintf(output, "  %s: %s\n", e.name, e.Detail)
		}
	}
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

// print the problems of all events and of the whole; `verdict` where there are none.
func (w *Whole) print(output io.Writer, events []named, verdict string) {
	for _, e := range events {
		for _, problem := range e.Problems {
			fmt.Fprintf(output, "FAILED %s: %s\n", e.name, problem)
		}
	}
	for _, problem := range w.Problems {
		fmt.Fprintf(output, "FAILED %s\n", problem)
	}
	if !good(events, w.Problems) {
		verdict = "NOT as expected"
	}
	fmt.Fprintf(output, "%s, in %.0f s\n", verdict, w.Duration.Seconds())
	if w.Busy != "" {
		fmt.Fprintf(output, "this machine was too busy for a fair run: %s\n", w.Busy)
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
