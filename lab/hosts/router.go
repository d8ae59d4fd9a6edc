package hosts

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/guideway/guideway/lab/topology"
)

// routing is what speaks BGP on the router, as an operator would set it up for
// Guideway: BFD, ECMP in both families, and nothing taken but VIPs' routes.
type routing interface {
	// daemons by the names of their processes, in the order of their starts.
	daemons() []string
	// start all daemons; they may still be connecting when it returns.
	start() error
	// protocol of its routes in the kernel, as `ip route` shows it.
	protocol() string
	// showRoutes is a command for people.
	showRoutes() string
	// reset the session with a load balancer, as an operator of the router would.
	reset(ctx context.Context, n topology.Node) error
}

func (lab *Lab) routing() routing {
	if lab.state.Options.Router == "frr" {
		return frr{lab}
	}
	return bird{lab}
}

func routerPrograms(o topology.Options) []string {
	if o.Router != "frr" {
		return []string{"bird", "birdc"}
	}
	programs := []string{"vtysh"}
	for _, daemon := range frrDaemons {
		programs = append(programs, filepath.Join(frrPrograms, daemon))
	}
	return programs
}

// router as far as processes and files go.
func (lab *Lab) router() topology.Node {
	return topology.Node{Name: "router", Namespace: lab.Network.Router}
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
