package config

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/api"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

func configPromoteCommand() *cobra.Command {
	return endCanaryCommand(true, "promote", "Apply the canary's configuration on all machines",
		"Ends a canary (`guideway config apply --canary MACHINE`): every live machine checks its\n"+
			"configuration once more, and all take it. Refused if one machine refuses it.")
}

func configCancelCommand() *cobra.Command {
	return endCanaryCommand(false, "cancel", "End a canary: its machine returns to the configuration of the others",
		"Ends a canary (`guideway config apply --canary MACHINE`): the configuration of the other\n"+
			"machines is applied again, under a number above the cancelled one.")
}

func endCanaryCommand(promote bool, use, short, long string) *cobra.Command {
	var m machine.Machine
	request := &controllerv1.EndCanaryRequest{Promote: promote}
	command := &cobra.Command{
		Use: use, Short: short, Long: long, Args: commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			var applied *controllerv1.ApplyConfigResponse
			err := m.Ask(command.Context(), applyTimeout, m.ControllerDoor(api.OperateGroup), func(ctx context.Context, conn *grpc.ClientConn) (err error) {
				applied, err = controllerv1.NewControllerClient(conn).EndCanary(ctx, request)
				return err
			})
			if err != nil {
				return err
			}
			printNotChecked(command, applied)
			fmt.Fprintf(command.OutOrStdout(), "all machines are to run number %d of the history\n", applied.Number)
			return nil
		},
	}
	command.Flags().StringVarP(&request.Message, "message", "m", "", "why: a `TEXT` that config history shows")
	machine.AddController(command, &m)
	return command
}
