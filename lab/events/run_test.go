package events

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/guideway/guideway/lab/report"
	"github.com/guideway/guideway/lab/topology"
)

// takenDown is a lab that remembers how.
type takenDown struct{ how string }

func (l *takenDown) Options() topology.Options { return topology.Options{RunDir: "/run/lab"} }
func (l *takenDown) Down() error               { l.how = "whole"; return nil }
func (l *takenDown) DownKeepingLogs() error    { l.how = "but logs"; return nil }

func TestLogsOfARunThatWasNotAsExpectedAreKept(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	failure := errors.New("probes did not find be-1 down")
	for name, test := range map[string]struct {
		ctx  context.Context
		err  error
		good bool
		how  string
	}{
		"as expected":     {t.Context(), nil, true, "whole"},
		"not as expected": {t.Context(), nil, false, "but logs"},
		"failed":          {t.Context(), failure, true, "but logs"},
		"interrupted":     {cancelled, context.Canceled, false, "whole"},
	} {
		lab, whole := &takenDown{}, report.Whole{}
		err := takeDown(test.ctx, lab, test.err, test.good, &whole)
		if lab.how != test.how || !errors.Is(err, test.err) {
			t.Errorf("%s: removed %s, error %v", name, lab.how, err)
		}
		kept := test.how == "but logs"
		if kept != (len(whole.Kept) == 1) || (kept && err != nil) != (err != nil && strings.Contains(err.Error(), "/run/lab")) {
			t.Errorf("%s: kept %v, error %v", name, whole.Kept, err)
		}
	}
}

// result of which only is known whether it is good.
type result struct {
	report.Report
	isGood bool
}

func (r *result) Good() bool { return r.isGood }

func TestTheLastLineOfARunThatWasNotAsExpectedSaysWhereLogsAre(t *testing.T) {
	var screen strings.Builder
	o := Options{Output: &screen}
	if err := conclude(o, &result{isGood: true}, nil); err != nil {
		t.Error(err)
	}
	err := conclude(o, &result{}, []string{"/run/a", "/run/b"})
	if !errors.Is(err, ErrNotAsExpected) || !strings.HasSuffix(err.Error(), "configs and logs are in /run/a and /run/b") {
		t.Errorf("error %v", err)
	}
}
