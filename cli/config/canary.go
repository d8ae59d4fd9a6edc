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
	return endCanaryCommand(true, "promote", "Have all machines take the config that one runs alone",
		"Ends what `guideway config apply --canary MACHINE` began: every live machine checks\n"+
			"the config once more, and then all take it. Refused if one refuses it.")
}

func configCancelCommand() *cobra.Command {
	return endCanaryCommand(false, "cancel", "Have the machine that runs a config alone return to that of the others",
		"Ends what `guideway config apply --canary MACHINE` began: the config of the other\n"+
			"machines is applied again, as a generation above the one that is cancelled.")
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
