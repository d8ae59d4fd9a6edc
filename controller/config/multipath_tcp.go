package config

import (
	"fmt"
	"slices"
)

// checkMultipathTCP looks at what services need whose connections of Multipath TCP go by
// their tokens: a token is a bucket's number, and agents bring it to the backends.
// That the encapsulation is Geneve and that there are agents are rules of all stateless
// services.
func (b *builder) checkMultipathTCP() {
	for i, service := range b.config.Services {
		if !service.MultipathTCP {
			continue
		}
		path := fmt.Sprintf("services[%d].mptcp", i)
		if service.Mode != ModeStateless {
			b.errorf(path, "without join_ports is for stateless services: set `mode: stateless` and `encap: geneve` and run guideway-agent on every backend; or give `join_ports`, like 20000, the first of %d free ports", joinPortCount)
			continue
		}
		if service.Affinity != AffinityFlow {
			b.errorf(path, "goes by keys and tokens of connections, and affinity is %s: set `affinity: flow`, or remove mptcp", service.Affinity)
		}
		if service.QUICLB != nil {
			b.errorf(path, "is for a service of TCP, and quic_lb is given, too: make two services of it with the same pools, one for each protocol")
		}
		b.checkServesTCP(path, service.VIPs)
	}
}

// checkServesTCP on any VIP of a service that has mptcp.
func (b *builder) checkServesTCP(path string, vips []VIP) {
	if !slices.ContainsFunc(vips, func(vip VIP) bool { return vip.Protocol != ProtocolUDP }) {
		b.errorf(path, "is given, and the service has no VIP for TCP: add one, or remove it")
	}
}
