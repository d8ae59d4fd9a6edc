package hosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/guideway/guideway/lab/topology"
)

// Keepalived on load balancers, in the place of Guideway: VRRP, health checks, and IPVS with
// direct routing. It serves the web and the echo service over IPv4.
type Keepalived struct {
	// VIPs that are owned and served, of IPv4.
	VIPs []netip.Addr
	// Weights by the backends' names; one of weight 0 drains.
	Weights map[string]uint32
	// Sync: the owner's kernel tells the other one's of its connections (lvs_sync_daemon).
	Sync bool
}

// ipvsSysctls as operators set them beside `mh`: a connection that the kernel does not know is
// selected by hash also in its middle, and one whose server was removed is forgotten at once.
var ipvsSysctls = []string{"ipv4/vs/sloppy_tcp=1", "ipv4/vs/expire_nodest_conn=1"}

// StartKeepalived on a load balancer on which Guideway does not run. The kernel has IPVS.
func (lab *Lab) StartKeepalived(name string, k Keepalived) error {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return err
	}
	if err := errors.Join(topology.SetSysctls(n.Namespace, ipvsSysctls), lab.writeKeepalived(n, k)); err != nil {
		return fmt.Errorf("start keepalived on %s: %w", name, err)
	}
	return lab.start(n, "keepalived", "keepalived", "--dont-fork", "--log-console", "--use-file", lab.path(n, "keepalived.conf"),
		"--pid", lab.path(n, "keepalived.pid"), "--vrrp_pid", lab.path(n, "keepalived-vrrp.pid"), "--checkers_pid", lab.path(n, "keepalived-checkers.pid"))
}

// BootKeepalived starts a killed one as after a reboot, of which the kernel knows nothing: no
// VIP, no service, and no connection. keepalived's own flush would not do: IPVS drops
// connections a moment later, if their servers have not come back until then.
func (lab *Lab) BootKeepalived(ctx context.Context, name string, k Keepalived) error {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return err
	}
	for _, vip := range k.VIPs {
		_ = topology.Run(ctx, "", "ip", "-n", n.Namespace, "address", "del", vip.String()+"/32", "dev", "eth0") // a backup has none
	}
	if err := topology.Inside(n.Namespace, flushIPVS); err != nil {
		return fmt.Errorf("flush IPVS on %s: %w", name, err)
	}
	err = waitFor(ctx, callLimit, "IPVS to forget its connections", func() error {
		count, err := lab.IPVSConnections(name)
		if err == nil && count > 0 {
			err = fmt.Errorf("it has %d", count)
		}
		return err
	})
	if err != nil {
		return err
	}
	return lab.StartKeepalived(name, k)
}

// flushIPVS of the thread's namespace, as `ipvsadm --clear` does.
func flushIPVS() error {
	const flush, version = 17, 1 // IPVS_CMD_FLUSH, IPVS_GENL_VERSION of linux/ip_vs.h
	family, err := netlink.GenlFamilyGet("IPVS")
	if err != nil {
		return err
	}
	request := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	request.AddData(&nl.Genlmsg{Command: flush, Version: version})
	_, err = request.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// ReloadKeepalived of a load balancer by another config, as `systemctl reload` does.
func (lab *Lab) ReloadKeepalived(name string, k Keepalived) error {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return err
	}
	if err := lab.writeKeepalived(n, k); err != nil {
		return err
	}
	return lab.signalKeepalived(name, syscall.SIGHUP)
}

// StopKeepalived of a load balancer as a service manager does.
func (lab *Lab) StopKeepalived(name string) error {
	p, err := lab.running(name, "keepalived")
	if err != nil {
		return fmt.Errorf("stop %w", err)
	}
	if err := lab.signalKeepalived(name, syscall.SIGTERM); err != nil {
		return err
	}
	if !p.endsWithin(stopLimit) {
		return fmt.Errorf("stop keepalived on %s: it still runs after %v", name, stopLimit)
	}
	return nil
}

// signalKeepalived, which tells its own children.
func (lab *Lab) signalKeepalived(name string, signal syscall.Signal) error {
	p, err := lab.running(name, "keepalived")
	if err != nil {
		return fmt.Errorf("signal %w", err)
	}
	return os.NewSyscallError("kill", syscall.Kill(p.Pid, signal))
}

func (lab *Lab) writeKeepalived(n topology.Node, k Keepalived) error {
	return writeWhole(lab.path(n, "keepalived.conf"), []byte(lab.keepalivedConfig(n, k)), 0o644)
}

