package topology

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// netem is the kernel's emulator of a network's faults, which few kernels for containers have;
// Debian's do.

// Netem is what happens to the packets that leave by an interface. Shares are 0 to 1.
type Netem struct {
	// Delay of each packet, give or take Jitter, by which packets overtake one another.
	Delay, Jitter time.Duration
	// Reorder is the share of packets that have no delay.
	Reorder float64
	Loss    float64
	// Duplicate is the share of packets that are sent twice.
	Duplicate float64
}

const (
	// netemPackets that an interface holds; more are lost.
	netemPackets = 10_000
	// Attributes that github.com/vishvananda/netlink does not know, as linux/pkt_sched.h has
	// them. The seed is one of Linux 6.7, and of iproute2 6.7; older kernels ignore it.
	netemLatency, netemJitter, netemSeed = 10, 11, 14
)

// SetNetem of an interface. Two interfaces with the same seed do the same to their n-th packet.
func SetNetem(namespace, name string, n Netem, seed uint64) error {
	share := func(s float64) uint32 { return uint32(s * math.MaxUint32) }
	basic := nl.TcNetemQopt{Limit: netemPackets, Loss: share(n.Loss), Duplicate: share(n.Duplicate)}
	if n.Reorder > 0 {
		basic.Gap = 1
	}
	options := nl.NewRtAttr(nl.TCA_OPTIONS, basic.Serialize())
	if n.Reorder > 0 {
		options.AddRtAttr(nl.TCA_NETEM_REORDER, (&nl.TcNetemReorder{Probability: share(n.Reorder)}).Serialize())
	}
	options.AddRtAttr(netemLatency, nl.Uint64Attr(uint64(n.Delay)))
	options.AddRtAttr(netemJitter, nl.Uint64Attr(uint64(n.Jitter)))
	options.AddRtAttr(netemSeed, nl.Uint64Attr(seed))
	err := Inside(namespace, func() error {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		request := nl.NewNetlinkRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
		request.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(link.Index), Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT})
		request.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("netem")))
		request.AddData(options)
		_, err = request.Execute(unix.NETLINK_ROUTE, 0)
		return err
	})
	if err != nil {
		return fmt.Errorf("netem at %s in %s: %w", name, namespace, err)
	}
	return nil
}

// PinNeighbours of a client's link: it and the router know each other's addresses for good,
// until the link goes down. Their questions would take part in what netem does, and come at
// other times on each link.
func (network Network) PinNeighbours(ctx context.Context, n Node, name string) error {
	err := errors.Join(
		pinNeighbour(ctx, n.Namespace, name, n.Gateways, network.Router, n.Port),
		pinNeighbour(ctx, network.Router, n.Port, n.Addresses, n.Namespace, name))
	if err != nil {
		return fmt.Errorf("pin neighbours at %s of %s: %w", name, n.Namespace, err)
	}
	return nil
}

// pinNeighbour of an interface: these addresses are at the link's other end.
func pinNeighbour(ctx context.Context, namespace, name string, addresses []netip.Prefix, otherSpace, otherName string) error {
	var other *net.Interface
	err := Inside(otherSpace, func() (err error) { other, err = net.InterfaceByName(otherName); return err })
	if err != nil {
		return err
	}
	var lines []string
	for _, address := range addresses {
		lines = append(lines, fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", address.Addr(), other.HardwareAddr, name))
	}
	return IPBatch(ctx, namespace, lines)
}
