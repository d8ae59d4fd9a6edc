package config

// Prints the set-up of a backend without an agent: its kernel decapsulates.

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/guideway/guideway/controller/config"
)

// guePort is where GUE tunnels end, as load balancers send them.
const guePort = 6080

// The longest packets of most clients, and the bytes of headers.
const (
	clientsMTU                   = 1500
	ip4Bytes, ip6Bytes           = 20, 40
	tcpBytes                     = 20
	greBytes, udpBytes, gueBytes = 4, 8, 4
	// With the longest options (docs/formats.md).
	geneveBytesMax = 8 + 60
)

// plainTunnels is what the kernel opens for one backend.
type plainTunnels struct {
	address netip.Addr
	// Each once: of services that have the backend. None: frames are addressed to it.
	encaps []config.Encap
	vips   []netip.Prefix
	// What the network between load balancers and backends carries.
	mtu int
}

// newPlainTunnels, or why the backend requires an agent.
func newPlainTunnels(c *config.Config, backend *config.Backend, vips []netip.Prefix) (*plainTunnels, error) {
	p := &plainTunnels{address: backend.Address, vips: vips, mtu: cmp.Or(c.Tunnel.MTU, clientsMTU)}
	for _, service := range c.Services {
		if !slices.ContainsFunc(service.Members, func(m config.Member) bool { return m.Backend.Name == backend.Name }) {
			continue
		}
		why := ""
		switch {
		case service.Mode == config.ModeStateless:
			why = "is stateless, whose packets other agents may have to take"
		case service.SecondChance:
			why = "has second_chance, by which packets go from agent to agent"
		case service.Encap == config.EncapGeneve:
			why = "has encap: geneve, whose options the kernel does not understand (gre, ipip and gue it opens)"
		}
		if why != "" {
			return nil, fmt.Errorf("backend %s requires an agent: service %s %s: omit --plain", backend.Name, service.Name, why)
		}
		if service.Encap != config.EncapL2 && !slices.Contains(p.encaps, service.Encap) {
			p.encaps = append(p.encaps, service.Encap)
		}
	}
	return p, nil
}

// addressedAlone are backends to which no service opens a tunnel.
func addressedAlone(c *config.Config, backend *config.Backend) bool {
	return !slices.ContainsFunc(c.Services, func(service config.Service) bool {
		isMember := slices.ContainsFunc(service.Members, func(m config.Member) bool { return m.Backend.Name == backend.Name })
		return isMember && service.Encap != config.EncapL2
	})
}

// device of the kernel that opens tunnels of one kind.
type device struct{ name, kind string }

// devices that the encapsulations take. GUE's packets are handed on as if they had come
// in IP in IP.
func (p *plainTunnels) devices() (list []device) {
	is4 := p.address.Is4()
	if slices.Contains(p.encaps, config.EncapGRE) {
		if is4 {
			list = append(list, device{"gw-gre", "gre"})
		} else {
			list = append(list, device{"gw-gre", "ip6gre encaplimit none"})
		}
	}
	if !slices.Contains(p.encaps, config.EncapIPIP) && !slices.Contains(p.encaps, config.EncapGUE) {
		return list
	}
	if !is4 {
		return append(list, device{"gw-ip6tnl", "ip6tnl mode any encaplimit none"})
	}
	if slices.ContainsFunc(p.vips, func(vip netip.Prefix) bool { return vip.Addr().Is4() }) {
		list = append(list, device{"gw-ipip", "ipip"})
	}
	if slices.ContainsFunc(p.vips, func(vip netip.Prefix) bool { return vip.Addr().Is6() }) {
		list = append(list, device{"gw-sit", "sit"})
	}
	return list
}

