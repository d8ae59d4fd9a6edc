package compile

import (
	"net/netip"

	"github.com/guideway/guideway/controller/config"
)

// PeerTarget is one way to ask a peer whether its forwarder forwards: an echo
// request to a VIP, inside a tunnel from this machine to that one. Another
// cluster is asked alike, as packets are spilled to it.
type PeerTarget struct {
	// Of a cluster: its prefix.
	Peer string
	// A cluster that packets are spilled to.
	Spill bool
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
		t.Problem = "no service here has a VIP of a family that machine.addresses has, so no echo request can be sent"
	}
}

// SpillTargets lists a target for each prefix that services spill to, in order
// of the config: the suffix there of the first VIP that would be spilled to it.
func SpillTargets(c *config.Config) []PeerTarget {
	var targets []PeerTarget
	known := map[netip.Prefix]bool{}
	for _, service := range c.ServicesHere() {
		for _, spill := range service.Spill {
			target, ok := spillTarget(c, &service, spill.Prefix)
			if ok && !known[spill.Prefix] {
				known[spill.Prefix] = true
				targets = append(targets, target)
			}
		}
	}
	return targets
}

func spillTarget(c *config.Config, service *config.Service, prefix netip.Prefix) (PeerTarget, bool) {
	from, ok := c.Machine.Address(prefix.Addr())
	if !ok {
		return PeerTarget{}, false
	}
	for _, vip := range service.VIPs {
		addresses := []netip.Addr{vip.Address}
		if vip.PrefixGroup != "" {
			addresses = inGroup(c, vip)
		}
		for _, address := range addresses {
			if address.Is4() == prefix.Addr().Is4() && !prefix.Contains(address) {
				return PeerTarget{
					Peer: prefix.String(), Spill: true, From: from, To: sameSuffix(prefix, address), Source: from, VIP: address,
				}, true
			}
		}
	}
	return PeerTarget{}, false
}

// sameSuffix is the address in prefix whose other bits are those of address.
func sameSuffix(prefix netip.Prefix, address netip.Addr) netip.Addr {
	bytes, network := address.AsSlice(), prefix.Masked().Addr().AsSlice()
	for i := range bytes {
		ofPrefix := min(max(prefix.Bits()-8*i, 0), 8)
		bytes[i] = network[i] | bytes[i]&byte(0xff>>ofPrefix)
	}
	there, _ := netip.AddrFromSlice(bytes)
	return there
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
				addresses = append(addresses, config.WithSuffix(prefix, vip.Suffix))
			}
		}
	}
	return addresses
}
