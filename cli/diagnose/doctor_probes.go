package diagnose

// Checks what prevents health checks through tunnels from leaving this machine, or their
// answers from being accepted.

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// VIPs that the kernel is asked about at most: what drops answers rarely depends on
// the VIP.
const probedVIPsMax = 16

// probes asks the kernel, for each VIP, what it would do with an answer from it.
func (p *diagnosis) probes(ctx context.Context) {
	device := p.status.GetProbeDevice()
	if device == nil || p.running == nil {
		return
	}
	if device.Problem != "" {
		p.add(gradeFail, "probes", "health checks through the tunnels cannot be sent by %s: %s", device.Name, device.Problem)
		p.follows(p.linkDown(), "")
		return
	}
	p.probePorts()
	well := true
	vips := addressVIPs(p.running)
	for _, vip := range vips[:min(len(vips), probedVIPsMax)] {
		well = p.probeAnswers(ctx, vip) && well
	}
	if p.noFirewall(ctx) && well {
		p.add(gradeOK, "probes", "leave by %s, %d sent; answers from %d VIPs are taken", device.Name, device.Packets["sent"], min(len(vips), probedVIPsMax))
	}
}

// probeAnswers is true if an answer from the VIP is taken on some interface.
func (p *diagnosis) probeAnswers(ctx context.Context, vip netip.Addr) bool {
	own, ok := sameFamily(p.running.GetMachine().GetAddresses(), vip)
	ports := p.running.GetProbing().GetAssigned()
	if !ok || len(ports) == 0 {
		return true // not probed
	}
	var failures []error
	for _, d := range p.status.GetDevices() {
		err := p.host.accepts(ctx, netip.AddrPortFrom(own, uint16(ports[0].GetPort())), vip, d.Interface)
		if err == nil {
			return true
		}
		failures = append(failures, fmt.Errorf("on %s: %w", d.Interface, err))
	}
	if len(failures) > 0 {
		p.add(gradeFail, "probes", "the kernel drops answers from %s to health checks through the tunnel (%v): is the VIP an address of this machine (`ip addr`), or is the rule 26488 missing (`ip rule`) where rp_filter is on?", vip, errors.Join(failures...))
	}
	return len(failures) == 0
}

// probePorts warns where other connections may have the ports of probes.
func (p *diagnosis) probePorts() {
	first, last, err := p.host.localPorts()
	reserved := p.running.GetProbing().GetPorts()
	if err == nil && first <= int(reserved.GetLast()) && last >= int(reserved.GetFirst()) {
		p.add(gradeWarn, "probes", "machine.probe_ports (%d-%d) overlaps net.ipv4.ip_local_port_range (%d-%d): a connection of another program may have a probe's port, which then cannot be sent", reserved.GetFirst(), reserved.GetLast(), first, last)
	}
}

// addressVIPs of a plan, each once, in order.
func addressVIPs(plan *planv1.Plan) []netip.Addr {
	var vips []netip.Addr
	for _, service := range plan.GetServices() {
		for _, vip := range service.GetVips() {
			if address, err := netip.ParseAddr(vip.GetAddress()); err == nil {
				vips = append(vips, address)
			}
		}
	}
	slices.SortFunc(vips, netip.Addr.Compare)
	return slices.Compact(vips)
}

func sameFamily(addresses []string, as netip.Addr) (netip.Addr, bool) {
	for _, text := range addresses {
		if address, err := netip.ParseAddr(text); err == nil && address.Is4() == as.Is4() {
			return address, true
		}
	}
	return netip.Addr{}, false
}

// accepts asks the kernel what it does with a packet that comes in, source
// validation (rp_filter) included.
func (thisHost) accepts(ctx context.Context, to netip.AddrPort, from netip.Addr, device string) error {
	out, err := exec.CommandContext(ctx, "ip", "route", "get", to.Addr().String(), "from", from.String(), "iif", device,
		"ipproto", "tcp", "sport", "80", "dport", strconv.Itoa(int(to.Port()))).CombinedOutput()
	if err != nil {
		return errors.New(strings.TrimPrefix(strings.TrimSpace(string(out)), "RTNETLINK answers: "))
	}
	if !strings.HasPrefix(strings.TrimSpace(string(out)), "local ") {
		return fmt.Errorf("%s is not an address of this machine (machine.addresses)", to.Addr())
	}
	return nil
}

// localPorts is the range that the kernel chooses ports from.
func (thisHost) localPorts() (first, last int, err error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return 0, 0, err
	}
	_, err = fmt.Sscan(string(text), &first, &last)
	return first, last, err
}
