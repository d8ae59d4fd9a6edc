package demo

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/guideway/guideway/lab"
)

func TestOnlyRoutesThatGoWithoutAKillAreAProblem(t *testing.T) {
	one, two := netip.MustParseAddr("10.20.1.1"), netip.MustParseAddr("10.20.2.1")
	addresses := map[string][]netip.Addr{"lb-1": {one}, "lb-2": {two}}
	both := lab.Routes{lab.WebVIPs[0]: {one, two}}
	onlyTwo := lab.Routes{lab.WebVIPs[0]: {two}}
	tests := map[string]struct {
		seen   []lab.Routes
		killed string
		want   int
	}{
		"nothing changes":       {[]lab.Routes{both, both}, "", 0},
		"killed":                {[]lab.Routes{both, onlyTwo}, "lb-1", 0},
		"not killed":            {[]lab.Routes{both, onlyTwo, both}, "", 1},
		"another was killed":    {[]lab.Routes{both, onlyTwo}, "lb-2", 1},
		"killed, but twice":     {[]lab.Routes{both, onlyTwo, both, onlyTwo}, "lb-1", 1},
		"only comes":            {[]lab.Routes{onlyTwo, both}, "", 0},
		"everything goes, once": {[]lab.Routes{both, {}}, "", 2},
	}
	for name, test := range tests {
		log := &routeLog{cancel: func() {}, ended: make(chan struct{}), lost: map[string]int{}}
		close(log.ended)
		present := map[string]bool{}
		for _, routes := range test.seen {
			log.see(routes, addresses, present)
		}
		problems, err := log.stop(test.killed)
		if err != nil || len(problems) != test.want {
			t.Errorf("%s: problems %s, %v", name, strings.Join(problems, "; "), err)
		}
	}
}
