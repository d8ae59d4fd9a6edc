package compile

import (
	"maps"
	"slices"

	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Names of features that a plan may use and an older forwarder may not know.
// They stand in Plan.requires; the forwarder lists those that it knows, under
// the same names, in its status. What every forwarder knows has no name.
const (
	FeatureGroups           = "groups"
	FeatureStateless        = "stateless"
	FeatureBucketMoves      = "bucket-moves"
	FeatureFragments        = "fragments"
	FeatureSpill            = "spill"
	FeatureEncapsulators    = "encapsulators"
	FeatureUDP6Checksum     = "udp6-checksum"
	FeatureSourcePrefix     = "source-prefix"
	FeatureSteeringSoftware = "steering-software"
	FeatureTunnelMTU        = "tunnel-mtu"
	FeatureProbing          = "probing"
	FeatureQUICLB           = "quic-lb"
	FeatureSecondChance     = "second-chance"
	FeatureJoinPorts        = "join-ports"
	FeatureMultipathTCP     = "mptcp"
)

// encapFeature is the name of an encapsulation as a feature; GRE is what every
// forwarder knows.
func encapFeature(encap planv1.Encap) string {
	if encap == planv1.Encap_ENCAP_GRE {
		return ""
	}
	return "encap-" + wordOf(encap)
}

// requires names what the plan uses, sorted.
func requires(plan *planv1.Plan) []string {
	used := map[string]bool{
		FeatureGroups:           len(plan.GetGroups()) > 0,
		FeatureEncapsulators:    len(plan.GetEncapsulators()) > 0,
		FeatureUDP6Checksum:     plan.GetTunnel().GetUdp6Checksum(),
		FeatureSourcePrefix:     plan.GetTunnel().GetSourcePrefix() != "",
		FeatureTunnelMTU:        plan.GetTunnel().GetMtu() != 0,
		FeatureProbing:          plan.GetProbing() != nil,
		FeatureSteeringSoftware: plan.GetForwarder().GetSteering() == planv1.Steering_STEERING_SOFTWARE,
	}
	for _, service := range plan.GetServices() {
		used[encapFeature(service.GetEncap())] = true
		used[FeatureStateless] = used[FeatureStateless] || service.GetMode() == planv1.Mode_MODE_STATELESS
		used[FeatureBucketMoves] = used[FeatureBucketMoves] || len(service.GetBucketMap().GetMoves()) > 0
		used[FeatureFragments] = used[FeatureFragments] || service.GetFragments() == planv1.Fragments_FRAGMENTS_ON
		used[FeatureQUICLB] = used[FeatureQUICLB] || service.GetQuicLb() != nil
		used[FeatureSecondChance] = used[FeatureSecondChance] || service.GetSecondChance() != nil
		used[FeatureJoinPorts] = used[FeatureJoinPorts] || len(service.GetJoinPorts()) > 0
		used[FeatureMultipathTCP] = used[FeatureMultipathTCP] || service.GetMptcp() != nil
		used[FeatureSpill] = used[FeatureSpill] || len(service.GetSpill()) > 0
	}
	delete(used, "") // an encapsulation that every forwarder knows
	maps.DeleteFunc(used, func(_ string, isUsed bool) bool { return !isUsed })
	return slices.Sorted(maps.Keys(used))
}
