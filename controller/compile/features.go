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
	FeatureEncapIPIP        = "encap-ipip"
	FeatureEncapGUE         = "encap-gue"
	FeatureEncapGeneve      = "encap-geneve"
	FeatureFragments        = "fragments"
	FeatureSpill            = "spill"
	FeatureEncapsulators    = "encapsulators"
	FeatureUDP6Checksum     = "udp6-checksum"
	FeatureSourcePrefix     = "source-prefix"
	FeatureSteeringSoftware = "steering-software"
	FeaturePathMTULearn     = "path-mtu-learn"
)

var encapFeatures = map[planv1.Encap]string{
	planv1.Encap_ENCAP_IPIP:   FeatureEncapIPIP,
	planv1.Encap_ENCAP_GUE:    FeatureEncapGUE,
	planv1.Encap_ENCAP_GENEVE: FeatureEncapGeneve,
}

// requires names what the plan uses, sorted.
func requires(plan *planv1.Plan) []string {
	used := map[string]bool{
		FeatureGroups:           len(plan.GetGroups()) > 0,
		FeatureEncapsulators:    len(plan.GetEncapsulators()) > 0,
		FeatureUDP6Checksum:     plan.GetTunnel().GetUdp6Checksum(),
		FeatureSourcePrefix:     plan.GetTunnel().GetSourcePrefix() != "",
		FeaturePathMTULearn:     plan.GetPathMtu() != nil,
		FeatureSteeringSoftware: plan.GetForwarder().GetSteering() == planv1.Steering_STEERING_SOFTWARE,
	}
	for _, service := range plan.GetServices() {
		used[encapFeatures[service.GetEncap()]] = true
		used[FeatureStateless] = used[FeatureStateless] || service.GetMode() == planv1.Mode_MODE_STATELESS
		used[FeatureFragments] = used[FeatureFragments] || service.GetFragments() == planv1.Fragments_FRAGMENTS_ON
		used[FeatureSpill] = used[FeatureSpill] || len(service.GetSpill()) > 0
	}
	delete(used, "") // an encapsulation that every forwarder knows
	maps.DeleteFunc(used, func(_ string, isUsed bool) bool { return !isUsed })
	return slices.Sorted(maps.Keys(used))
}
