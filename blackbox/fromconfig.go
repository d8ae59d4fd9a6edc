package blackbox

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/guideway/guideway/controller/check"
	"github.com/guideway/guideway/controller/config"
)

// Load the VIPs of a config's services. What cannot be tried is named, and why.
// The cluster's secret and the routers' passwords are not needed, and may be
// absent or unreadable here.
func Load(files ...string) (targets []Target, left []string, err error) {
	sources, err := config.Read(files...)
	if err != nil {
		return nil, nil, err
	}
	c, err := config.Reader{Machine: config.HostName(), AnyMachine: true, ReadFile: readUnlessSecret}.Parse(sources)
	if err != nil {
		return nil, nil, err
	}
	targets, left = targetsOf(c)
	return targets, left, nil
}

// standIn for a secret or password that this machine does not have: the prober
// tunnels nothing and speaks to no router. Where it stands for an authority's
// certificates, it is refused as none.
const standIn = "stands for a file that is not here"

func readUnlessSecret(path string) ([]byte, fs.FileMode, error) {
	data, mode, err := config.ReadFromDisk(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return []byte(standIn), 0o600, nil
	}
	return data, mode, err
}

// targetsOf every service: each port of each VIP, by the health check of its
// pools that names the port, else by a TCP connection.
func targetsOf(c *config.Config) (targets []Target, left []string) {
	for _, service := range c.Services {
		probes := probesOf(c, service.Pools)
		for _, vip := range service.VIPs {
			for _, address := range addressesOf(c, vip) {
				found, missing := vipTargets(vip, address, probes)
				for _, target := range found {
					target.Service = service.Name
					targets = append(targets, target)
				}
				for _, what := range missing {
					left = append(left, fmt.Sprintf("service %s, %s", service.Name, what))
				}
			}
		}
	}
	return targets, left
}

// probe of a pool, as it can be directed to a VIP.
type probe struct {
	scheme, protocol string
	port             uint16
	path             string
	check            check.Check
}

// probesOf the pools and those within them, in order of the config.
func probesOf(c *config.Config, pools []string) (probes []probe) {
	for _, name := range pools {
		pool := c.PoolNamed(name)
		for _, one := range pool.HealthChecks {
			if p, has := probeOf(c.HealthCheckNamed(one).Check); has {
				probes = append(probes, p)
			}
		}
		probes = append(probes, probesOf(c, pool.Pools)...)
	}
	return probes
}

// probeOf a check; false: it has no port (ICMP).
func probeOf(one check.Check) (p probe, has bool) {
	switch kind := one.(type) {
	case check.HTTP:
		return probe{"http", "tcp", kind.Port, kind.Path, one}, true
	case check.HTTPS:
		return probe{"https", "tcp", kind.Port, kind.Path, one}, true
	case check.TCP:
		return probe{"tcp", "tcp", kind.Port, "", one}, true
	case check.TLS:
		return probe{"tls", "tcp", kind.Port, "", one}, true
	case check.GRPC:
		return probe{"grpc", "tcp", kind.Port, "", one}, true
	case check.DNS:
		return probe{"dns", kind.Network, kind.Port, "/" + strings.TrimSuffix(kind.Name, "."), one}, true
	case check.UDP:
		return probe{"udp", "udp", kind.Port, "", one}, true
	}
	return probe{}, false
}

// addressesOf a VIP in the cluster's own prefixes.
func addressesOf(c *config.Config, vip config.VIP) (addresses []netip.Addr) {
	if vip.PrefixGroup == "" {
		return []netip.Addr{vip.Address}
	}
	for _, group := range c.PrefixGroups {
		if group.Name != vip.PrefixGroup {
			continue
		}
		for _, prefix := range group.Prefixes {
			if prefix.Addr().Is4() == vip.Suffix.Is4() && isOwn(c, prefix) {
				addresses = append(addresses, withSuffix(prefix.Addr(), vip.Suffix))
			}
		}
	}
	return addresses
}

func isOwn(c *config.Config, prefix netip.Prefix) bool {
	for _, own := range c.Cluster.Prefixes {
		if own.Overlaps(prefix) {
			return true
		}
	}
	return len(c.Cluster.Prefixes) == 0
}

// withSuffix: bits that the prefix leaves are the suffix's.
func withSuffix(prefix, suffix netip.Addr) netip.Addr {
	upper, lower := prefix.AsSlice(), suffix.AsSlice()
	for i := range upper {
		upper[i] |= lower[i]
	}
	joined, _ := netip.AddrFromSlice(upper) // it has the length of an address
	return joined
}

// vipTargets of one address; each protocol apart.
func vipTargets(vip config.VIP, address netip.Addr, probes []probe) (targets []Target, left []string) {
	for _, protocol := range []string{"tcp", "udp"} {
		if vip.Protocol != config.ProtocolAny && string(vip.Protocol) != protocol {
			continue
		}
		for _, ports := range portsOf(vip) {
			fitting := fittingProbes(probes, protocol, ports)
			if len(fitting) == 0 && protocol == "tcp" && ports.First == ports.Last {
				fitting = []probe{{"tcp", "tcp", ports.First, "", check.TCP{Port: ports.First}}}
			}
			if len(fitting) == 0 {
				left = append(left, fmt.Sprintf("%s, %s %s: no health check of its pools says how it is tried: add one, or give it as an argument", address, protocol, portsText(ports)))
			}
			for _, one := range fitting {
				targets = append(targets, one.at(address))
			}
		}
	}
	return targets, left
}

func portsOf(vip config.VIP) []config.PortRange {
	if len(vip.Ports) == 0 {
		return []config.PortRange{{First: 1, Last: 65535}}
	}
	return vip.Ports
}

func portsText(ports config.PortRange) string {
	switch {
	case ports.First == ports.Last:
		return fmt.Sprintf("port %d", ports.First)
	case ports.First == 1 && ports.Last == 65535:
		return "all ports"
	}
	return fmt.Sprintf("ports %d to %d", ports.First, ports.Last)
}

// fittingProbes: the first for each port.
func fittingProbes(probes []probe, protocol string, ports config.PortRange) (fitting []probe) {
	seen := map[uint16]bool{}
	for _, one := range probes {
		if one.protocol == protocol && ports.First <= one.port && one.port <= ports.Last && !seen[one.port] {
			seen[one.port] = true
			fitting = append(fitting, one)
		}
	}
	return fitting
}

func (p probe) at(address netip.Addr) Target {
	return Target{
		Name:    p.scheme + "://" + net.JoinHostPort(address.String(), strconv.Itoa(int(p.port))) + p.path,
		Address: address, Port: p.port, Protocol: p.protocol, Check: p.check,
	}
}
