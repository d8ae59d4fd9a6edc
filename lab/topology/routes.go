package topology

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Routes are the next hops of each VIP in the router's kernel.
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
	inside := func(prefix netip.Prefix) bool { return prefix.Contains(address) }
	return address, ok && ones == bits && slices.ContainsFunc([]netip.Prefix{VIPPrefix4, VIPPrefix6, OtherPrefix4, OtherPrefix6}, inside)
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

// Router gives access to the router's kernel.
type Router struct {
	handle    *netlink.Handle
	namespace netns.NsHandle
}

// OpenRouter opens the router of a lab; Close it afterwards.
func (network Network) OpenRouter() (*Router, error) {
	namespace, err := netns.GetFromName(network.Router)
	if err != nil {
		return nil, fmt.Errorf("open router's namespace: %w", err)
	}
	handle, err := netlink.NewHandleAt(namespace)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open router's netlink: %w", err), namespace.Close())
	}
	return &Router{handle: handle, namespace: namespace}, nil
}

// Close the router's handles.
func (r *Router) Close() {
	r.handle.Close()
	_ = r.namespace.Close()
}

// Routes of all VIPs now.
func (r *Router) Routes() (Routes, error) { return readRoutes(r.handle) }

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
	updates := make(chan netlink.RouteUpdate, 1024)
	done := make(chan struct{})
	defer close(done)
	options := netlink.RouteSubscribeOptions{Namespace: &r.namespace}
	if err := netlink.RouteSubscribeWithOptions(updates, done, options); err != nil {
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
