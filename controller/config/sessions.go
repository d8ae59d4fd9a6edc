package config

// The BGP sessions that a new config ends.

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// SessionEnd is a session that does not go on as the next config has it.
type SessionEnd struct {
	Neighbor Neighbor
	// Else it begins anew.
	Removed bool
	Reason  string
}

// SessionEnds from one config to the next, in the order of neighbors. A session goes on
// as long as nothing of it changes but what its routes carry, as the speaker has it
// (speaker/bgp, Neighbor.session).
func SessionEnds(before, after *Config) []SessionEnd {
	if before.BGP == nil {
		return nil
	}
	var ends []SessionEnd
	for _, have := range before.BGP.Neighbors {
		if after.BGP == nil {
			ends = append(ends, SessionEnd{have, true, "bgp is removed"})
			continue
		}
		i := slices.IndexFunc(after.BGP.Neighbors, func(n Neighbor) bool { return n.Address == have.Address })
		if i < 0 {
			ends = append(ends, SessionEnd{have, true, "the neighbor is removed"})
			continue
		}
		type identity struct {
			ASN      uint32
			RouterID netip.Addr
		}
		differing := append(
			differences("bgp.", identity{before.BGP.ASN, before.BGP.RouterID}, identity{after.BGP.ASN, after.BGP.RouterID}),
			differences("", have.session(), after.BGP.Neighbors[i].session())...)
		if len(differing) > 0 {
			ends = append(ends, SessionEnd{have, false, strings.Join(differing, ", ")})
		}
	}
	return ends
}

// session without what may change while it goes on.
func (n Neighbor) session() Neighbor {
	n.MED, n.LocalPref, n.Prepend = nil, 0, 0
	return n
}

func differences(path string, before, after any) (texts []string) {
	old, new := flat{}, flat{}
	old.add("", reflect.ValueOf(before))
	new.add("", reflect.ValueOf(after))
	for _, f := range old.compare(new) {
		text := func(value string) string {
			if value == "" {
				return "none"
			}
			return value
		}
		texts = append(texts, fmt.Sprintf("%s%s: %s to %s", path, f.Field, text(f.Before), text(f.After)))
	}
	return texts
}
