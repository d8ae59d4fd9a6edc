package speaker

// Converts the controller's messages to BGP's types.

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
	"github.com/guideway/guideway/speaker/bgp"
)

// passwords of the sessions, by file. They are read once for each config, so
// that a file that is being replaced does not end a session.
type passwords struct {
	of   time.Time // the config
	read map[string]string
}

// decode what is desired. What cannot be used is left out and reported.
func (p *passwords) decode(desired *speakerv1.Desired) (bgp.Desired, error) {
	if desired.GetAsn() == 0 {
		return bgp.Desired{}, nil
	}
	routerID, err := netip.ParseAddr(desired.GetRouterId())
	if err != nil {
		return bgp.Desired{}, fmt.Errorf("router id: %w", err)
	}
	if at := desired.GetConfigLoadedAt().AsTime(); p.read == nil || !at.Equal(p.of) {
		p.of, p.read = at, map[string]string{}
	}
	want := bgp.Desired{Identity: bgp.Identity{ASN: desired.GetAsn(), RouterID: routerID}}
	var failed []error
	for _, n := range desired.GetNeighbors() {
		neighbor, err := p.neighbor(n)
		if err != nil {
			failed = append(failed, fmt.Errorf("neighbor %s is left out: %w", n.GetAddress(), err))
			continue
		}
		want.Neighbors = append(want.Neighbors, neighbor)
	}
	for _, r := range desired.GetRoutes() {
		route, err := routeOf(r)
		if err != nil {
			failed = append(failed, fmt.Errorf("route %s is left out: %w", r.GetPrefix(), err))
			continue
		}
		want.Routes = append(want.Routes, route)
	}
	return want, errors.Join(failed...)
}

func (p *passwords) neighbor(n *speakerv1.Neighbor) (bgp.Neighbor, error) {
	address, err := netip.ParseAddr(n.GetAddress())
	if err != nil {
		return bgp.Neighbor{}, err
	}
	var source netip.Addr
	if text := n.GetSource(); text != "" {
		if source, err = netip.ParseAddr(text); err != nil {
			return bgp.Neighbor{}, fmt.Errorf("source: %w", err)
		}
	}
	if n.GetMultihop() > math.MaxUint8 || n.GetPrepend() > math.MaxUint8 {
		return bgp.Neighbor{}, fmt.Errorf("multihop %d and prepend %d: at most %d each", n.GetMultihop(), n.GetPrepend(), math.MaxUint8)
	}
	password, err := p.password(n.GetPasswordFile())
	if err != nil {
		return bgp.Neighbor{}, err
	}
	neighbor := bgp.Neighbor{
		Address: address, ASN: n.GetAsn(), HoldTime: n.GetHoldTime().AsDuration(), Password: password,
		TTLSecurity: n.GetTtlSecurity(), Source: source, Multihop: uint8(n.GetMultihop()),
		Attributes: bgp.Attributes{MED: n.GetMed(), WithMED: n.Med != nil, LocalPref: n.GetLocalPref(), Prepend: uint8(n.GetPrepend())},
	}
	if bfd := n.GetBfd(); bfd != nil {
		neighbor.BFD = bgp.BFD{Interval: bfd.GetInterval().AsDuration(), Multiplier: bfd.GetMultiplier()}
	}
	return neighbor, nil
}

func (p *passwords) password(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	if password, known := p.read[file]; known {
		return password, nil
	}
	data, _, err := config.ReadFromDisk(file)
	if err != nil {
		return "", fmt.Errorf("read the password file: %w: the speaker's user has to be able to (group guideway-speaker, mode 0640)", err)
	}
	password := string(config.TrimSecret(data))
	if password == "" {
		return "", errors.New("the password file " + file + " is empty")
	}
	p.read[file] = password
	return password, nil
}

func routeOf(r *speakerv1.Route) (brain.Route, error) {
	prefix, err := netip.ParsePrefix(r.GetPrefix())
	if err != nil {
		return brain.Route{}, err
	}
	nextHop, err := netip.ParseAddr(r.GetNextHop())
	if err != nil {
		return brain.Route{}, fmt.Errorf("next hop: %w", err)
	}
	route := brain.Route{Prefix: prefix, NextHop: nextHop, GracefulShutdown: r.GetGracefulShutdown()}
	for _, c := range r.GetCommunities() {
		route.Communities = append(route.Communities, config.Community(c))
	}
	for _, c := range r.GetLargeCommunities() {
		route.LargeCommunities = append(route.LargeCommunities, config.LargeCommunity{Global: c.GetGlobal(), Local1: c.GetLocal1(), Local2: c.GetLocal2()})
	}
	return route, nil
}

// leaving: the same routes, about to be withdrawn on purpose.
func leaving(routes []brain.Route) []brain.Route {
	routes = slices.Clone(routes)
	for i := range routes {
		routes[i].GracefulShutdown = true
	}
	return routes
}

// desiredNeighbor with that address; nil, which desires nothing: there is none.
func desiredNeighbor(desired *speakerv1.Desired, address netip.Addr) *speakerv1.Neighbor {
	for _, n := range desired.GetNeighbors() {
		if n.GetAddress() == address.String() {
			return n
		}
	}
	return nil
}

// worse: to the same neighbors, as routes that others are better than.
func worse(want bgp.Desired) bgp.Desired {
	want.Neighbors = slices.Clone(want.Neighbors)
	for i := range want.Neighbors {
		n := &want.Neighbors[i]
		n.Attributes = n.Attributes.Worse(n.ASN == want.Identity.ASN)
	}
	return want
}

// attributesOf the routes to a neighbor, in the config's words.
func attributesOf(want bgp.Desired, address netip.Addr) []string {
	for _, n := range want.Neighbors {
		if n.Address == address {
			return n.Attributes.Strings()
		}
	}
	return nil
}

// bfdOf a neighbor, empty where none is desired.
func bfdOf(n *speakerv1.Neighbor, isUp bool) string {
	switch {
	case n.GetBfd() == nil:
		return ""
	case isUp:
		return bfdUp
	}
	return bfdDown
}
