package lab

import (
	"context"
	"fmt"
	"net/netip"
)

// Host is somebody out there whom a scenario adds to a lab: it floods, or
// tunnels packets to load balancers. It has an address of its own in each
// family, and networks from which it may send, too.
type Host struct {
	lab  *Lab
	node node
}

// AddHost number 1 to 200. It goes with the lab.
func (lab *Lab) AddHost(ctx context.Context, number int) (*Host, error) {
	if number < 1 || number > 200 {
		return nil, fmt.Errorf("host %d: give 1 to 200", number)
	}
	n := fabricNode(namespacePrefix(lab.state.Options.Name), "host", 40, number, defaultFabricMTU)
	host := &Host{lab: lab, node: n}
	if err := host.build(ctx); err != nil {
		return nil, fmt.Errorf("add %s: %w", n.Name, err)
	}
	return host, nil
}

func (h *Host) build(ctx context.Context) error {
	router := h.lab.layout.Router
	if err := run(ctx, "", "ip", "netns", "add", h.node.Namespace); err != nil {
		return err
	}
	lines := append([]string{linkLine(h.node)}, bringUp(h.node.Port, h.node.Gateways)...)
	for family, network := range h.Networks() {
		lines = append(lines, fmt.Sprintf("route add %s via %s", network, h.node.address(family)))
	}
	if err := ipBatch(ctx, router, lines); err != nil {
		return err
	}
	if err := computeChecksums(ctx, router, h.node.Port); err != nil {
		return err
	}
	if err := setUpNode(ctx, h.node); err != nil {
		return err
	}
	// Answers to what it sends from there end here.
	lines = nil
	for _, network := range h.Networks() {
		lines = append(lines, "route add blackhole "+network.String())
	}
	return ipBatch(ctx, h.node.Namespace, lines)
}

// Namespace that it lives in.
func (h *Host) Namespace() string { return h.node.Namespace }

// Addresses of its own, IPv4 then IPv6.
func (h *Host) Addresses() []netip.Addr {
	return []netip.Addr{h.node.address(0), h.node.address(1)}
}

// Networks behind it, IPv4 then IPv6: nobody lives there.
func (h *Host) Networks() []netip.Prefix {
	own := h.node.address(0).As4()
	number := int(own[2])
	return prefixes(fmt.Sprintf("10.41.%d.0/24", number), fmt.Sprintf("2001:db8:41:%d::/64", number))
}
