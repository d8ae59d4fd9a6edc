package bgp

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// exporting is BIRD's config with that many routes to announce.
func exporting(routes int) string {
	var static strings.Builder
	for i := range routes {
		fmt.Fprintf(&static, "route %s/32 blackhole;\n", netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	config := fmt.Sprintf(birdConfig, "192.0.2.254", 64513, "192.0.2.1", "", "")
	return strings.Replace(config, "route 198.51.100.0/24 blackhole;", static.String(), 1)
}

func TestASessionOverWhichTooManyRoutesComeEndsAndIsTriedAgain(t *testing.T) {
	r := startBird(t, newNamespace(t), exporting(routesInMax+1))
	s := newSpeaker(t)
	want := wanted(route4)
	set(t, s, want)
	router := want.Neighbors[0].Address
	eventually(t, time.Minute, "the session has ended by its limit", func() bool { return s.state(router).Reason == overLimit })
	// Whether the router hears why is not certain: what it still sends has the kernel reset the
	// connection.
	ended := s.state(router)
	if ended.Established() {
		t.Errorf("%+v", ended)
	}
	r.birdc("disable", "static1")
	s.renewAfterLimit(t.Context(), router, ended.Since)
	eventually(t, 15*time.Second, "the session is up again", func() bool { return s.state(router).Established() })
	s.renewAfterLimit(t.Context(), router, ended.Since) // of then: it does nothing
	if !s.state(router).Established() {
		t.Error("a session that is up was set up afresh")
	}
}

func TestASessionOverWhichManyRoutesComeLasts(t *testing.T) {
	r := startBird(t, newNamespace(t), exporting(routesInMax))
	s := newSpeaker(t)
	set(t, s, wanted(route4))
	eventually(t, time.Minute, "BIRD has exported all of them", func() bool {
		return strings.Contains(r.birdc("show", "protocols", "all", "lb"), fmt.Sprintf("%d exported", routesInMax))
	})
	if state := s.States()[0]; !state.Established() {
		t.Errorf("%+v", state)
	}
}
