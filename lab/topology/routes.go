package topology

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Routes are the next hops of each VIP in the router's kernel; without a router, its owner.
type Routes map[netip.Addr][]netip.Addr

// readRoutes of all VIPs; a VIP without a route has no entry.
func readRoutes(handle *netlink.Handle) (Routes, error) {
	found := Routes{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := handle.RouteList(nil, family)
		if err != nil {
			return nil, fmt.Errorf("list routes of the router: %w", err)
		}
		for _, route := range list {
			vip, ok := vipOf(route)
			if !ok {
				continue
			}
			found[vip] = append(found[vip], nextHops(route)...)
			slices.SortFunc(found[vip], netip.Addr.Compare)
		}
	}
	return found, nil
}

// vipOf a host route inside the VIP prefixes.
func vipOf(route netlink.Route) (netip.Addr, bool) {
	if route.Dst == nil {
		return netip.Addr{}, false
	}
	address, ok := netip.AddrFromSlice(route.Dst.IP)
	ones, bits := route.Dst.Mask.Size()
	address = address.Unmap()
	return address, ok && ones == bits && isVIP(address)
}

func isVIP(address netip.Addr) bool {
	inside := func(prefix netip.Prefix) bool { return prefix.Contains(address) }
	return slices.ContainsFunc([]netip.Prefix{VIPPrefix4, VIPPrefix6, OtherPrefix4, OtherPrefix6}, inside)
}

func nextHops(route netlink.Route) []netip.Addr {
	var list []netip.Addr
	if address, ok := netip.AddrFromSlice(route.Gw); ok {
		list = append(list, address.Unmap())
	}
	for _, hop := range route.MultiPath {
		if address, ok := netip.AddrFromSlice(hop.Gw); ok {
			list = append(list, address.Unmap())
		}
	}
	return list
}

// Router gives access to the kernel that chooses a load balancer for packets to VIPs: the
// router's, by its routes, or at a switch the client's, by its neighbour tables.
type Router struct {
	handle    *netlink.Handle
	namespace netns.NsHandle
	// machines at a switch by their hardware addresses; nil: this is a router.
	machines map[string]Node
}

// OpenRouter opens the router of a lab; Close it afterwards.
func (network Network) OpenRouter() (*Router, error) {
	name := network.Router
	var machines map[string]Node
	if network.Switch {
		var err error
		if machines, err = network.machinesByHardwareAddress(); err != nil {
			return nil, err
		}
		name = network.Client.Namespace
	}
	namespace, err := netns.GetFromName(name)
	if err != nil {
		return nil, fmt.Errorf("open router's namespace: %w", err)
	}
	handle, err := netlink.NewHandleAt(namespace)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open router's netlink: %w", err), namespace.Close())
	}
	return &Router{handle: handle, namespace: namespace, machines: machines}, nil
}

func (network Network) machinesByHardwareAddress() (map[string]Node, error) {
	machines := map[string]Node{}
	for _, n := range network.LoadBalancers {
		err := Inside(n.Namespace, func() error {
			link, err := net.InterfaceByName("eth0")
			if err == nil {
				machines[link.HardwareAddr.String()] = n
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("hardware address of %s: %w", n.Name, err)
		}
	}
	return machines, nil
}

// Close the router's handles.
func (r *Router) Close() {
	r.handle.Close()
	_ = r.namespace.Close()
}

// Routes of all VIPs now.
func (r *Router) Routes() (Routes, error) {
	if r.machines == nil {
		return readRoutes(r.handle)
	}
	found := Routes{}
	for family, number := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := r.handle.NeighList(0, number)
		if err != nil {
			return nil, fmt.Errorf("list neighbours of the client: %w", err)
		}
		for _, neighbor := range list {
			if vip, owner, ok := ownerOf(neighbor, r.machines); ok {
				found[vip] = []netip.Addr{owner.Address(family)}
			}
		}
	}
	return found, nil
}

// ownerOf a VIP, if a neighbour is one that is resolved.
func ownerOf(neighbor netlink.Neigh, machines map[string]Node) (vip netip.Addr, owner Node, ok bool) {
	vip, _ = netip.AddrFromSlice(neighbor.IP)
	vip = vip.Unmap()
	owner, known := machines[neighbor.HardwareAddr.String()]
	return vip, owner, known && isVIP(vip) && neighbor.State&(netlink.NUD_INCOMPLETE|netlink.NUD_FAILED) == 0
}

// HopsOf a prefix, by a route of just that length.
func (r *Router) HopsOf(prefix netip.Prefix) ([]netip.Addr, error) {
	family := netlink.FAMILY_V4
	if prefix.Addr().Is6() {
		family = netlink.FAMILY_V6
	}
	list, err := r.handle.RouteList(nil, family)
	if err != nil {
		return nil, fmt.Errorf("list routes of the router: %w", err)
	}
	var hops []netip.Addr
	for _, route := range list {
		if route.Dst != nil && route.Dst.String() == prefix.String() {
			hops = append(hops, nextHops(route)...)
		}
	}
	return hops, nil
}

// Watch calls seen at each change of routes (and once at the beginning) until
// it returns true, and when that was.
func (r *Router) Watch(ctx context.Context, seen func(Routes) bool) (time.Time, error) {
	if r.machines != nil {
		return watch(ctx, r, seen, func(updates chan netlink.NeighUpdate, done chan struct{}) error {
			return netlink.NeighSubscribeAt(r.namespace, updates, done)
		})
	}
	return watch(ctx, r, seen, func(updates chan netlink.RouteUpdate, done chan struct{}) error {
		return netlink.RouteSubscribeAt(r.namespace, updates, done)
	})
}

func watch[Update any](ctx context.Context, r *Router, seen func(Routes) bool, subscribe func(chan Update, chan struct{}) error) (time.Time, error) {
	updates := make(chan Update, 1024)
	done := make(chan struct{})
	defer close(done)
	if err := subscribe(updates, done); err != nil {
		return time.Time{}, fmt.Errorf("watch routes: %w", err)
	}
	at := time.Now()
	for {
		routes, err := r.Routes()
		if err != nil {
			return time.Time{}, err
		}
		if seen(routes) {
			return at, nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("watch routes: %w", ctx.Err())
		case _, open := <-updates:
			if !open {
				return time.Time{}, errors.New("watch routes: netlink closed")
			}
			at = time.Now()
		}
	}
}

// Via reports whether any VIP is routed by this load balancer.
func (r Routes) Via(addresses []netip.Addr) bool {
	for _, hops := range r {
		if slices.ContainsFunc(hops, func(hop netip.Addr) bool { return slices.Contains(addresses, hop) }) {
			return true
		}
	}
	return false
}

// Of these VIPs alone.
func (r Routes) Of(vips []netip.Addr) Routes {
	of := Routes{}
	for _, vip := range vips {
		if hops, known := r[vip]; known {
			of[vip] = hops
		}
	}
	return of
}

// Complete returns which VIP lacks next hops, if any does.
func (r Routes) Complete(vips []netip.Addr, machines int) error {
	for _, vip := range vips {
		if len(r[vip]) != machines {
			return fmt.Errorf("the router has %d next hops for %s, not %d", len(r[vip]), vip, machines)
		}
	}
	return nil
}
