package vrrp

// The gateways: next hops of routes over the interface in the kernel's main table.

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// Of each family; each is sent a probe a second.
	gatewaysMax = 4
	// The election waits while routes are read, a few milliseconds for as many: of more the
	// rest is left.
	routesMax = 4096
)

// gatewaysOn the interface, in order of their addresses.
func gatewaysOn(index int, ipv6 bool) ([]netip.Addr, error) {
	found, err := readGateways(index, ipv6)
	if err != nil {
		return nil, fmt.Errorf("list the routes over interface %d: %w", index, err)
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found, nil
}

func readGateways(index int, ipv6 bool) (found []netip.Addr, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) // which ends a listing that is not read to its end
	// So the kernel leaves out other tables and interfaces, and a full table is not copied.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return nil, err
	}
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, unix.NLM_F_DUMP)
	route := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Table: unix.RT_TABLE_MAIN}}
	if ipv6 {
		route.Family = unix.AF_INET6
	}
	request.AddData(route)
	request.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	if err := unix.Sendto(fd, request.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	buffer := make([]byte, 32<<10)
	for read := 0; read < routesMax && len(found) < gatewaysMax; {
		n, err := unix.Read(fd, buffer)
		if err != nil {
			return nil, err
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			if m.Header.Type != unix.RTM_NEWROUTE {
				return found, errorOf(m)
			}
			read++
			for _, gateway := range gatewaysIn(m.Data[min(len(m.Data), unix.SizeofRtMsg):], index) {
				if gateway.Is6() == ipv6 && !slices.Contains(found, gateway) && len(found) < gatewaysMax {
					found = append(found, gateway)
				}
			}
		}
	}
	return found, nil
}

// errorOf the message that ends a listing; nil: it is complete.
func errorOf(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return nil
	}
	if errno := int32(binary.NativeEndian.Uint32(m.Data)); errno != 0 {
		return unix.Errno(-errno)
	}
	return nil
}

// gatewaysIn the attributes of a route, or of one of its paths, of which some may be over other
// interfaces.
func gatewaysIn(attributes []byte, index int) (gateways []netip.Addr) {
	parsed, _ := nl.ParseRouteAttr(attributes)
	for _, a := range parsed {
		switch a.Attr.Type {
		case unix.RTA_GATEWAY:
			if address, ok := netip.AddrFromSlice(a.Value); ok {
				gateways = append(gateways, address)
			}
		case unix.RTA_MULTIPATH:
			for paths := a.Value; len(paths) >= unix.SizeofRtNexthop; {
				hop := nl.DeserializeRtNexthop(paths)
				end := int(hop.RtNexthop.Len)
				if end < unix.SizeofRtNexthop || end > len(paths) {
					break
				}
				if int(hop.RtNexthop.Ifindex) == index {
					gateways = append(gateways, gatewaysIn(paths[unix.SizeofRtNexthop:end], index)...)
				}
				paths = paths[min(len(paths), (end+3)&^3):]
			}
		}
	}
	return gateways
}
