package events

import (
	"strings"
	"testing"
	"time"
)

func TestAMachineIsTooBusyByItsTimersOrByWhatWaits(t *testing.T) {
	for name, test := range map[string]struct {
		late    time.Duration
		waiting float64
		want    string
	}{
		"idle":           {time.Millisecond, 0.02, ""},
		"a demo alone":   {60 * time.Millisecond, 0.6, ""},
		"it stood still": {1200 * time.Millisecond, 0.1, "1200 ms late"},
		"busy loops":     {40 * time.Millisecond, 0.99, "99 % of the time"},
	} {
		got := tooBusy(test.late, test.waiting)
		if !strings.Contains(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestPressureIsTheTimeThatSomeTaskWaited(t *testing.T) {
	content := "some avg10=16.30 avg60=67.98 avg300=52.46 total=248750458\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"
	if got := parsePressure(content); got != 248750458*time.Microsecond {
		t.Errorf("pressure %v", got)
	}
	if got := parsePressure(""); got != 0 {
		t.Errorf("pressure of nothing %v", got)
	}
}
