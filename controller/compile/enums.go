package compile

import (
	"github.com/guideway/guideway/controller/config"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// The config's words in the plan's. A test holds that none is missing.
var (
	modes = map[config.Mode]planv1.Mode{
		config.ModeStateful:  planv1.Mode_MODE_STATEFUL,
		config.ModeStateless: planv1.Mode_MODE_STATELESS,
	}
	affinities = map[config.Affinity]planv1.Affinity{
		config.AffinityFlow:   planv1.Affinity_AFFINITY_FLOW,
		config.AffinityClient: planv1.Affinity_AFFINITY_CLIENT,
	}
	encaps = map[config.Encap]planv1.Encap{
		config.EncapGRE:    planv1.Encap_ENCAP_GRE,
		config.EncapIPIP:   planv1.Encap_ENCAP_IPIP,
		config.EncapGUE:    planv1.Encap_ENCAP_GUE,
		config.EncapGeneve: planv1.Encap_ENCAP_GENEVE,
	}
	onDowns = map[config.OnDown]planv1.OnDown{
		config.OnDownMove: planv1.OnDown_ON_DOWN_MOVE,
		config.OnDownKeep: planv1.OnDown_ON_DOWN_KEEP,
	}
	whenNones = map[config.WhenNone]planv1.WhenNone{
		config.WhenNoneWithdraw: planv1.WhenNone_WHEN_NONE_WITHDRAW,
		config.WhenNoneKeep:     planv1.WhenNone_WHEN_NONE_KEEP,
		config.WhenNoneFailOpen: planv1.WhenNone_WHEN_NONE_FAIL_OPEN,
	}
	unmatcheds = map[config.Unmatched]planv1.Unmatched{
		config.UnmatchedDrop: planv1.Unmatched_UNMATCHED_DROP,
		config.UnmatchedPass: planv1.Unmatched_UNMATCHED_PASS,
	}
	protocols = map[config.Protocol]planv1.Protocol{
		config.ProtocolAny: planv1.Protocol_PROTOCOL_ANY,
		config.ProtocolTCP: planv1.Protocol_PROTOCOL_TCP,
		config.ProtocolUDP: planv1.Protocol_PROTOCOL_UDP,
	}
	fragments = map[config.Fragments]planv1.Fragments{
		config.FragmentsAuto: planv1.Fragments_FRAGMENTS_AUTO,
		config.FragmentsOn:   planv1.Fragments_FRAGMENTS_ON,
		config.FragmentsOff:  planv1.Fragments_FRAGMENTS_OFF,
	}
	steerings = map[config.Steering]planv1.Steering{
		config.SteeringRSS:      planv1.Steering_STEERING_RSS,
		config.SteeringSoftware: planv1.Steering_STEERING_SOFTWARE,
	}
	drivers = map[config.Driver]planv1.Driver{
		config.DriverAFXDP:    planv1.Driver_DRIVER_AF_XDP,
		config.DriverAFPacket: planv1.Driver_DRIVER_AF_PACKET,
	}
	kernelCaches = map[config.KernelCache]planv1.KernelCache{
		config.KernelCacheAuto: planv1.KernelCache_KERNEL_CACHE_AUTO,
		config.KernelCacheOn:   planv1.KernelCache_KERNEL_CACHE_ON,
		config.KernelCacheOff:  planv1.KernelCache_KERNEL_CACHE_OFF,
	}
)
