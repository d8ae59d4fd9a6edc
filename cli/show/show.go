// Package show has the verbs of `guideway show`, a file each.
package show

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
	planv1 "github.com/guideway/guideway/proto/guideway/plan/v1"
)

// Command is `guideway show`.
func Command() *cobra.Command {
	return commandline.Group("show", "Show what this load balancer does",
		showVerb("services", "Show services with their VIPs, backends and packets", showServices),
		showBackendsCommand(),
		showVerb("pools", "Show pools whose backends come from a file or from DNS, and how that goes", showPools),
		showVerb("buckets", "Show how many buckets each backend of a stateless service has", showBuckets),
		showVerb("moves", "Show buckets of stateless services that are moving between backends", showMoves),
		showConnectionsCommand(),
		showVerb("interfaces", "Show the driver and mode of each interface, and why they were chosen", showInterfaces),
		showVerb("cache", "Show the kernel flow cache, or why it is disabled", showCache),
		showVerb("config", "Show the running configuration: its source, and whether it is the newest", showConfig),
		showVerb("drops", "Show dropped packets by reason, with the usual causes", showDrops),
		showVerb("peers", "Show the other load balancers, as this one reaches them through the tunnel", showPeers),
		showVerb("vrrp", "Show which machine owns which VIPs by VRRP, and why", showVRRP),
		showVerb("bgp", "Show BGP sessions and routes, and why a route is not announced", showBGP),
	)
}

// A verb's function returns what it found; what it could not ask, it says on
// stderr if there is something to show nevertheless.
type showFunc func(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error)

func showVerb(use, short string, show showFunc) *cobra.Command {
	var m machine.Machine
	var format string
	var w watching
	command := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if w.on {
				return w.run(command, m, show, format)
			}
			found, err := show(command.Context(), m, command.ErrOrStderr())
			if err != nil {
				return err
			}
			return found.Print(command.OutOrStdout(), format)
		},
	}
	AddFlags(command, &m, &format)
	addWatch(command, &w)
	return command
}

// AddFlags of every verb that lists.
func AddFlags(command *cobra.Command, m *machine.Machine, format *string) {
	commandline.AddOutput(command, format, commandline.TableFormats)
	machine.AddController(command, m)
}

// snapshot is what both processes say, or as much of it as there is.
type snapshot struct {
	state    *controllerv1.GetStateResponse // nil: no controller
	plan     *planv1.Plan                   // requested only without a controller
	counters *forwarderv1.GetCountersResponse
}

// readSnapshot asks both; one is enough.
func readSnapshot(ctx context.Context, m machine.Machine, stderr io.Writer, parts *controllerv1.GetStateRequest) (snapshot, error) {
	var p snapshot
	noController := m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		p.state, err = client.GetState(ctx, parts)
		return err
	})
	if noController != nil && m.Remote.Server != "" {
		return p, noController
	}
	noForwarder := m.AskPackets(ctx, func(ctx context.Context, client machine.Packets) (err error) {
		p.counters, err = client.GetCounters(ctx, &forwarderv1.GetCountersRequest{})
		return err
	})
	if noController != nil && noForwarder == nil {
		noForwarder = m.AskForwarder(ctx, func(ctx context.Context, client forwarderv1.ForwarderClient) error {
			response, err := client.GetPlan(ctx, &forwarderv1.GetPlanRequest{})
			p.plan = response.GetPlan()
			return err
		})
	}
	switch {
	case noController != nil && noForwarder != nil:
		return p, fmt.Errorf("%w\n%w", noController, noForwarder)
	case noController != nil:
		fmt.Fprintf(stderr, "warning: %v\nwarning: shown is the plan by which the forwarder goes on\n", noController)
	case noForwarder != nil:
		fmt.Fprintf(stderr, "warning: %v\nwarning: packets are not shown\n", noForwarder)
	}
	if p.state != nil {
		warnAboutState(p.state, stderr)
	}
	return p, nil
}

func warnAboutState(state *controllerv1.GetStateResponse, stderr io.Writer) {
	if state.Config.GetStale() {
		fmt.Fprintf(stderr, "warning: the config is stale, the former one serves: %s\n", state.Config.Problem)
	}
	if reason := state.Machine.GetReason(); reason != "" {
		fmt.Fprintf(stderr, "warning: this machine is %s: %s\n", state.Machine.State, reason)
	}
}
