package config

// Builds the VRRP settings: which VIPs are owned on a segment without a BGP router.

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	configv1 "github.com/guideway/guideway/proto/guideway/config/v1"
)

const (
	vridDefault         = 51
	vrrpIntervalDefault = 100 * time.Millisecond
	vrrpIntervalUnit    = 10 * time.Millisecond
	// Of one cluster: each has another priority, and there are not more of them.
	vrrpMachinesMax = 16
	// Of one interface: their announcements take 20 s.
	vrrpVIPsMax = 4096
)

func (b *builder) vrrp() {
	given := b.schema.GetVrrp()
	if given == nil {
		return
	}
	vrrp := &VRRP{Interface: given.GetInterface(), PseudoHeader: given.GetPseudoHeader(), Interval: duration(given.GetInterval(), vrrpIntervalDefault)}
	if vrrp.Interval%vrrpIntervalUnit != 0 {
		b.errorf("vrrp.interval", "is %s: give steps of 10ms, which is what the protocol has", short(vrrp.Interval))
	}
	machines := len(b.config.Peers) + 1
	if machines > vrrpMachinesMax {
		b.errorf("vrrp", "is for at most %d machines, and the cluster has %d: announce the VIPs by `bgp`", vrrpMachinesMax, machines)
	}
	first, groups := int(or(given.GetVrid(), vridDefault)), given.GetGroups()
	if len(groups) == 0 {
		groups = make([]*configv1.VrrpGroup, machines)
	}
	if last := first + len(groups) - 1; last > math.MaxUint8 {
		b.errorf("vrrp.vrid", "is %d, and %d groups from it on end at %d: a virtual router id is at most %d", first, len(groups), last, math.MaxUint8)
		return
	}
	for i, group := range groups {
		vrrp.Groups = append(vrrp.Groups, VRRPGroup{VRID: uint8(first + i), VIPs: b.listedVIPs(fmt.Sprintf("vrrp.groups[%d].vips", i), group.GetVips(), vrrp)})
	}
	for i, text := range given.GetProbes() {
		field := fmt.Sprintf("vrrp.probes[%d]", i)
		probe := b.address(field, text)
		if slices.Contains(b.config.Machine.Addresses, probe) {
			b.errorf(field, "%s is this machine's own address: give another host's, such as the gateway's", probe)
		}
		vrrp.Probes = append(vrrp.Probes, probe)
	}
	b.ownVIPs(vrrp)
	b.config.VRRP = vrrp
}

// listedVIPs of a group, each in one group only.
func (b *builder) listedVIPs(path string, given []string, vrrp *VRRP) (vips []netip.Addr) {
	for i, text := range given {
		field := fmt.Sprintf("%s[%d]", path, i)
		vip := b.address(field, text)
		isTwice := slices.Contains(vips, vip) || slices.ContainsFunc(vrrp.Groups, func(g VRRPGroup) bool { return slices.Contains(g.VIPs, vip) })
		isVIP := slices.ContainsFunc(b.config.Services, func(s Service) bool {
			return slices.ContainsFunc(s.VIPs, func(v VIP) bool { return v.Address == vip })
		})
		switch {
		case !vip.IsValid():
			continue // told
		case isTwice:
			b.errorf(field, "%s is in two groups, or twice in one: give it one owner", vip)
		case !isVIP:
			b.errorf(field, "%s is the VIP of no service: correct it, or remove it", vip)
		}
		vips = append(vips, vip)
	}
	return vips
}

// ownVIPs: what is owned is single addresses, and each has a group.
func (b *builder) ownVIPs(vrrp *VRRP) {
	isShared := slices.ContainsFunc(vrrp.Groups, func(g VRRPGroup) bool { return len(g.VIPs) == 0 })
	routes := b.config.Routes()
	if len(routes) > vrrpVIPsMax {
		b.errorf("vrrp", "owns at most %d VIPs, and this machine's services have %d: have a router route a prefix of them to one VIP", vrrpVIPsMax, len(routes))
	}
	for _, route := range routes {
		vip := route.Prefix.Addr()
		isListed := slices.ContainsFunc(vrrp.Groups, func(g VRRPGroup) bool { return slices.Contains(g.VIPs, vip) })
		switch {
		case !route.Prefix.IsSingleIP():
			b.errorf("vrrp", "owns single addresses, and service %s has VIPs in the prefix %s: announce it by `bgp`, or have a router route it to one VIP", route.Services[0], route.Prefix)
		case !isListed && !isShared:
			b.errorf("vrrp.groups", "do not have VIP %s of service %s: list it, or add a group without `vips`, which has the rest", vip, route.Services[0])
		case slices.Contains(vrrp.Probes, vip):
			b.errorf("vrrp.probes", "%s is a VIP: give a host that answers for itself, such as the gateway", vip)
		case slices.Contains(b.config.Machine.Addresses, vip):
			b.errorf("machine.addresses", "%s is a VIP, which vrrp owns: give an address of this machine's own", vip)
		}
	}
}
