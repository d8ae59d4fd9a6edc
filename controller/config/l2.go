package config

import (
	"fmt"
	"net/netip"
	"slices"
)

// checkL2 refuses what needs an outer header, and backends that would send packets on
// again: the load balancers themselves.
func (b *builder) checkL2() {
	for i, service := range b.config.Services {
		if service.Encap != EncapL2 {
			continue
		}
		path := fmt.Sprintf("services[%d]", i)
		if service.DSCP != nil {
			b.errorf(path+".dscp", "is for tunnels, and encap is l2, which changes nothing in a packet but its TTL: remove it, or take a tunnel")
		}
		for _, member := range service.Members {
			if peer := b.peerAt(member.Backend.Address); peer != "" {
				b.errorf(path+".encap", "is l2, and its backend %s is the load balancer %s, which would send such packets on again: take a tunnel (gre), or let another machine serve", member.Backend.Name, peer)
			}
		}
	}
}

// peerAt that address; "" if there is none.
func (b *builder) peerAt(address netip.Addr) string {
	for _, peer := range b.config.Peers {
		if slices.Contains(peer.Addresses, address) {
			return peer.Name
		}
	}
	return ""
}
