package speaker

// Converts the controller's messages to VRRP's types, and VRRP's state to messages for people.

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	speakerv1 "github.com/guideway/guideway/proto/guideway/speaker/v1"
	"github.com/guideway/guideway/speaker/vrrp"
	"github.com/guideway/guideway/speaker/vrrp/election"
)

// How long it is shown that another machine claims what this one owns: it does each interval,
// of 41 s at most.
const secondOwnerShown = time.Minute

// ownership keeps VRRP on what is desired. A speaker that never owns anything has no sockets
// for it.
type ownership struct {
	begin func() (*vrrp.Speaker, error)
	// For any goroutine; nil: it was never needed.
	vrrp atomic.Pointer[vrrp.Speaker]
	// What it was brought to.
	desired  *speakerv1.Desired
	standing election.Standing
	// Why that cannot be; empty: it can.
	refused string
}

// follow what is desired; the same again is nothing new, unless it could not be.
func (o *ownership) follow(desired *speakerv1.Desired, standing election.Standing) {
	if desired == o.desired && standing == o.standing && o.refused == "" {
		return
	}
	o.desired, o.standing, o.refused = desired, standing, ""
	want, err := ownedOf(desired, standing)
	if err == nil && (want.Interface != "" || o.vrrp.Load() != nil) {
		err = o.bring(want)
	}
	if err != nil {
		o.refused = err.Error()
	}
}

func (o *ownership) bring(want vrrp.Desired) error {
	speaker := o.vrrp.Load()
	if speaker == nil {
		begun, err := o.begin()
		if err != nil {
			return err
		}
		o.vrrp.Store(begun)
		speaker = begun
	}
	return speaker.Set(want)
}

// ownedOf what is desired: of each group the VIPs that are routes now. A group that lacks
// some, or will soon, is left to a machine that has them all, if there is one.
func ownedOf(desired *speakerv1.Desired, standing election.Standing) (vrrp.Desired, error) {
	given := desired.GetVrrp()
	if given == nil {
		return vrrp.Desired{}, nil
	}
	priorities := election.Priorities(given.GetMachines(), given.GetMachine(), len(given.GetGroups()))
	if priorities == nil {
		return vrrp.Desired{}, fmt.Errorf("VRRP: %d machines, %s among them: at most %d have priorities", len(given.GetMachines()), given.GetMachine(), election.MachinesMax)
	}
	want := vrrp.Desired{Interface: given.GetInterface(), Standing: standing}
	want.Interval, want.PseudoHeader = given.GetInterval().AsDuration(), given.GetPseudoHeader()
	for _, text := range given.GetProbes() {
		probe, err := netip.ParseAddr(text)
		if err != nil {
			return vrrp.Desired{}, fmt.Errorf("VRRP: %w", err)
		}
		want.Probes = append(want.Probes, probe)
	}
	for i, group := range given.GetGroups() {
		want.Groups = append(want.Groups, election.Group{VRID: uint8(group.GetVrid()), Priority: priorities[i]})
	}
	stays := map[string]bool{} // by route, which is there
	for _, route := range desired.GetRoutes() {
		stays[route.GetPrefix()] = !route.GetGracefulShutdown()
	}
	groupOf := groupsOf(given.GetGroups())
	worse := make([]bool, len(want.Groups))
	for _, text := range given.GetVips() {
		vip, err := netip.ParseAddr(text)
		if err != nil {
			return vrrp.Desired{}, fmt.Errorf("VRRP: %w", err)
		}
		group, has := groupOf(vip)
		if !has {
			continue
		}
		isThere, stay := false, false
		if stay, isThere = stays[netip.PrefixFrom(vip, vip.BitLen()).String()]; isThere {
			want.Groups[group].VIPs = append(want.Groups[group].VIPs, vip)
		}
		worse[group] = worse[group] || !stay
	}
	for i := range want.Groups {
		if worse[i] {
			want.Groups[i].Priority = uint8(max(1, int(priorities[i])-election.SlowBy))
		}
	}
	want.Groups = slices.DeleteFunc(want.Groups, func(g election.Group) bool { return len(g.VIPs) == 0 })
	return want, nil
}

// groupsOf VIPs: the one that lists it, else by hash one of those that list none.
func groupsOf(groups []*speakerv1.VrrpGroup) func(netip.Addr) (group int, has bool) {
	listed, shared := map[netip.Addr]int{}, []int{}
	for i, group := range groups {
		for _, text := range group.GetVips() {
			if vip, err := netip.ParseAddr(text); err == nil {
				listed[vip] = i
			}
		}
		if len(group.GetVips()) == 0 {
			shared = append(shared, i)
		}
	}
	return func(vip netip.Addr) (int, bool) {
		if group, isListed := listed[vip]; isListed || len(shared) == 0 {
			return group, isListed
		}
		return shared[election.GroupOf(vip, len(shared))], true
	}
}

// heard of ownership, for the log.
func (p *process) heardOwnership(action election.Action) {
	switch a := action.(type) {
	case election.Changed:
		p.log.Info("VRRP "+a.To.String(), "vrid", a.VRID, "family", familyOf(a.IPv6), "from", a.From.String(), "reason", a.Reason)
	case election.SecondOwner:
		p.log.Warn("another machine claims VIPs that this one owns", "vrid", a.VRID, "family", familyOf(a.IPv6), "by", a.Who)
	}
}

func familyOf(ipv6 bool) string {
	if ipv6 {
		return "ipv6"
	}
	return "ipv4"
}

// describe adds what VRRP does to a state.
func (o *ownership) describe(state *speakerv1.State, isConfigured bool) {
	speaker := o.vrrp.Load()
	if speaker == nil || !isConfigured {
		return
	}
	shown := speaker.Shown()
	state.Problem = cmp.Or(state.Problem, shown.Problem)
	for _, r := range shown.Routers {
		router := &speakerv1.VirtualRouter{
			Vrid: uint32(r.VRID), Family: familyOf(r.IPv6), State: r.State.String(), Reason: r.Reason, Since: timestamppb.New(r.Since),
			Priority: uint32(r.Priority), OwnerPriority: uint32(r.OwnerPriority),
		}
		if r.Owner.IsValid() {
			router.Owner = r.Owner.String()
		}
		if time.Since(r.SecondOwnerHeardAt) < secondOwnerShown {
			router.SecondOwner = r.SecondOwner
		}
		for _, vip := range r.VIPs {
			router.Vips = append(router.Vips, vip.String())
		}
		state.Vrrp = append(state.Vrrp, router)
	}
	for _, probe := range shown.Probes {
		told := &speakerv1.VrrpProbe{Address: probe.Target.String(), Gateway: probe.Gateway, Answers: probe.Answers}
		if !probe.AnsweredAt.IsZero() {
			told.AnsweredAt = timestamppb.New(probe.AnsweredAt)
		}
		state.VrrpProbes = append(state.VrrpProbes, told)
	}
	counts := &speakerv1.VrrpCounts{
		AdvertisementsSent: shown.Counts.AdvertisementsSent, AdvertisementsHeard: shown.Counts.AdvertisementsHeard, AdvertisementsIgnored: shown.Counts.AdvertisementsIgnored,
		SecondOwners: shown.Counts.SecondOwners, Announcements: shown.Counts.Announced, Answers: shown.Counts.Answered, NotAnswered: shown.Counts.NotAnswered,
		SendsFailed: shown.SendsFailed,
	}
	for _, malformed := range shown.Malformed {
		counts.Malformed += malformed
	}
	state.VrrpCounts = counts
}
