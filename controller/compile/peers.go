package compile

import (
	"net/netip"

	"github.com/guideway/guideway/controller/config"
)

// PeerTarget is one way to ask a peer whether its forwarder forwards: an echo
// request to a VIP, inside a tunnel from this machine to that one.
type PeerTarget struct {
	Peer string
	// Of the tunnel.
	From, To netip.Addr
	// Of the echo request inside.
	Source, VIP netip.Addr
	// Not empty: the peer cannot be asked, and why.
	Problem string
}

// PeerTargets lists a target for each way to each peer, in order of the
// config: a way is one of its addresses that this machine has one of the same
// family for. A peer without any has one target, with the problem. The VIP is
// one that the peer has too: peers have the same services.
func PeerTargets(c *config.Config) []PeerTarget {
	var targets []PeerTarget
	for _, peer := range c.Peers {
		for _, target := range tunnels(c.Machine, peer) {
			target.echo(c)
			targets = append(targets, target)
		}
	}
	return targets
}

func tunnels(machine config.Machine, peer config.Peer) []PeerTarget {
	var targets []PeerTarget
	for _, to := range peer.Addresses {
		if from, ok := machine.Address(to); ok {
			targets = append(targets, PeerTarget{Peer: peer.Name, From: from, To: to})
		}
	}
	if targets == nil {
		problem := "no address of a family that machine.addresses has: give both machines one of the same family"
		targets = []PeerTarget{{Peer: peer.Name, Problem: problem}}
	}
	return targets
}

// echo prefers the tunnel's family: what then fails is the tunnel.
func (t *PeerTarget) echo(c *config.Config) {
	for _, vip := range vipAddresses(c) {
		source, ok := c.Machine.Address(vip)
		if ok && (!t.VIP.IsValid() || (vip.Is4() == t.To.Is4() && t.VIP.Is4() != t.To.Is4())) {
			t.Source, t.VIP = source, vip
		}
	}
	if !t.VIP.IsValid() && t.Problem == "" {
		t.Problem = "no service here has a VIP of a family that machine.addresses has, so there is nothing to ask for"
	}
}

// vipAddresses names one address for each VIP (for each prefix of its group).
func vipAddresses(c *config.Config) []netip.Addr {
	var addresses []netip.Addr
	for _, service := range c.ServicesHere() {
		for _, vip := range service.VIPs {
			if vip.Address.IsValid() {
				addresses = append(addresses, vip.Address)
			} else {
				addresses = append(addresses, inGroup(c, vip)...)
			}
		}
	}
	return addresses
}

func inGroup(c *config.Config, vip config.VIP) []netip.Addr {
	var addresses []netip.Addr
	for _, group := range c.PrefixGroups {
		if group.Name != vip.PrefixGroup {
			continue
		}
		for _, prefix := range group.Prefixes {
			if prefix.Addr().Is4() == vip.Suffix.Is4() {
				addresses = append(addresses, withSuffix(prefix, vip.Suffix))
			}
		}
	}
	return addresses
}
