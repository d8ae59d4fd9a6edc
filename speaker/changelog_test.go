package speaker

import (
	"testing"
	"time"
)

func TestWhatChangesOftenIsLoggedOnceASecond(t *testing.T) {
	var l changeLog
	at, lines, counted := time.Unix(1_700_000_000, 0), 0, 0
	step := func(state string) {
		if flaps, due := l.step(state, at); due {
			lines++
			counted += flaps + 1
		}
	}
	step("announcing")
	if lines != 1 {
		t.Error("the first state was not logged at once")
	}
	const seconds = 5
	for i := range seconds * 30 { // each 33 ms
		at = at.Add(time.Second / 30)
		step([]string{"withheld", "announcing"}[i%2])
	}
	if lines > 1+seconds {
		t.Errorf("%d lines in %d s", lines, seconds)
	}
	at = l.again()
	step("announcing")
	if !l.again().IsZero() || counted != 1+seconds*30 {
		t.Errorf("%d changes counted; to look again at %v", counted, l.again())
	}
	lines, at = 0, at.Add(time.Hour)
	step("withheld")
	step("withheld")
	if lines != 1 {
		t.Errorf("%d lines about one change", lines)
	}
}

func TestAReasonWithAnotherAgeIsTheSame(t *testing.T) {
	one := numbers.ReplaceAllString("thread worker-0 hangs: no heartbeat for 998.5ms, and it", "")
	other := numbers.ReplaceAllString("thread worker-0 hangs: no heartbeat for 1.025s, and it", "")
	if one != other {
		t.Errorf("%q is not %q", one, other)
	}
}
