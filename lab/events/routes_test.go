package events

import (
	"net/netip"
	"testing"

	"github.com/guideway/guideway/lab/topology"
)

func TestOnlyRoutesThatGoWithoutAKillAreAProblem(t *testing.T) {
	one, two := netip.MustParseAddr("10.20.1.1"), netip.MustParseAddr("10.20.2.1")
	addresses := map[string][]netip.Addr{"lb-1": {one}, "lb-2": {two}}
	both := topology.Routes{topology.WebVIPs[0]: {one, two}}
	onlyTwo := topology.Routes{topology.WebVIPs[0]: {two}}
	tests := map[string]struct {
		seen   []topology.Routes
		killed string
		slow   string
		want   int
	}{
		"nothing changes":       {[]topology.Routes{both, both}, "", "", 0},
		"killed":                {[]topology.Routes{both, onlyTwo}, "lb-1", "", 0},
		"not killed":            {[]topology.Routes{both, onlyTwo, both}, "", "", 1},
		"another was killed":    {[]topology.Routes{both, onlyTwo}, "lb-2", "", 1},
		"killed, but twice":     {[]topology.Routes{both, onlyTwo, both, onlyTwo}, "lb-1", "", 1},
		"only comes":            {[]topology.Routes{onlyTwo, both}, "", "", 0},
		"slow":                  {[]topology.Routes{both, onlyTwo, both}, "", "lb-1", 0},
		"everything goes, once": {[]topology.Routes{both, {}}, "", "", 2},
	}
	for name, test := range tests {
		log := &routeLog{cancel: func() {}, ended: make(chan struct{}), isSlow: func(machine string) bool { return machine == test.slow }, lost: map[string]int{}}
		close(log.ended)
		present := map[string]bool{}
		for _, routes := range test.seen {
			log.see(routes, addresses, present)
		}
		lost, slow, err := log.stop(test.killed)
		if err != nil || len(lost) != test.want || slow != test.slow {
			t.Errorf("%s: lost %v, slow %s, %v", name, lost, slow, err)
		}
	}
}
