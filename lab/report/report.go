// Package report prints the demo's output: its steps while it runs, and its result on one
// screen or as JSON.
package report

import (
	"time"
)

// Report is the result of a run. The names of its fields in JSON are a
// contract.
type Report struct {
	// Agents: packets went to backends in Geneve, whose agents pass on what
	// belongs elsewhere.
	Agents bool          `json:"agents"`
	Events []EventResult `json:"events"`
	// Shares of new connections in the last `steady`.
	Shares []Share `json:"shares"`
	// WithdrawMS is the longest time from a kill to the route's deletion at the
	// router, or until no neighbour table of the client names the dead machine;
	// null if no load balancer was killed under load.
	WithdrawMS         *float64 `json:"withdraw_ms"`
	UnaccountedPackets int64    `json:"unaccounted_packets"`

	// For people.
	Whole          `json:"-"`
	Machines       []string `json:"-"`
	NewConnections int      `json:"-"`
	FlowsLookedUp  int      `json:"-"`
	FlowsSeenTwice int      `json:"-"`
	ChecksumErrors uint64   `json:"-"`
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
	// LongestPause of a message, and what the event allows.
	LongestPauseMS int64 `json:"longest_pause_ms"`
	PauseAllowedMS int64 `json:"pause_allowed_ms"`

	// For people.
	Remarks  `json:"-"`
	Messages int               `json:"-"`
	Packets  map[string]uint64 `json:"-"`
}

// JudgePause of a message: a longer one than the event allows is a problem, unless this
// machine was too busy to tell whose fault it is.
func (e *EventResult) JudgePause(longest, allowed time.Duration, busy bool) {
	e.LongestPauseMS, e.PauseAllowedMS = longest.Milliseconds(), allowed.Milliseconds()
	if longest > allowed && !busy {
		e.Problem("a message came back after %d ms; %d ms are allowed", e.LongestPauseMS, e.PauseAllowedMS)
	}
}

// Good if everything went as it should.
func (r *Report) Good() bool { return good(r.remarks(), r.Problems) }

func (r *Report) remarks() (events []named) {
	for i := range r.Events {
		events = append(events, named{r.Events[i].Name, &r.Events[i].Remarks})
	}
	return events
}

// Write the report as JSON.
func (r *Report) Write(path string) error { return writeJSON(path, r) }
