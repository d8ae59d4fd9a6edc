package topology

import (
	"context"
	"fmt"
	"net/netip"
)

// Host is a further machine that a scenario adds to a lab: it floods, or
// tunnels packets to load balancers. It has an address of its own in each
// family, and networks from which it may send, too.
type Host struct {
	network Network
	// Node that it is.
	Node Node
	// cable's namespace, between it and the router; empty: they are linked.
	cable string
}

// AddHost number 1 to 200. It goes with the lab.
func (network Network) AddHost(ctx context.Context, number int) (*Host, error) {
	if number < 1 || number > 200 {
		return nil, fmt.Errorf("host %d: give 1 to 200", number)
	}
	n := fabricNode(NamespacePrefix(network.Instance), "host", 40, number, defaultFabricMTU)
	host := &Host{network: network, Node: n}
	if err := host.build(ctx); err != nil {
		return nil, fmt.Errorf("add %s: %w", n.Name, err)
	}
	return host, nil
}

func (h *Host) build(ctx context.Context) error {
	router := h.network.Router
	if err := Run(ctx, "", "ip", "netns", "add", h.Node.Namespace); err != nil {
		return err
	}
	lines := append([]string{linkLine(h.Node)}, bringUp(h.Node.Port, h.Node.Gateways)...)
	for family, network := range h.Networks() {
		lines = append(lines, fmt.Sprintf("route add %s via %s", network, h.Node.Address(family)))
	}
	if err := IPBatch(ctx, router, lines); err != nil {
		return err
	}
	if err := h.network.computeChecksums(ctx, router, h.Node.Port); err != nil {
		return err
	}
	if err := h.network.setUpNode(ctx, h.Node); err != nil {
		return err
	}
	// Answers to what it sends from there end here.
	lines = nil
	for _, network := range h.Networks() {
		lines = append(lines, "route add blackhole "+network.String())
	}
	return IPBatch(ctx, h.Node.Namespace, lines)
}

// Cut the link to the router: its ends are two interfaces of a namespace that is
// returned, the router's first. Nothing passes but what is passed there. Packets are
// as long as clients' from then on.
func (h *Host) Cut(ctx context.Context) (namespace string, interfaces [2]string, err error) {
	namespace, interfaces = h.Node.Namespace+"-cable", [2]string{"router", "host"}
	if err := Run(ctx, "", "ip", "netns", "add", namespace); err != nil {
		return "", interfaces, err
	}
	h.cable = namespace
	h.Node.MTU = clientMTU
	for _, step := range []struct {
		namespace string
		lines     []string
	}{
		{h.Node.Namespace, []string{fmt.Sprintf("link set eth0 name %s netns %s", interfaces[0], namespace)}},
		{namespace, []string{
			fmt.Sprintf("link add %s mtu %d type veth peer name eth0 mtu %d netns %s", interfaces[1], h.Node.MTU, h.Node.MTU, h.Node.Namespace),
			fmt.Sprintf("link set %s up", interfaces[0]), fmt.Sprintf("link set %s up", interfaces[1]),
		}},
	} {
		if err := IPBatch(ctx, step.namespace, step.lines); err != nil {
			return "", interfaces, err
		}
	}
	return namespace, interfaces, h.network.setUpNode(ctx, h.Node)
}

// Remove the host before the lab goes.
func (h *Host) Remove(ctx context.Context) error {
	if err := Run(ctx, "", "ip", "-n", h.network.Router, "link", "delete", h.Node.Port); err != nil {
		return err
	}
	if h.cable != "" {
		if err := Run(ctx, "", "ip", "netns", "delete", h.cable); err != nil {
			return err
		}
	}
	return Run(ctx, "", "ip", "netns", "delete", h.Node.Namespace)
}

// Namespace that it lives in.
func (h *Host) Namespace() string { return h.Node.Namespace }

// Addresses of its own, IPv4 then IPv6.
func (h *Host) Addresses() []netip.Addr {
	return []netip.Addr{h.Node.Address(0), h.Node.Address(1)}
}

// Networks behind it, IPv4 then IPv6: no host has an address there.
func (h *Host) Networks() []netip.Prefix {
	own := h.Node.Address(0).As4()
	number := int(own[2])
	return prefixes(fmt.Sprintf("10.41.%d.0/24", number), fmt.Sprintf("2001:db8:41:%d::/64", number))
}
