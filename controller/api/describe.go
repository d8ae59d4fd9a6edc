package api

// The brain's view in the words of the contract.

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/brain"
	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Describe translates a view; neighbors, version and source are the caller's
// to add.
func Describe(v brain.View) *controllerv1.GetStateResponse {
	state := &controllerv1.GetStateResponse{
		Machine: &controllerv1.Machine{
			Name: v.Machine.Name, State: v.Machine.State, Reason: v.Machine.Reason, DrainedBackends: v.Machine.DrainedBackends,
		},
		Config: &controllerv1.Config{
			LoadedAt: Timestamp(v.Config.LoadedAt), Stale: v.Config.Stale, Problem: v.Config.Problem,
			ProblemAt: Timestamp(v.Config.ProblemAt), Warnings: v.Config.Warnings,
		},
		Forwarder: &controllerv1.Forwarder{
			Healthy: v.Forwarder.Healthy, Reason: v.Forwarder.Reason, Since: Timestamp(v.Forwarder.Since),
			GenerationWanted: v.Forwarder.Wanted, GenerationAccepted: v.Forwarder.Accepted, GenerationRunning: v.Forwarder.Running,
			Refusal: v.Forwarder.Refusal, RestartRequired: v.Forwarder.RestartRequired, Warnings: v.Forwarder.Warnings,
		},
		NotReady: v.NotReady,
	}
	for _, s := range v.Services {
		state.Services = append(state.Services, describeService(s))
	}
	for _, b := range v.Backends {
		state.Backends = append(state.Backends, &controllerv1.Backend{
			Group: b.Group, Services: uint32(b.Services), Service: b.Service, Name: b.Name, Address: b.Address.String(), Weight: b.Weight,
			State: b.State, Reason: b.Reason, Since: Timestamp(b.Since), Pools: b.Pools, Unresolved: b.Unresolved,
		})
	}
	for _, p := range v.Peers {
		peer := &controllerv1.Peer{Name: p.Name, Healthy: p.Healthy, Reason: p.Reason, Since: Timestamp(p.Since)}
		for _, address := range p.Addresses {
			peer.Addresses = append(peer.Addresses, address.String())
		}
		state.Peers = append(state.Peers, peer)
	}
	for _, r := range v.Routes {
		state.Routes = append(state.Routes, describeRoute(r))
	}
	return state
}

func describeService(s brain.ServiceView) *controllerv1.Service {
	described := &controllerv1.Service{
		Name: s.Service.Name, State: s.State, Reason: s.Reason, Pools: s.Service.Pools,
		BackendsActive: uint32(s.Active), Backends: uint32(len(s.Service.Members)),
	}
	for _, vip := range s.Service.VIPs {
		described.Vips = append(described.Vips, describeVIP(vip))
	}
	return described
}

// describeVIP: `203.0.113.10 tcp 80,443`, `class-a:0.0.0.10/8 udp 443`.
func describeVIP(vip config.VIP) string {
	var words []string
	switch {
	case vip.Address.IsValid():
		words = append(words, vip.Address.String())
	case vip.SuffixBits > 0:
		words = append(words, fmt.Sprintf("%s:%s/%d", vip.PrefixGroup, vip.Suffix, vip.SuffixBits))
	default:
		words = append(words, vip.PrefixGroup+":"+vip.Suffix.String())
	}
	if vip.Protocol != config.ProtocolAny {
		words = append(words, string(vip.Protocol))
	}
	var ports []string
	for _, p := range vip.Ports {
		if p.First == p.Last {
			ports = append(ports, fmt.Sprint(p.First))
		} else {
			ports = append(ports, fmt.Sprintf("%d-%d", p.First, p.Last))
		}
	}
	if len(ports) > 0 {
		words = append(words, strings.Join(ports, ","))
	}
	return strings.Join(words, " ")
}

func describeRoute(r brain.RouteView) *controllerv1.Route {
	return &controllerv1.Route{
		Prefix: r.Prefix.String(), NextHop: text(r.NextHop), Announced: r.Announced, GracefulShutdown: r.Announced && r.GracefulShutdown,
		Reason: r.Reason, Since: Timestamp(r.Since), Services: r.Services,
	}
}

func text(address netip.Addr) string {
	if !address.IsValid() {
		return ""
	}
	return address.String()
}

// Timestamp of a time; none of the zero time.
func Timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}
