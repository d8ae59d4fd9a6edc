package config

// What a backend without an agent needs: its kernel opens the tunnels.

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/guideway/guideway/controller/config"
)

// guePort is where GUE tunnels end, as load balancers send them.
const guePort = 6080

// plainTunnels is what the kernel opens for one backend.
type plainTunnels struct {
	address netip.Addr
	// Each once: of services that have the backend.
	encaps []config.Encap
	// Of VIPs: whether packets inside are of IPv4, and of IPv6.
	has4, has6 bool
}

// newPlainTunnels, or why the backend takes an agent.
func newPlainTunnels(c *config.Config, backend *config.Backend, vips []netip.Prefix) (*plainTunnels, error) {
	p := &plainTunnels{address: backend.Address}
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
			return nil, fmt.Errorf("the backend %s takes an agent: service %s %s: leave --plain out", backend.Name, service.Name, why)
		}
		if !slices.Contains(p.encaps, service.Encap) {
			p.encaps = append(p.encaps, service.Encap)
		}
	}
	for _, vip := range vips {
		p.has4 = p.has4 || vip.Addr().Is4()
		p.has6 = p.has6 || vip.Addr().Is6()
	}
	return p, nil
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
	if p.has4 {
		list = append(list, device{"gw-ipip", "ipip"})
	}
	if p.has6 {
		list = append(list, device{"gw-sit", "sit"})
	}
	return list
}

func (p *plainTunnels) print(sources []string, line func(string, ...any)) {
	line("# The ends of the tunnels: the kernel's own devices.")
	settings := "sysctl -w net.ipv4.conf.all.rp_filter=0"
	for _, d := range p.devices() {
		line("ip link show %s > /dev/null 2>&1 || ip link add %s type %s local %s", d.name, d.name, d.kind, p.address)
		line("ip link set %s up", d.name)
		settings += fmt.Sprintf(" net.ipv4.conf.%s.rp_filter=0", d.name)
	}
	if slices.Contains(p.encaps, config.EncapGUE) {
		family := ""
		if p.address.Is6() {
			family = "-6 "
		}
		line("modprobe fou")
		line("ip %sfou show | grep -q 'port %d ' || ip %sfou add port %d gue", family, guePort, family, guePort)
	}
	line("# Clients' packets come by these devices, and answers leave by another.")
	line("%s", settings)
	p.printFirewall(sources, line)
	p.printMSS(line)
}

// printFirewall: the devices open tunnels of any source.
func (p *plainTunnels) printFirewall(sources []string, line func(string, ...any)) {
	own := slices.DeleteFunc(slices.Clone(sources), func(source string) bool { return strings.Contains(source, ":") != p.address.Is6() })
	from := fmt.Sprintf("ip saddr != { %s }", strings.Join(own, ", "))
	if p.address.Is6() {
		from = "ip6 saddr != { " + strings.Join(own, ", ") + " }"
	}
	line("# Tunnels of load balancers alone are opened.")
	line("nft -f - <<'END'")
	line("table inet guideway_tunnels")
	line("delete table inet guideway_tunnels")
	line("table inet guideway_tunnels {")
	line("\tset protocols { type inet_proto; elements = { gre, ipip, ipv6 } }")
	line("\tchain input {")
	line("\t\ttype filter hook input priority -10;")
	line("\t\tmeta l4proto @protocols %s drop", from)
	line("\t\tudp dport %d %s drop", guePort, from)
	line("\t}")
	line("}")
	line("END")
}

// printMSS as a comment: the routes are the backend's own.
func (p *plainTunnels) printMSS(line func(string, ...any)) {
	const clients, tcp, ip4, ip6 = 1500, 20, 20, 40
	outer := ip4
	if p.address.Is6() {
		outer = ip6
	}
	largest := 0
	for _, encap := range p.encaps {
		switch encap {
		case config.EncapGRE:
			largest = max(largest, outer+4)
		case config.EncapGUE:
			largest = max(largest, outer+8+4)
		default:
			largest = max(largest, outer)
		}
	}
	line("# Where the fabric's MTU is not at least %d, let clients send less; for each default route:", clients+largest)
	if p.has4 {
		line("#   ip route change default via GATEWAY advmss %d", clients-largest-ip4-tcp)
	}
	if p.has6 {
		line("#   ip -6 route change default via GATEWAY advmss %d", clients-largest-ip6-tcp)
	}
}
