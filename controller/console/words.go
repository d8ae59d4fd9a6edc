package console

// Formats numbers, times and states.

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/brain"
)

// Of console.css.
const (
	good   = "good"
	mid    = "mid"
	bad    = "bad"
	dim    = "dim"
	number = "n"
)

func plain(text string) cell         { return cell{Text: text} }
func styled(text, class string) cell { return cell{Text: text, Class: class} }

// count as 12,345.
func count[T ~int | ~uint32 | ~uint64](n T) string { return grouped(strconv.FormatUint(uint64(n), 10)) }

func grouped(digits string) string {
	var b strings.Builder
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	return b.String()
}

// perSecond as 12,345, or 0.3 below ten.
func perSecond(n float64) string {
	if n > 0 && n < 9.95 {
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	return grouped(strconv.FormatFloat(n, 'f', 0, 64))
}

// bytesPerSecond as 1.2 MB/s.
func bytesPerSecond(n float64) string {
	units := []string{"B/s", "kB/s", "MB/s", "GB/s", "TB/s"}
	for n >= 999.5 && len(units) > 1 {
		n, units = n/1000, units[1:]
	}
	return perSecond(n) + " " + units[0]
}

func since(t *timestamppb.Timestamp) cell {
	if t == nil {
		return cell{}
	}
	return cell{Since: t.AsTime().Unix()}
}

// ago as console.js has it.
func ago(since int64, now time.Time) string {
	seconds := max(0, now.Unix()-since)
	in := func(n, unit int64) string { return strconv.FormatInt(n/unit, 10) }
	switch {
	case seconds < 60:
		return in(seconds, 1) + " s"
	case seconds < 3600:
		return in(seconds, 60) + " min"
	case seconds < 48*3600:
		return in(seconds, 3600) + " h"
	}
	return in(seconds, 24*3600) + " d"
}

// serviceClass of a state of a machine or a service.
func serviceClass(state string) string {
	switch state {
	case brain.ServingAll:
		return good
	case brain.NotServing, brain.NoBackend, brain.CutOff:
		return bad
	}
	return mid
}

func backendClass(state string) string {
	switch state {
	case "active":
		return good
	case "down":
		return bad
	case "standby":
		return dim
	}
	return mid
}

// rank of a class among troubles.
func rank(class string) int {
	switch class {
	case bad:
		return 0
	case mid:
		return 1
	}
	return 2
}
