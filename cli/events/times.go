package events

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/cli/commandline"
)

// readTimes of the flags.
func (o *options) readTimes(now time.Time) error {
	if o.since != "" {
		at, ok := parseTime(o.since, now)
		if !ok {
			return badTime("--since", o.since)
		}
		o.request.Since = timestamppb.New(at)
	}
	if o.until != "" {
		at, ok := parseTime(o.until, now)
		if !ok {
			return badTime("--until", o.until)
		}
		if isClock(o.until) && at.Before(o.request.Since.AsTime()) && o.since != "" {
			at = at.AddDate(0, 0, 1) // still to come
		}
		o.request.Until = timestamppb.New(at)
	}
	switch {
	case o.until != "" && o.request.Follow:
		return commandline.Usagef("--until, --follow: give one of the two")
	case o.until != "" && o.since != "" && o.request.Until.AsTime().Before(o.request.Since.AsTime()):
		return commandline.Usagef("--until %s is before --since %s", o.until, o.since)
	case o.request.Follow && o.since == "":
		o.request.Since = timestamppb.New(now)
	}
	return nil
}

func badTime(flag, text string) error {
	return commandline.Usagef("%s %q: give a time like 15:04, 2026-11-29T15:04:05Z or \"2026-11-29 15:04\", or how long ago, like 10m", flag, text)
}

// Times of day, without a day: the latest that was.
var clocks = []string{"15:04", time.TimeOnly}

func parseTime(text string, now time.Time) (at time.Time, ok bool) {
	if ago, err := time.ParseDuration(text); err == nil {
		return now.Add(-ago), ago >= 0
	}
	for _, layout := range clocks {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			at = time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, now.Location())
			if at.After(now) {
				at = at.AddDate(0, 0, -1)
			}
			return at, true
		}
	}
	for _, layout := range []string{time.RFC3339, time.DateTime, "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

func isClock(text string) bool {
	for _, layout := range clocks {
		if _, err := time.Parse(layout, text); err == nil {
			return true
		}
	}
	return false
}
