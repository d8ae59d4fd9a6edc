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
	return commandline.Group("drain", "Take a backend, a service or this machine out of use",
		drainBackendCommand(), drainServiceCommand(), drainMachineCommand())
}

// UndrainCommand is `guideway undrain`.
func UndrainCommand() *cobra.Command {
	return commandline.Group("undrain", "Undo `guideway drain`",
		undrainNamed("backend NAME", "End the drain of a backend, on all machines if it was drained with --fleet", machine.BackendNames, undrainBackend),
		undrainNamed("service NAME", "End the drain of a service, on all machines if it was drained with --fleet", machine.ServiceNames, undrainService),
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
			return commandline.Usagef("--timeout requires --wait")
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

const exitsOfWait = "Exit status with --wait: 0 when done, 3 on timeout, 1 on error.\n"

func drainBackendCommand() *cobra.Command {
	var f drainFlags
	var fleet bool
	command := &cobra.Command{
		Use:   "backend NAME",
		Short: "Drain a backend, on this machine or (--fleet) on all",
		Long: "The backend gets no new connections from this machine. Tracked connections stay, and so\n" +
			"do those of stateless services, whose buckets move to other backends. The drain is kept\n" +
			"over restarts. With --fleet it applies to all machines that share their configuration\n" +
			"by etcd or are peers, and to those that join later, until `guideway undrain backend` on\n" +
			"any of them.\n" +
			"\n" +
			"The last backend of a service is drained with --force only.\n" +
			"\n" +
			"With --wait the command returns when this machine has sent the backend no packet for a\n" +
			"second, tracks none of its connections but closing ones, and no move of a stateless\n" +
			"service's buckets away from it is open.\n" +
			exitsOfWait,
		Args:              commandline.Arguments("NAME"),
		ValidArgsFunction: machine.CompleteNames(&f.m, machine.BackendNames),
		RunE: func(command *cobra.Command, args []string) error {
			ctx := command.Context()
			err := f.m.OperateController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) error {
				response, err := client.DrainBackend(ctx, &controllerv1.DrainBackendRequest{Backend: args[0], Drain: true, Force: f.force, Fleet: fleet})
				warn(command.ErrOrStderr(), response.GetWarnings())
				return err
			})
			if err != nil || !f.wait {
				return suggest(ctx, f.m, err, args[0], machine.BackendNames)
			}
			return waitForBackend(ctx, f.m, args[0], f.timeout, command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	addDrainFlags(command, &f, "wait until its connections through this machine have ended", "also a service's last backend")
	command.Flags().BoolVar(&fleet, "fleet", false, "on all machines")
	return command
}

func drainServiceCommand() *cobra.Command {
	var f drainFlags
	var fleet bool
	command := &cobra.Command{
		Use:   "service NAME",
		Short: "Drain a service, on this machine or (--fleet) on all",
		Long: "The routes of the service carry GRACEFUL_SHUTDOWN for two seconds and are then\n" +
			"withdrawn; packets that still arrive are forwarded. Routes that are shared with services\n" +
			"which are not drained stay, and are named. The drain is kept over restarts.\n" +
			"\n" +
			"Refused without --force if no other load balancer is known to take over, and with\n" +
			"--fleet, which drains it on all machines that share their configuration by etcd or are peers.\n" +
			"\n" +
			"With --wait the routes carry GRACEFUL_SHUTDOWN until traffic has moved away (at most 10\n" +
			"packets of the service in a second) or until --timeout.\n" +
			exitsOfWait,
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
	command.Flags().BoolVar(&fleet, "fleet", false, "on all machines")
	return command
}

func drainMachineCommand() *cobra.Command {
	var f drainFlags
	command := &cobra.Command{
		Use:   "machine",
		Short: "Drain this load balancer",
		Long: "The routes of this machine carry GRACEFUL_SHUTDOWN for two seconds and are then\n" +
			"withdrawn; packets that still arrive are forwarded. The drain is kept over restarts.\n" +
			"\n" +
			"Refused without --force if no other load balancer is known to take over: none of\n" +
			"`peers` in the configuration answers through the tunnel.\n" +
			"\n" +
			"With --wait the routes carry GRACEFUL_SHUTDOWN until traffic has moved away (at most 10\n" +
			"packets in a second) or until --timeout; afterwards the machine may be stopped.\n" +
			exitsOfWait,
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
		Use: "machine", Short: "End the drain of this load balancer", Args: commandline.NoArguments,
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
