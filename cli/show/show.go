// Package show has the verbs of `guideway show`, one file each.
package show

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/cli/output"
	"github.com/guideway/guideway/controller/api"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	forwarderv1 "github.com/guideway/guideway/proto/guideway/forwarder/v1"
)

// Command is `guideway show`.
func Command() *cobra.Command {
	return commandline.Group("show", "Show what this load balancer does",
		showListVerb("services", "Show services with their VIPs, backends and packets", showServices, machine.ServiceNames),
		showBackendsCommand(),
		showListVerb("pools", "Show pools whose backends come from a file or from DNS, and how that goes", showPools, nil),
		showListVerb("buckets", "Show how many buckets each backend of a stateless service has", showBuckets, machine.ServiceNames),
		showListVerb("moves", "Show buckets of stateless services that are moving between backends", showMoves, machine.ServiceNames),
		showConnectionsCommand(),
		showVerb("interfaces", "Show the driver and mode of each interface, and why they were chosen", showInterfaces),
		showVerb("cache", "Show the kernel flow cache, or why it is disabled", showCache),
		showVerb("config", "Show the running configuration: its source, and whether it is the newest", showConfig),
		showVerb("drops", "Show dropped packets by reason, with the usual causes", showDrops),
		showListVerb("peers", "Show the other load balancers, as this one reaches them through the tunnel", showPeers, nil),
		showVerb("vrrp", "Show which machine owns which VIPs by VRRP, and why", showVRRP),
		showListVerb("bgp", "Show BGP sessions and routes, and why a route is not announced", showBGP, nil),
	)
}

// A verb's function returns what it found; what it could not ask, it says on
// stderr if there is something to show nevertheless.
type showFunc func(ctx context.Context, m machine.Machine, stderr io.Writer) (output.Listing, error)

func showVerb(use, short string, show showFunc) *cobra.Command {
	v := verb{show: show}
	command := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  commandline.NoArguments,
		RunE:  func(command *cobra.Command, _ []string) error { return v.run(command) },
	}
	v.addFlags(command)
	return command
}

// showListVerb is one of which rows can be chosen, by names among other things; shells
// complete those that names returns.
func showListVerb(name, short string, show showFunc, names func(context.Context, machine.Machine) []string) *cobra.Command {
	v := verb{show: show}
	command := &cobra.Command{
		Use:     name + " [NAME...]",
		Short:   short,
		Example: fmt.Sprintf("  guideway show %s\n  guideway show %s 'web-*' --only-trouble", name, name),
		RunE: func(command *cobra.Command, names []string) error {
			v.choice.Patterns = names
			return v.run(command)
		},
	}
	if names != nil {
		command.ValidArgsFunction = machine.CompleteNames(&v.machine, names)
	}
	v.addFlags(command)
	v.addChoice(command)
	return command
}

// verb is what its flags say.
type verb struct {
	show    showFunc
	machine machine.Machine
	format  string
	watch   watching
	choice  output.Choice
}

func (v *verb) addFlags(command *cobra.Command) {
	AddFlags(command, &v.machine, &v.format)
	addWatch(command, &v.watch)
}

func (v *verb) addChoice(command *cobra.Command) {
	command.Flags().BoolVar(&v.choice.OnlyTrouble, "only-trouble", false, "leave out what is well")
	v.addOrder(command)
}

func (v *verb) addOrder(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&v.choice.SortBy, "sort", "", "sort by this `COLUMN`, the greatest number or the longest time first")
	flags.IntVar(&v.choice.Max, "limit", 0, "show no more than `N` rows; 0: all")
}

func (v *verb) run(command *cobra.Command) error {
	if v.watch.on {
		return v.watch.run(command, v.machine, v.show, v.format, v.choice)
	}
	found, err := v.show(command.Context(), v.machine, command.ErrOrStderr())
	if err == nil {
		found, err = found.Choose(v.choice)
	}
	if err != nil {
		return err
	}
	return output.Paged(command.OutOrStdout(), func(out io.Writer) error { return found.Print(out, v.format) })
}

// AddFlags of every verb that lists.
func AddFlags(command *cobra.Command, m *machine.Machine, format *string) {
	commandline.AddOutput(command, format, commandline.TableFormats)
	machine.AddController(command, m)
}

// readState of the controller; on its own machine, where that does not answer, of what the
// forwarder has.
func readState(ctx context.Context, m machine.Machine, stderr io.Writer, request *controllerv1.GetStateRequest) (*controllerv1.GetStateResponse, error) {
	var state *controllerv1.GetStateResponse
	noController := m.AskController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) (err error) {
		state, err = client.GetState(ctx, request)
		return err
	})
	switch {
	case noController == nil:
		warnNotCounted(state.NotCounted, stderr)
		warnAboutState(state, stderr)
		return state, nil
	case m.Remote.Server != "":
		return nil, noController
	}
	err := m.AskForwarder(ctx, func(ctx context.Context, client forwarderv1.ForwarderClient) error {
		response, err := client.GetPlan(ctx, &forwarderv1.GetPlanRequest{})
		state = stateOfPlan(response.GetPlan())
		if err != nil || !request.WithCounters {
			return err
		}
		counts, err := api.AskCounts(ctx, client, true)
		counts.AddTo(state.Services, state.Backends)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w\n%w", noController, err)
	}
	fmt.Fprintf(stderr, "warning: %v\nwarning: shown is the plan by which the forwarder goes on\n", noController)
	return state, nil
}

func warnNotCounted(why string, stderr io.Writer) {
	if why != "" {
		fmt.Fprintf(stderr, "warning: %s\nwarning: packets are not shown; if the forwarder does not run: systemctl start guideway-forwarder\n", why)
	}
}

func warnAboutState(state *controllerv1.GetStateResponse, stderr io.Writer) {
	if state.Config.GetStale() {
		fmt.Fprintf(stderr, "warning: the config is stale, the former one serves: %s\n", state.Config.Problem)
	}
	if reason := state.Machine.GetReason(); reason != "" {
		fmt.Fprintf(stderr, "warning: this machine is %s: %s\n", state.Machine.State, reason)
	}
}
