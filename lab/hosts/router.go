package hosts

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/guideway/guideway/lab/topology"
)

// routing is by what packets to VIPs find a load balancer. On a router it speaks BGP, as an
// operator would set it up for Guideway: BFD, ECMP in both families, and nothing taken but
// VIPs' routes.
type routing interface {
	// daemons by the names of their processes, in the order of their starts.
	daemons() []string
	// start all daemons; they may still be connecting when it returns.
	start() error
	// show are hints of commands that show where packets to VIPs go.
	show() [][2]string
	// reset the session with a load balancer, as an operator of the router would.
	reset(ctx context.Context, n topology.Node) error
}

func (lab *Lab) routing() routing {
	switch lab.state.Options.Router {
	case "frr":
		return frr{lab}
	case topology.NoRouter:
		return vrrp{lab}
	}
	return bird{lab}
}

func routerPrograms(o topology.Options) []string {
	switch o.Router {
	case "frr":
	case topology.NoRouter:
		return nil
	default:
		return []string{"bird", "birdc"}
	}
	programs := []string{"vtysh"}
	for _, daemon := range frrDaemons {
		programs = append(programs, filepath.Join(frrPrograms, daemon))
	}
	return programs
}

// announcing is the part of a load balancer's config by which packets to VIPs find it.
func announcing(network topology.Network, self topology.Node) string {
	if network.Switch {
		return vrrpConfig(network)
	}
	return fmt.Sprintf("bgp: {asn: %d, neighbors: [{address: %s, asn: %d, hold_time: 9s, bfd: {interval: 200ms, multiplier: 5}}]}\n",
		topology.ASNMachines, self.Gateway(0), topology.ASNRouter)
}

// routesComplete: packets to VIPs find all load balancers, as they do while all are well.
func routesComplete(network topology.Network, routes topology.Routes) error {
	if network.Switch {
		return allOwn(network, routes)
	}
	for _, c := range network.Clusters() {
		if err := routes.Complete(c.VIPs(), len(c.LoadBalancers)); err != nil {
			return err
		}
	}
	return nil
}

// router, or switch, as far as processes and files go.
func (lab *Lab) router() topology.Node {
	return topology.Node{Name: lab.Network.RouterName(), Namespace: lab.Network.Router}
}

// routerRoutes in the kernel, by their protocol, and as the router's daemon has them.
func routerRoutes(lab *Lab, protocol, command string) [][2]string {
	return [][2]string{{"the router's routes", fmt.Sprintf("ip -n %s route show proto %s", lab.Network.Router, protocol)}, {"", command}}
}

// RestartRouter stops what speaks BGP on the router as a service manager does, and
// starts it again. Its routes in the kernel are away meanwhile.
func (lab *Lab) RestartRouter() error {
	daemons := lab.routing().daemons()
	for _, daemon := range slices.Backward(daemons) {
		if err := lab.Stop(lab.router().Name, daemon); err != nil {
			return err
		}
	}
	return lab.routing().start()
}

// ResetSession that the router has with a load balancer.
func (lab *Lab) ResetSession(ctx context.Context, name string) error {
	n, err := lab.Network.LoadBalancer(name)
	if err != nil {
		return err
	}
	return lab.routing().reset(ctx, n)
}
