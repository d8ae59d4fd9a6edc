package brain

import (
	"fmt"
	"strings"
	"testing"
)

func TestLoadsAreRelativeToTheWeightInEffect(t *testing.T) {
	backend := func(weight, percent uint32, open float64) BackendView {
		return BackendView{State: "active", Weight: weight, WeightPercent: percent, Answers: &Answers{Open: open}}
	}
	silent := BackendView{State: "active", Weight: 1, WeightPercent: 100}
	down := backend(1, 100, 50)
	down.State = "down"
	for name, c := range map[string]struct {
		group []BackendView
		want  string
	}{
		"alike":                            {[]BackendView{backend(1, 100, 4), backend(1, 100, 4)}, "1.00 1.00"},
		"three times the weight":           {[]BackendView{backend(1, 100, 2), backend(3, 100, 6)}, "1.00 1.00"},
		"one is slow":                      {[]BackendView{backend(1, 100, 1), backend(1, 100, 1), backend(1, 100, 4)}, "0.50 0.50 2.00"},
		"slow start":                       {[]BackendView{backend(1, 100, 4), backend(1, 20, 0.8)}, "1.00 1.00"},
		"others count nothing":             {[]BackendView{silent, down, backend(0, 100, 7), backend(1, 100, 4)}, "- - - 1.00"},
		"hardly a request":                 {[]BackendView{backend(1, 100, 0.1), backend(1, 100, 0.8)}, "- -"},
		"a request, and one that has none": {[]BackendView{backend(1, 100, 0), backend(1, 100, 1)}, "0.00 2.00"},
		"none":                             {nil, ""},
	} {
		setLoads(c.group)
		var loads []string
		for _, b := range c.group {
			text := "-"
			if b.Load != nil {
				text = fmt.Sprintf("%.2f", *b.Load)
			}
			loads = append(loads, text)
		}
		if got := strings.Join(loads, " "); got != c.want {
			t.Errorf("%s: %s; want %s", name, got, c.want)
		}
	}
}
