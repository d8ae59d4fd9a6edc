package routes

// Converts the brain's types to the speaker's messages.

import (
	"path/filepath"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
)

// Encode joins the brain's routes with the config's sessions.
func Encode(want brain.Desired, loadedAt time.Time) *speakerv1.Desired {
	if want.Config == nil || !want.Config.Announces() {
		return &speakerv1.Desired{}
	}
	desired := &speakerv1.Desired{
		Generation: want.RoutesPlan, ConfigLoadedAt: timestamppb.New(loadedAt),
		ControllerAbsentMax: AbsentMax(want.Config.Speaker.ControllerAbsentMax), Vrrp: encodeVRRP(want.Config),
	}
	if bgp := want.Config.BGP; bgp != nil {
		desired.Asn, desired.RouterId = bgp.ASN, bgp.RouterID.String()
		for _, n := range bgp.Neighbors {
			desired.Neighbors = append(desired.Neighbors, encodeNeighbor(n))
		}
	}
	for _, r := range want.Routes {
		desired.Routes = append(desired.Routes, encodeRoute(r))
	}
	return desired
}

func encodeVRRP(c *config.Config) *speakerv1.Vrrp {
	if c.VRRP == nil {
		return nil
	}
	vrrp := &speakerv1.Vrrp{Interface: c.VRRP.Interface, PseudoHeader: c.VRRP.PseudoHeader, Interval: durationpb.New(c.VRRP.Interval), Machine: c.Machine.Name, Machines: []string{c.Machine.Name}}
	for _, peer := range c.Peers {
		vrrp.Machines = append(vrrp.Machines, peer.Name)
	}
	for _, route := range c.Routes() {
		if route.Prefix.IsSingleIP() {
			vrrp.Vips = append(vrrp.Vips, route.Prefix.Addr().String())
		}
	}
	for _, probe := range c.VRRP.Probes {
		vrrp.Probes = append(vrrp.Probes, probe.String())
	}
	for _, group := range c.VRRP.Groups {
		encoded := &speakerv1.VrrpGroup{Vrid: uint32(group.VRID)}
		for _, vip := range group.VIPs {
			encoded.Vips = append(encoded.Vips, vip.String())
		}
		vrrp.Groups = append(vrrp.Groups, encoded)
	}
	return vrrp
}

func encodeNeighbor(n config.Neighbor) *speakerv1.Neighbor {
	neighbor := &speakerv1.Neighbor{
		Address: n.Address.String(), Asn: n.ASN, PasswordFile: absolute(n.PasswordFile), TtlSecurity: n.TTLSecurity,
		Multihop: uint32(n.Multihop), Med: n.MED, LocalPref: n.LocalPref, Prepend: uint32(n.Prepend),
	}
	if n.HoldTime > 0 {
		neighbor.HoldTime = durationpb.New(n.HoldTime)
	}
	if n.Source.IsValid() {
		neighbor.Source = n.Source.String()
	}
	if n.BFD != nil {
		neighbor.Bfd = &speakerv1.Bfd{Interval: durationpb.New(n.BFD.Interval), Multiplier: n.BFD.Multiplier}
	}
	return neighbor
}

// absolute, because the speaker's working directory is another.
func absolute(path string) string {
	if path == "" {
		return ""
	}
	if full, err := filepath.Abs(path); err == nil {
		return full
	}
	return path
}

func encodeRoute(r brain.Route) *speakerv1.Route {
	route := &speakerv1.Route{Prefix: r.Prefix.String(), NextHop: r.NextHop.String(), GracefulShutdown: r.GracefulShutdown}
	for _, c := range r.Communities {
		route.Communities = append(route.Communities, uint32(c))
	}
	for _, c := range r.LargeCommunities {
		route.LargeCommunities = append(route.LargeCommunities, &speakerv1.LargeCommunity{Global: c.Global, Local1: c.Local1, Local2: c.Local2})
	}
	return route
}

// AbsentMax of a controller; 0: for as long as it takes.
func AbsentMax(limit time.Duration) *durationpb.Duration {
	if limit == 0 {
		return nil
	}
	return durationpb.New(limit)
}
