package config

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
)

const (
	// Ports from join_ports on that are the service's.
	joinPortCount = 4096
	// With a quarter of the ports taken, a new backend seldom needs another's.
	joinPortBackendsMax = joinPortCount / 4
)

// JoinPort is a TCP port of a service's VIPs that is one backend's own.
type JoinPort struct {
	Port    uint16
	Backend string
}

// JoinPortsOf all backends of a service, in order of the backends' names. A port
// follows from its backend's name; where another has it, from those of both: the one
// that comes first by name keeps it. So a backend that comes or goes changes the ports
// of few others, of most configs none.
func JoinPortsOf(s *Service) []JoinPort {
	if s.JoinPorts == 0 {
		return nil
	}
	ports := make([]JoinPort, 0, len(s.Members))
	taken := make([]bool, joinPortCount)
	for _, member := range s.Members {
		name := member.Backend.Name
		digest := sha256.Sum256([]byte("guideway join port\x00" + name))
		at := binary.BigEndian.Uint64(digest[:8]) % joinPortCount
		for taken[at] {
			at = (at + 1) % joinPortCount
		}
		taken[at] = true
		ports = append(ports, JoinPort{Port: s.JoinPorts + uint16(at), Backend: name})
	}
	return ports
}

// JoinPortOf a backend of a service; 0: it has none.
func JoinPortOf(s *Service, backend string) uint16 {
	ports := JoinPortsOf(s)
	i := slices.IndexFunc(ports, func(p JoinPort) bool { return p.Backend == backend })
	if i < 0 {
		return 0
	}
	return ports[i].Port
}

// joinPortClaim is what they claim on each of the service's addresses: all of them,
// because any may become a backend's.
func joinPortClaim(s *Service) claim {
	ports := PortRange{First: s.JoinPorts, Last: s.JoinPorts + joinPortCount - 1}
	return claim{protocol: string(ProtocolTCP) + " port", ports: ports}
}

// checkJoinPorts looks at what join ports need beside their own field. Ports that
// something else claims are found where all claims are.
func (b *builder) checkJoinPorts() {
	for i, service := range b.config.Services {
		if service.JoinPorts == 0 {
			continue
		}
		path := fmt.Sprintf("services[%d]", i)
		if n := len(service.Members); n > joinPortBackendsMax {
			b.errorf(path+".mptcp.join_ports", "is given, and the service has %d backends: ports are for %d; spread them over services", n, joinPortBackendsMax)
		}
		for j, vip := range service.VIPs {
			if vip.PrefixGroup != "" {
				b.errorf(fmt.Sprintf("%s.vips[%d].prefix_group", path, j), "is given beside mptcp: backends signal their ports with the VIP's address; give `address` in its place, or remove mptcp")
			}
		}
		b.checkServesTCP(path+".mptcp", service.VIPs)
	}
}
