package api

// Converts the brain's view to the API's messages.

import (
	"net/netip"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/guideway/guideway/controller/brain"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Why no route is announced, where no router hears this machine.
const (
	NoBGP     = "BGP is not configured"
	NoSession = "no BGP session is established"
	// Owned VIPs need no router.
	Owned = "owned by VRRP"
)

// Describe translates a view; neighbors, version and source are the caller's
// to add.
func Describe(v brain.View) *controllerv1.GetStateResponse {
	state := &controllerv1.GetStateResponse{
		Machine: &controllerv1.Machine{
			Name: v.Machine.Name, State: v.Machine.State, Reason: v.Machine.Reason, DrainedBackends: v.Machine.DrainedBackends,
			Drain: describeDrain(v.Machine.Drain),
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
		NotReady: v.NotReady, SilentAgents: v.SilentAgents, AgentsBehind: v.AgentsBehind,
	}
	for _, s := range v.Services {
		state.Services = append(state.Services, describeService(s))
	}
	for _, b := range v.Backends {
		state.Backends = append(state.Backends, describeBackend(b))
	}
	for _, p := range v.Peers {
		peer := &controllerv1.Peer{Name: p.Name, Healthy: p.Healthy, Reason: p.Reason, Since: Timestamp(p.Since)}
		for _, address := range p.Addresses {
			peer.Addresses = append(peer.Addresses, address.String())
		}
		state.Peers = append(state.Peers, peer)
	}
	for _, s := range v.MemberSources {
		state.MemberSources = append(state.MemberSources, describeMemberSource(s))
	}
	for _, r := range v.Routes {
		state.Routes = append(state.Routes, describeRoute(r))
	}
	return state
}

func describeMemberSource(s brain.MemberSourceView) *controllerv1.MemberSource {
	return &controllerv1.MemberSource{
		Name: s.Pool, Source: s.Source, Backends: uint32(s.Backends), Leaving: uint32(s.Leaving), LastSuccess: Timestamp(s.LastSuccess),
		Problem: s.Problem, ProblemSince: Timestamp(s.ProblemSince),
		Waiting: uint32(s.Waiting), WaitingSince: Timestamp(s.WaitingSince), WaitingUntil: Timestamp(s.WaitingUntil),
	}
}

func describeBackend(b brain.BackendView) *controllerv1.Backend {
	return &controllerv1.Backend{
		Group: b.Group, Services: uint32(b.Services), Service: b.Service, Name: b.Name, Address: b.Address.String(), Weight: b.Weight,
		State: b.State, Reason: b.Reason, Since: Timestamp(b.Since), Pools: b.Pools, Unresolved: b.Unresolved,
		WeightPercent: b.WeightPercent, Held: b.Held, Answers: DescribeAnswers(b.Answers), Load: b.Load,
	}
}

// DescribeAnswers of a backend; nil: they are not measured.
func DescribeAnswers(a *brain.Answers) *controllerv1.Answers {
	if a == nil {
		return nil
	}
	described := &controllerv1.Answers{
		Measured: a.Measured, Open: a.Open, Resets: a.Resets, Connections: a.Connections, AcceptQueue: a.AcceptQueue,
	}
	if a.Measured > 0 {
		described.P50Seconds, described.P99Seconds = proto.Float64(a.P50.Seconds()), proto.Float64(a.P99.Seconds())
	}
	return described
}

// DescribeBackend translates what is known of one.
func DescribeBackend(detail brain.BackendDetail) *controllerv1.GetBackendResponse {
	described := &controllerv1.GetBackendResponse{}
	for _, b := range detail.Backends {
		described.Backends = append(described.Backends, describeBackend(b))
	}
	for _, c := range detail.Checks {
		check := &controllerv1.BackendCheck{
			Name: c.Name, Kind: c.Kind, Address: c.Address.String(), Via: string(c.Via), Pools: c.Pools,
			Interval: durationpb.New(c.Interval), Timeout: durationpb.New(c.Timeout), Rise: uint32(c.Rise), Fall: uint32(c.Fall),
			Verdict: c.Verdict, Since: Timestamp(c.Since), Contradicting: uint32(c.Contradicting),
		}
		if !c.Last.At.IsZero() {
			check.Last = &controllerv1.Probe{
				Passed: c.Last.Passed, Result: c.Last.Result, LatencySeconds: c.Last.Latency.Seconds(), At: Timestamp(c.Last.At),
				Warning: c.Last.Warning, CertificateExpires: Timestamp(c.Last.Expires),
			}
		}
		described.Checks = append(described.Checks, check)
	}
	return described
}

func describeService(s brain.ServiceView) *controllerv1.Service {
	described := &controllerv1.Service{
		Name: s.Service.Name, Group: s.Service.Group, State: s.State, Reason: s.Reason, Pools: s.Service.Pools,
		BackendsActive: uint32(s.Active), Backends: uint32(len(s.Service.Members)),
		BackupPools: s.Service.BackupPools, OnBackup: s.OnBackup, BackendsMin: uint32(s.Service.BackendsMin),
		Drain: describeDrain(s.Drain), Buckets: describeBuckets(s.Buckets),
	}
	for _, vip := range s.Service.VIPs {
		described.Vips = append(described.Vips, vip.String())
	}
	return described
}

func describeAgreement(a *brain.AgreementView) *controllerv1.BucketAgreement {
	if a == nil {
		return nil
	}
	described := &controllerv1.BucketAgreement{Leader: a.Leader, Problem: a.Problem, MadeAlone: a.MadeAlone, LoadBalancers: a.LoadBalancers}
	for _, lag := range a.Lags {
		described.Lags = append(described.Lags, &controllerv1.BucketLag{Machine: lag.Machine, Generation: lag.Generation, Silent: lag.Silent})
	}
	return described
}

func describeBuckets(b *brain.BucketsView) *controllerv1.Buckets {
	if b == nil {
		return nil
	}
	described := &controllerv1.Buckets{
		Count: uint32(b.Count), Generation: b.Generation, GenerationAcknowledged: b.Acknowledged,
		Moving: uint32(b.Moving), Waiting: uint32(b.Waiting), MoveAgeMax: durationpb.New(b.MoveAgeMax),
	}
	for _, unknown := range b.Unknown {
		described.Unknown = append(described.Unknown, unknown.String())
	}
	for _, use := range b.Backends {
		described.Backends = append(described.Backends, &controllerv1.BucketUse{
			Backend: use.Backend, Owned: uint32(use.Owned), Next: uint32(use.Next), Earlier: uint32(use.Earlier),
		})
	}
	described.Agreement = describeAgreement(b.Agreement)
	for _, m := range b.Moves {
		move := &controllerv1.BucketMove{From: m.From, To: m.To, Buckets: uint32(m.Buckets), Moved: m.Moved, Since: Timestamp(m.Since)}
		if !m.CountedAt.IsZero() {
			move.Connections, move.CountedAt = &m.Connections, Timestamp(m.CountedAt)
		}
		described.Moves = append(described.Moves, move)
	}
	return described
}

func describeRoute(r brain.RouteView) *controllerv1.Route {
	described := &controllerv1.Route{
		Prefix: r.Prefix.String(), NextHop: text(r.NextHop), Announced: r.Announced, GracefulShutdown: r.Announced && r.GracefulShutdown,
		Reason: r.Reason, Since: Timestamp(r.Since), Services: r.Services,
	}
	for _, c := range r.Communities {
		described.Communities = append(described.Communities, c.String())
	}
	for _, c := range r.LargeCommunities {
		described.Communities = append(described.Communities, c.String())
	}
	return described
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
