package bgp

// Limits the routes kept from neighbors. A policy refuses all of them, but GoBGP 4.8 stores
// them before the policy applies, so that a changed policy can be applied to them. A session
// that exceeds the limit is closed.

import (
	"context"
	"fmt"
	"net/netip"
	"time"
)

const (
	// Routes of a neighbor and family. GoBGP keeps one in some 600 bytes: 30 MB, while
	// the speaker's unit has 1 GB.
	routesInMax = 50_000
	// Before the session is tried again: routes that come and go have clients' connections
	// move each time.
	limitPause = 10 * time.Minute
)

var overLimit = fmt.Sprintf("the router announces more than %d routes, of which none is used: let it export none to load balancers; it is tried again every %v", routesInMax, limitPause)

// renewAfterLimit a session that ended then by its limit, and is still ended: GoBGP does
// not try it again by itself.
func (s *Speaker) renewAfterLimit(ctx context.Context, address netip.Addr, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, have := s.neighbors[address]
	if state := s.state(address); have && !state.Established() && state.Since == since {
		s.setUpAfresh(ctx, n)
	}
}
