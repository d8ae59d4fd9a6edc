// Package drain has `guideway drain` and `guideway undrain`.
package drain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Command is `guideway drain`.
func Command() *cobra.Command {
	return commandline.Group("drain", "Take a backend, a service or this machine out",
		drainBackendCommand(), drainServiceCommand(), drainMachineCommand())
}

// UndrainCommand is `guideway undrain`.
func UndrainCommand() *cobra.Command {
	return commandline.Group("undrain", "Undo `guideway drain`",
		undrainNamed("backend NAME", "The backend of that name, on this machine, or on all where it was drained so", machine.BackendNames, undrainBackend),
		undrainNamed("service NAME", "The service of that name, on this machine, or on all where it was drained so", machine.ServiceNames, undrainService),
		undrainMachineCommand())
}

// drainFlags are those of all drains.
type drainFlags struct {
	m       machine.Machine
	force   bool
	wait    bool
	timeout time.Duration
}

const drainTimeoutDefault = time.Minute

func addDrainFlags(command *cobra.Command, f *drainFlags, waits, forces string) {
	machine.AddController(command, &f.m)
	flags := command.Flags()
	flags.BoolVar(&f.wait, "wait", false, waits)
	flags.DurationVar(&f.timeout, "timeout", drainTimeoutDefault, "how long --wait waits")
	flags.BoolVar(&f.force, "force", false, forces)
	strictController := command.PreRunE
	command.PreRunE = func(command *cobra.Command, args []string) error {
		switch {
		case flags.Changed("timeout") && !f.wait:
			return commandline.Usagef("--timeout is for --wait: give both, or none")
		case f.timeout <= 0:
			return commandline.Usagef("--timeout %v: give more than 0s", f.timeout)
		}
		return strictController(command, args)
	}
}

// waitMax is absent without --wait.
func (f *drainFlags) waitMax() *durationpb.Duration {
	if !f.wait {
		return nil
	}
	return durationpb.New(f.timeout)
}

const exitsOfWait = "With --wait it ends with 0 when that is so, with 3 when the time was up before, and\nwith 1 after any error.\n"