// keepalivedConfig with the interval of advertisements that vrrpConfig has, and checks that
// find a silent server as quickly as those of sharedConfig do: by three of them, one each 750 ms.
func (lab *Lab) keepalivedConfig(n topology.Node, k Keepalived) string {
	sync, priority := "", 50
	if k.Sync {
		sync = "\tlvs_sync_daemon eth0 vips\n"
	}
	if n.Name == lab.PreferredOwner() {
		priority = 100
	}
	var addresses, servers strings.Builder
	for _, vip := range k.VIPs {
		fmt.Fprintf(&addresses, "\t\t%s/32 dev eth0\n", vip)
		if vip == topology.WebVIPs[0] {
			servers.WriteString(lab.virtualServer(vip, topology.HTTPPort, "HTTP_GET {\n\t\t\turl {\n\t\t\t\tpath /healthz\n\t\t\t\tstatus_code 200\n\t\t\t}", k.Weights))
		} else {
			servers.WriteString(lab.virtualServer(vip, topology.EchoPort, "TCP_CHECK {", k.Weights))
		}
	}
	return fmt.Sprintf(`# Written by guideway-lab for %s.
global_defs {
	router_id %s
	vrrp_version 3
	lvs_flush
%s}
vrrp_instance vips {
	state BACKUP
	interface eth0
	virtual_router_id %d
	priority %d
	advert_int 0.2
	virtual_ipaddress {
%s	}
}
%s`, n.Name, n.Name, sync, keepalivedVRID, priority, addresses.String(), servers.String())
}

// keepalivedVRID is none of Guideway's, which may run beside.
const keepalivedVRID = 100

func (lab *Lab) virtualServer(vip netip.Addr, port int, check string, weights map[string]uint32) string {
	var b strings.Builder
	fmt.Fprintf(&b, `virtual_server %s %d {
	lvs_sched mh
	mh-port
	mh-fallback
	lvs_method DR
	protocol TCP
	delay_loop 0.75
`, vip, port)
	for _, n := range lab.Network.Backends {
		if weight, named := weights[n.Name]; named {
			fmt.Fprintf(&b, `	real_server %s %d {
		weight %d
		%s
			connect_timeout 0.7
			retry 2
			delay_before_retry 0.05
		}
	}
`, n.Address(0), port, weight, check)
		}
	}
	return b.String() + "}\n"
}

// WaitKeepalived until the kernel of a load balancer forwards by this config, to servers that
// are all well, and the VIPs are on its interface, or not.
func (lab *Lab) WaitKeepalived(ctx context.Context, name string, k Keepalived, isOwner bool) error {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return err
	}
	want := slices.Sorted(maps.Values(k.Weights))
	return waitFor(ctx, readyLimit, "keepalived on "+name, func() error {
		if _, err := lab.running(name, "keepalived"); err != nil {
			return err
		}
		for _, vip := range k.VIPs {
			shown, err := topology.Output(ctx, "", "ip", "-n", n.Namespace, "-o", "address", "show", "dev", "eth0", "to", vip.String())
			if err == nil && (shown != "") != isOwner {
				err = fmt.Errorf("it owns %s: %t", vip, !isOwner)
			}
			if err != nil {
				return err
			}
		}
		services, err := ipvsWeights(n)
		if err == nil && len(services) != len(k.VIPs) {
			err = fmt.Errorf("IPVS has %d services, not %d", len(services), len(k.VIPs))
		}
		for _, weights := range services {
			if slices.Sort(weights); !slices.Equal(weights, want) {
				err = fmt.Errorf("a service of IPVS has servers of the weights %v, not %v", weights, want)
			}
		}
		return err
	})
}

// ipvsWeights of the servers of each virtual service, as /proc/net/ip_vs has them:
//
//	TCP  CB00710A:0050 mh mh-fallback,mh-port
//	  -> 0A1E0101:0050      Route   1      0          0
func ipvsWeights(n topology.Node) (services [][]uint32, err error) {
	text, err := readProcNet(n, "ip_vs")
	for line := range strings.Lines(text) {
		switch fields := strings.Fields(line); {
		case strings.HasPrefix(line, "TCP "):
			services = append(services, nil)
		case len(fields) == 6 && fields[0] == "->" && len(services) > 0:
			var weight uint32
			if _, err := fmt.Sscan(fields[3], &weight); err != nil {
				return nil, fmt.Errorf("%q of /proc/net/ip_vs: %w", line, err)
			}
			services[len(services)-1] = append(services[len(services)-1], weight)
		}
	}
	return services, err
}

// IPVSConnections that the kernel of a load balancer knows.
func (lab *Lab) IPVSConnections(name string) (int, error) {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return 0, err
	}
	text, err := readProcNet(n, "ip_vs_conn")
	return max(0, strings.Count(text, "\n")-1), err // the first line has the columns' names
}

func readProcNet(n topology.Node, file string) (text string, err error) {
	err = topology.Inside(n.Namespace, func() error {
		content, err := os.ReadFile("/proc/thread-self/net/" + file)
		text = string(content)
		return err
	})
	return text, err
}
