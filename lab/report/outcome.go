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

// printVerdict with the problems of all events, and of the whole; `verdict` where there
// are none.
func printVerdict(output io.Writer, events []named, problems []string, verdict string, duration time.Duration) {
	for _, e := range events {
		for _, problem := range e.Problems {
			fmt.Fprintf(output, "FAILED %s: %s\n", e.name, problem)
		}
	}
	for _, problem := range problems {
		fmt.Fprintf(output, "FAILED %s\n", problem)
	}
	if !good(events, problems) {
		verdict = "NOT as expected"
	}
	fmt.Fprintf(output, "%s, in %.0f s\n", verdict, duration.Seconds())
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