func drainBackendCommand() *cobra.Command {
	var f drainFlags
	var fleet bool
	command := &cobra.Command{
		Use:   "backend NAME",
		Short: "The backend of that name, on this machine or, with --fleet, on all",
		Long: "It takes no new connections from this machine; tracked ones stay, and so do those of\n" +
			"stateless services, whose buckets move to others. It is kept over restarts. With\n" +
			"--fleet that holds for all machines that share their config by etcd, and for those\n" +
			"that come later, until `guideway undrain backend` on any of them.\n\n" +
			"A service's last backend is refused without --force.\n\n" +
			"--wait waits until this machine has forwarded no packet to it for a second and\n" +
			"tracks no connection of it but closing ones, and until no move of a stateless\n" +
			"service's buckets away from it is open. " + exitsOfWait,
		Args:              commandline.Arguments("NAME"),
		ValidArgsFunction: machine.CompleteNames(&f.m, machine.BackendNames),
		RunE: func(command *cobra.Command, args []string) error {
			ctx := command.Context()
			err := f.m.OperateController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) error {
				_, err := client.DrainBackend(ctx, &controllerv1.DrainBackendRequest{Backend: args[0], Drain: true, Force: f.force, Fleet: fleet})
				return err
			})
			if err != nil || !f.wait {
				return suggest(ctx, f.m, err, args[0], machine.BackendNames)
			}
			return waitForBackend(ctx, f.m, args[0], f.timeout, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	addDrainFlags(command, &f, "wait until its connections through this machine have ended", "also a service's last backend")
	command.Flags().BoolVar(&fleet, "fleet", false, "on all machines, by etcd")
	return command
}

func drainServiceCommand() *cobra.Command {
	var f drainFlags
	var fleet bool
	command := &cobra.Command{
		Use:   "service NAME",
		Short: "The service of that name, on this machine or, with --fleet, on all",
		Long: "Its routes carry GRACEFUL_SHUTDOWN for two seconds, then they are withdrawn; the\n" +
			"forwarder goes on with what still comes. Routes that it shares with services which\n" +
			"are not drained stay, and are named. It is kept over restarts.\n\n" +
			"Refused without --force where no other load balancer is known to take over, and with\n" +
			"--fleet, which is for all machines that share their config by etcd.\n\n" +
			"With --wait the routes carry GRACEFUL_SHUTDOWN until traffic has moved away (the\n" +
			"forwarder has forwarded at most 10 packets of the service in a second) or the time\n" +
			"is up. " + exitsOfWait,
		Args:              commandline.Arguments("NAME"),
		ValidArgsFunction: machine.CompleteNames(&f.m, machine.ServiceNames),
		RunE: func(command *cobra.Command, args []string) error {
			ctx := command.Context()
			err := f.m.OperateController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) error {
				response, err := client.DrainService(ctx, &controllerv1.DrainServiceRequest{Service: args[0], Drain: true, Force: f.force, WaitMax: f.waitMax(), Fleet: fleet})
				warn(command.ErrOrStderr(), response.GetWarnings())
				return err
			})
			if err != nil || !f.wait {
				return suggest(ctx, f.m, err, args[0], machine.ServiceNames)
			}
			return waitForRoutes(ctx, f.m, drainedService(args[0]), command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	addDrainFlags(command, &f, "wait until traffic has moved away and the routes are withdrawn", "also where no other load balancer is known to take over")
	command.Flags().BoolVar(&fleet, "fleet", false, "on all machines, by etcd")
	return command
}

func drainMachineCommand() *cobra.Command {
	var f drainFlags
	command := &cobra.Command{
		Use:   "machine",
		Short: "This load balancer",
		Long: "Its routes carry GRACEFUL_SHUTDOWN for two seconds, then they are withdrawn; the\n" +
			"forwarder goes on with what still comes. It is kept over restarts.\n\n" +
			"Refused without --force where no other load balancer is known to take over: none of\n" +
			"`peers` in the config answers through the tunnel.\n\n" +
			"With --wait the routes carry GRACEFUL_SHUTDOWN until traffic has moved away (the\n" +
			"forwarder has forwarded at most 10 packets in a second) or the time is up; then they\n" +
			"are withdrawn, and the machine may be stopped. " + exitsOfWait,
		Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			ctx := command.Context()
			err := f.m.OperateController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) error {
				_, err := client.DrainMachine(ctx, &controllerv1.DrainMachineRequest{Drain: true, Force: f.force, WaitMax: f.waitMax()})
				return err
			})
			if err != nil || !f.wait {
				return err
			}
			return waitForRoutes(ctx, f.m, drainedMachine{}, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	addDrainFlags(command, &f, "wait until traffic has moved away and the routes are withdrawn", "also where no other load balancer is known to take over")
	return command
}

func undrainNamed(use, short string, names func(context.Context, machine.Machine) []string, undrain func(context.Context, controllerv1.ControllerClient, string) ([]string, error)) *cobra.Command {
	var m machine.Machine
	command := &cobra.Command{
		Use: use, Short: short, Args: commandline.Arguments("NAME"), ValidArgsFunction: machine.CompleteNames(&m, names),
		RunE: func(command *cobra.Command, args []string) error {
			err := m.OperateController(command.Context(), func(ctx context.Context, client controllerv1.ControllerClient) error {
				warnings, err := undrain(ctx, client, args[0])
				warn(command.ErrOrStderr(), warnings)
				return err
			})
			return suggest(command.Context(), m, err, args[0], names)
		},
	}
	machine.AddController(command, &m)
	return command
}

func undrainBackend(ctx context.Context, client controllerv1.ControllerClient, name string) ([]string, error) {
	response, err := client.DrainBackend(ctx, &controllerv1.DrainBackendRequest{Backend: name})
	return response.GetWarnings(), err
}

func undrainService(ctx context.Context, client controllerv1.ControllerClient, name string) ([]string, error) {
	response, err := client.DrainService(ctx, &controllerv1.DrainServiceRequest{Service: name})
	return response.GetWarnings(), err
}

func warn(w io.Writer, warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintf(w, "warning: %s\n", warning)
	}
}

func undrainMachineCommand() *cobra.Command {
	var m machine.Machine
	command := &cobra.Command{
		Use: "machine", Short: "This load balancer", Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return m.OperateController(command.Context(), func(ctx context.Context, client controllerv1.ControllerClient) error {
				_, err := client.DrainMachine(ctx, &controllerv1.DrainMachineRequest{})
				return err
			})
		},
	}
	machine.AddController(command, &m)
	return command
}

// suggest a name where the one given is not known.
func suggest(ctx context.Context, m machine.Machine, err error, name string, names func(context.Context, machine.Machine) []string) error {
	if r := (machine.Refused{}); errors.As(err, &r) && r.Code == codes.NotFound {
		return fmt.Errorf("%w: %s", err, config.DidYouMean(name, names(ctx, m)))
	}
	return err
}
