package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func reloadCommand() *cobra.Command {
	var m machine.Machine
	var acceptOlder bool
	command := &cobra.Command{
		Use:   "reload",
		Short: "Reload the controller's configuration",
		Long: "Reloads the configuration, as SIGHUP does, and prints its errors. If it has errors, or\n" +
			"the forwarder refuses its plan, the running one stays, and the exit status is 1.",
		Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			return m.OperateController(command.Context(), func(ctx context.Context, client controllerv1.ControllerClient) error {
				response, err := client.Reload(ctx, &controllerv1.ReloadRequest{AcceptOlder: acceptOlder})
				for _, warning := range response.GetWarnings() {
					fmt.Fprintf(command.ErrOrStderr(), "warning: %s\n", warning)
				}
				return err
			})
		},
	}
	command.Flags().BoolVar(&acceptOlder, "accept-older", false, "take what etcd holds, although its number is lower than the one that runs, or its config another")
	machine.AddController(command, &m)
	return command
}
