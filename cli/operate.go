package main

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/guideway/guideway/controller/config"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
	"github.com/spf13/cobra"
)

func reloadCommand() *cobra.Command {
	var m machine
	command := &cobra.Command{
		Use:   "reload",
		Short: "Have the controller read its config anew",
		Long:  "Reads the config anew, as SIGHUP does, and prints what is wrong with it.\nA bad config changes nothing: the former one goes on. Exits with 1 then.",
		Args:  noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return m.operateController(command.Context(), func(ctx context.Context, client controllerv1.ControllerClient) error {
				response, err := client.Reload(ctx, &controllerv1.ReloadRequest{})
				for _, warning := range response.GetWarnings() {
					fmt.Fprintf(command.ErrOrStderr(), "warning: %s\n", warning)
				}
				return err
			})
		},
	}
	addController(command, &m)
	return command
}

func drainCommand() *cobra.Command {
	return group("drain", "Take a backend or this machine out of new connections",
		drainBackendCommand(true), drainMachineCommand(true))
}

func undrainCommand() *cobra.Command {
	return group("undrain", "Undo `guideway drain`",
		drainBackendCommand(false), drainMachineCommand(false))
}

func drainBackendCommand(drain bool) *cobra.Command {
	var m machine
	command := &cobra.Command{
		Use:   "backend NAME",
		Short: "The backend of that name, on this machine",
		Long:  "On this machine only: a drain of the whole cluster is weight 0 in the config.\nTracked connections stay. It is kept over restarts of the controller.",
		Args:  arguments("NAME"),
		RunE: func(command *cobra.Command, args []string) error {
			err := m.operateController(command.Context(), func(ctx context.Context, client controllerv1.ControllerClient) error {
				_, err := client.DrainBackend(ctx, &controllerv1.DrainBackendRequest{Backend: args[0], Drain: drain})
				return err
			})
			if r := (refused{}); errors.As(err, &r) && r.code == codes.NotFound {
				return fmt.Errorf("%w: %s", err, config.DidYouMean(args[0], m.backendNames(command.Context())))
			}
			return err
		},
	}
	addController(command, &m)
	return command
}

// backendNames are those that the controller knows; none, if it does not say.
func (m machine) backendNames(ctx context.Context) (names []string) {
	_ = m.askController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) error {
		state, err := client.GetState(ctx, &controllerv1.GetStateRequest{})
		for _, backend := range state.GetBackends() {
			names = append(names, backend.Name)
		}
		return err
	})
	return names
}

func drainMachineCommand(drain bool) *cobra.Command {
	var m machine
	command := &cobra.Command{
		Use:   "machine",
		Short: "This load balancer",
		Long:  "Its routes carry GRACEFUL_SHUTDOWN for two seconds, then they are withdrawn; the\nforwarder goes on with what still comes. It is kept over restarts.",
		Args:  noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return m.operateController(command.Context(), func(ctx context.Context, client controllerv1.ControllerClient) error {
				_, err := client.DrainMachine(ctx, &controllerv1.DrainMachineRequest{Drain: drain})
				return err
			})
		},
	}
	addController(command, &m)
	return command
}

func addRunDir(command *cobra.Command, m *machine) {
	command.Flags().StringVar(&m.runDir, "run-dir", runDirDefault, "directory of the sockets")
}