func (p *plainTunnels) print(sources []string, script *setupScript) {
	if len(p.encaps) == 0 {
		script.line("# Clients' packets come as they are (encap: l2): there is no tunnel to open.")
		return
	}
	script.line("# The ends of the tunnels: the kernel's own devices.")
	settings := "sysctl -w net.ipv4.conf.all.rp_filter=0"
	for _, d := range p.devices() {
		script.line("ip link show %s > /dev/null 2>&1 || ip link add %s type %s local %s", d.name, d.name, d.kind, p.address)
		script.line("ip link set %s up", d.name)
		script.undo("ip link del %s", d.name)
		settings += fmt.Sprintf(" net.ipv4.conf.%s.rp_filter=0", d.name)
	}
	if slices.Contains(p.encaps, config.EncapGUE) {
		family := ""
		if p.address.Is6() {
			family = "-6 "
		}
		script.line("modprobe fou")
		script.line("ip %sfou show | grep -q 'port %d ' || ip %sfou add port %d gue", family, guePort, family, guePort)
		script.undo("ip %sfou del port %d", family, guePort)
	}
	script.line("# Clients' packets come by these devices, and answers leave by another.")
	script.line("%s", settings)
	p.printRules(sources, script)
}

// printRules: the devices open tunnels of any source, and what comes out of them has to be
// shorter than what the network carries.
func (p *plainTunnels) printRules(sources []string, script *setupScript) {
	own := slices.DeleteFunc(slices.Clone(sources), func(source string) bool { return strings.Contains(source, ":") != p.address.Is6() })
	from := fmt.Sprintf("ip saddr != { %s }", strings.Join(own, ", "))
	if p.address.Is6() {
		from = "ip6 saddr != { " + strings.Join(own, ", ") + " }"
	}
	script.line("# Tunnels of load balancers alone are opened. Answers to SYNs ask clients for segments that")
	script.line("# fit the tunnel in a network of %d bytes; `tunnel.mtu` of the config says if it carries more.", p.mtu)
	script.rules("'END'", func() {
		script.line("\tset protocols { type inet_proto; elements = { gre, ipip, ipv6 } }")
		script.line("\tchain input {")
		script.line("\t\ttype filter hook input priority -10;")
		script.line("\t\tmeta l4proto @protocols %s drop", from)
		script.line("\t\tudp dport %d %s drop", guePort, from)
		script.line("\t}")
		if p.mtu < clientsMTU+p.overhead() {
			printMSS(script, p.vips, func(headers int) string { return strconv.Itoa(p.mtu - p.overhead() - headers) })
		}
	})
}

// printMSS lowers what SYN/ACKs of VIPs announce, by the bytes of a segment's own headers.
func printMSS(script *setupScript, vips []netip.Prefix, largest func(headers int) string) {
	script.line("\tchain output {")
	script.line("\t\ttype filter hook output priority 10;")
	for _, family := range []struct {
		name  string
		bytes int
	}{{"ip", ip4Bytes}, {"ip6", ip6Bytes}} {
		var of []string
		for _, vip := range vips {
			if vip.Addr().Is4() == (family.name == "ip") {
				of = append(of, strings.TrimSuffix(vip.String(), fmt.Sprintf("/%d", vip.Addr().BitLen())))
			}
		}
		if len(of) > 0 {
			mss := largest(family.bytes + tcpBytes)
			script.line("\t\t%s saddr { %s } tcp flags & (syn | rst) == syn tcp option maxseg size > %s tcp option maxseg size set %s",
				family.name, strings.Join(of, ", "), mss, mss)
		}
	}
	script.line("\t}")
}

// overhead of the largest tunnel.
func (p *plainTunnels) overhead() int {
	outer, largest := ip4Bytes, 0
	if p.address.Is6() {
		outer = ip6Bytes
	}
	for _, encap := range p.encaps {
		switch encap {
		case config.EncapGRE:
			largest = max(largest, outer+greBytes)
		case config.EncapGUE:
			largest = max(largest, outer+udpBytes+gueBytes)
		default:
			largest = max(largest, outer)
		}
	}
	return largest
}
