package buckets

import (
	"fmt"
	"strings"
)

// Changes from one map to the next, in buckets.
type Changes struct {
	// Given to a backend where none had them.
	Given int
	// Whose new backend is named to be tried; which have it in charge now; and
	// those of them whose old backend is dead.
	Prepared, Moved, Lost int
	// Names of earlier backends that are gone.
	Closed int
	// Buckets that wait, afterwards, where that differs.
	Waiting int
}

// Compare two maps of a service; the first may be nil.
func Compare(before, after *Map) Changes {
	var c Changes
	if before == nil || len(before.Buckets) != len(after.Buckets) {
		if !after.Unserved {
			c.Given = len(after.Buckets)
		}
		return c
	}
	for i := range after.Buckets {
		was, is := &before.Buckets[i], &after.Buckets[i]
		stays := map[string]bool{}
		for _, e := range is.Earlier {
			stays[e.Backend] = true
		}
		switch {
		case was.Owner == is.Owner:
		case was.Owner == "":
			c.Given++
		default:
			c.Moved++
			if !stays[was.Owner] {
				c.Lost++
			}
		}
		if is.Next != "" && is.Next != was.Next {
			c.Prepared++
		}
		for _, e := range was.Earlier {
			if !stays[e.Backend] && e.Backend != is.Owner {
				c.Closed++
			}
		}
	}
	if before.Waiting != after.Waiting {
		c.Waiting = after.Waiting
	}
	return c
}

// String for people, such as `128 buckets prepared, 4 moves closed`.
func (c Changes) String() string {
	var parts []string
	add := func(count int, format string) {
		if count > 0 {
			parts = append(parts, fmt.Sprintf(format, count))
		}
	}
	add(c.Given, "%d buckets given to backends")
	add(c.Prepared, "%d buckets about to move")
	add(c.Moved, "%d buckets moved")
	add(c.Lost, "%d of them away from backends that are down or removed")
	add(c.Closed, "%d moves closed")
	add(c.Waiting, "%d buckets wait until moves close")
	return strings.Join(parts, ", ")
}
