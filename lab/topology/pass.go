package topology

import (
	"context"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// passAll puts an XDP program that passes every frame on the port of each backend
// and each load balancer at the router or the switch, unless interfaces keep their
// offloads.
//
// Trap: what a load balancer's kernel flow cache sends by XDP_TX waits in its veth
// pair until the port receives something else, unless the port has a program, too;
// and so does what agents send whose program is in the driver, as former ones' is.
func passAll(ctx context.Context, network Network) error {
	if network.KeepsOffloads {
		return nil
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "pass", Type: ebpf.XDP, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()},
	})
	if err != nil {
		return fmt.Errorf("load an XDP program that passes every frame: %w", err)
	}
	defer program.Close() // the ports keep it
	for _, n := range slices.Concat(network.LoadBalancers, network.Backends) {
		err := Inside(network.Router, func() error { return attach(program, n.Port) })
		if err != nil {
			return fmt.Errorf("attach an XDP program to the router's port %s: %w", n.Port, err)
		}
		// A port with a program gathers segments (GRO); this router sends on
		// what it receives.
		if err := Run(ctx, "", "ip", "netns", "exec", network.Router, "ethtool", "-K", n.Port, "gro", "off"); err != nil {
			return err
		}
	}
	return nil
}

const xdpPass = 2 // XDP_PASS

// attach a program to a port of the namespace that the thread is in.
func attach(program *ebpf.Program, port string) error {
	link, err := netlink.LinkByName(port)
	if err != nil {
		return err
	}
	return netlink.LinkSetXdpFdWithFlags(link, program.FD(), unix.XDP_FLAGS_DRV_MODE)
}
