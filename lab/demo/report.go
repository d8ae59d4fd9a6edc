package demo

import (
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// Report is the result of a run. The names of its fields in JSON are a
// contract.
type Report struct {
	Events []EventResult `json:"events"`
	// Shares of new connections in the last `steady`.
	Shares []Share `json:"shares"`
	// WithdrawMS is the longest time from a kill to the route's deletion at
	// the router; null if no load balancer was killed under load.
	WithdrawMS         *float64 `json:"withdraw_ms"`
	UnaccountedPackets int64    `json:"unaccounted_packets"`
	machines           []string
	problems           []string
	duration           time.Duration
	newConnections     int
	flowsLookedUp      int
	flowsSeenTwice     int
	checksumErrors     uint64
}

// EventResult of one event.
type EventResult struct {
	Name          string `json:"name"`
	Requests      int    `json:"requests"`
	Failed        int    `json:"failed"`
	FailedAllowed int    `json:"failed_allowed"`
	Connections   int    `json:"connections"`
	Broken        int    `json:"broken"`
	BrokenAllowed int    `json:"broken_allowed"`

	// For people.
	detail       string
	messages     int
	longestPause time.Duration
	packets      map[string]uint64
	problems     []string
}

func (e *EventResult) problem(format string, args ...any) {
	e.problems = append(e.problems, fmt.Sprintf(format, args...))
}

// Good tells whether everything went as it should.
func (r *Report) Good() bool {
	for _, e := range r.Events {
		if len(e.problems) > 0 {
			return false
		}
	}
	return len(r.problems) == 0
}

// write the report as JSON.
func (r *Report) write(path string) error {
	content, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	if err := os.WriteFile(path, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
