package config

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/api"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/controller/configs"
	controllerv1 "github.com/guideway/guideway/proto/guideway/controller/v1"
)

// Writing a file, and the forwarder's acceptance: see acceptTimeout there.
const applyTimeout = 2 * time.Minute

func configApplyCommand() *cobra.Command {
	var m machine.Machine
	var own ownConfig
	order := &controllerv1.ApplyOrder{}
	command := &cobra.Command{
		Use:   "apply FILE",
		Short: "Replace the running configuration",
		Long: "Prints what `guideway config plan` prints and the lines that change, replaces the\n" +
			"controller's configuration file by FILE, and returns when the forwarder has accepted\n" +
			"the plan. If the plan is refused, the former file is restored. The file to replace is\n" +
			"given by --config or by the installed unit; it keeps its owner and mode, it is written\n" +
			"with the rights of this user, and a symbolic link is not followed. With --server the\n" +
			"controller replaces its own file. Refused if something else runs than FILE was\n" +
			"compared with, if the configuration is a directory or several files, and if the file\n" +
			"holds an edit that never ran, unless FILE is that edit.\n" +
			"\n" +
			"If machines share their configuration by etcd, FILE is the shared part: this machine's\n" +
			"parser and forwarder and every other live machine check it; if none refuses, it is\n" +
			"stored in etcd, and all machines take it. With --canary MACHINE that machine runs it\n" +
			"alone until `guideway config promote` or `guideway config cancel`. Refused if another\n" +
			"configuration was stored meanwhile.",
		Example: "  guideway config apply new.yaml --message 'web-7 is back'",
		Args:    commandline.Arguments("FILE"),
		RunE: func(command *cobra.Command, args []string) error {
			sources, err := readSources(args)
			if err != nil {
				return err
			}
			if len(sources) != 1 {
				return fmt.Errorf("%s has %d files: one file can be applied, a directory cannot", args[0], len(sources))
			}
			order.From = sources[0].Name
			return applySource(command, m, own, sources[0], order)
		},
	}
	command.Flags().StringVarP(&order.Message, "message", "m", "", "why: a `TEXT` that config history shows")
	addOwnConfig(command, &own)
	command.Flags().StringVar(&order.Canary, "canary", "", "the one `MACHINE` that is to run it before the others; only with etcd")
	command.Flags().Uint64Var(&order.Number, "seen-against", 0, "the `NUMBER` that config plan printed: refused if another configuration runs [default: the one that runs now]")
	machine.AddController(command, &m)
	return command
}

// applySource applies a config after its changes were printed.
func applySource(command *cobra.Command, m machine.Machine, own ownConfig, source config.Source, order *controllerv1.ApplyOrder) error {
	plan, err := planConfig(command.Context(), m, []config.Source{source})
	if err != nil {
		return err
	}
	printWarningLines(command, plan.Warnings)
	if err := printPlan(command.OutOrStdout(), "table", false, plan); err != nil {
		return err
	}
	if order.Number == 0 {
		order.Number = plan.Number
	}
	applied, err := applyConfig(command, m, own, source, order)
	if err != nil {
		return err
	}
	fmt.Fprintf(command.OutOrStdout(), "\napplied: config %d runs\n", applied.Number)
	printNotChecked(command, applied)
	if order.Canary != "" {
		fmt.Fprintf(command.OutOrStdout(), "%s alone runs it: `guideway config promote` has all machines take it, `guideway config cancel` has %s return\n", order.Canary, order.Canary)
	}
	return nil
}

func printNotChecked(command *cobra.Command, applied *controllerv1.ApplyConfigResponse) {
	for _, machine := range applied.GetNotChecked() {
		fmt.Fprintf(command.ErrOrStderr(), "warning: not checked by %s\n", machine)
	}
}

func printWarningLines(command *cobra.Command, warnings []string) {
	for _, warning := range warnings {
		fmt.Fprintf(command.ErrOrStderr(), "warning: %s\n", warning)
	}
}

func applyConfig(command *cobra.Command, m machine.Machine, own ownConfig, source config.Source, order *controllerv1.ApplyOrder) (*controllerv1.ApplyConfigResponse, error) {
	if m.Remote.Server != "" {
		return replaceConfig(command.Context(), m, source, order)
	}
	var applied *controllerv1.ApplyConfigResponse
	var file *configs.Replacement
	var notWritten error // which is ours, not the controller's
	err := m.Ask(command.Context(), applyTimeout, m.ControllerDoor(api.OperateGroup), func(ctx context.Context, conn *grpc.ClientConn) error {
		stream, err := controllerv1.NewControllerClient(conn).ApplyConfig(ctx)
		if err != nil {
			return err
		}
		err = stream.Send(&controllerv1.ApplyConfigRequest{Files: filesOf([]config.Source{source}), Order: order})
		target, received := stream.Recv() // has what ended the stream
		if received != nil {
			return received
		}
		if err != nil {
			return err
		}
		if target.Path != "" { // else the config goes to etcd
			if file, notWritten = own.replace(ctx, command.OutOrStdout(), target, source.Data); notWritten != nil {
				return notWritten
			}
		}
		if err := stream.Send(&controllerv1.ApplyConfigRequest{Written: true}); err != nil {
			return err
		}
		applied, err = stream.Recv()
		return err
	})
	if notWritten != nil {
		return nil, notWritten
	}
	if err == nil || file == nil {
		return applied, err
	}
	return nil, undoApply(command.Context(), m, file, err)
}

// replaceConfig on another machine, whose controller writes the file.
func replaceConfig(ctx context.Context, m machine.Machine, source config.Source, order *controllerv1.ApplyOrder) (*controllerv1.ApplyConfigResponse, error) {
	var applied *controllerv1.ApplyConfigResponse
	err := m.Ask(ctx, applyTimeout, m.ControllerDoor(api.OperateGroup), func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		request := &controllerv1.ReplaceConfigRequest{Files: filesOf([]config.Source{source}), Order: order}
		applied, err = controllerv1.NewControllerClient(conn).ReplaceConfig(ctx, request)
		return err
	})
	return applied, err
}

// undoApply puts the former config back after a refusal. Where the outcome is not
// known, the file stays: it may be what runs.
func undoApply(ctx context.Context, m machine.Machine, file *configs.Replacement, failed error) error {
	if r := (machine.Refused{}); !errors.As(failed, &r) || r.Code != codes.FailedPrecondition && r.Code != codes.InvalidArgument {
		return fmt.Errorf("%w: %s holds the new config all the same; `guideway show services` and `guideway config history` say what runs", failed, file.Path)
	}
	if err := file.PutBack(); err != nil {
		return fmt.Errorf("%w; and the former config could not be put back: %w", failed, err)
	}
	// The controller has seen the file that is gone: it reads the former again.
	err := m.OperateController(ctx, func(ctx context.Context, client controllerv1.ControllerClient) error {
		_, err := client.Reload(ctx, &controllerv1.ReloadRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("%w; %s holds the former config again, but: %w", failed, file.Path, err)
	}
	return fmt.Errorf("%w; %s holds the former config again", failed, file.Path)
}

func configRollbackCommand() *cobra.Command {
	var m machine.Machine
	var own ownConfig
	order := &controllerv1.ApplyOrder{}
	command := &cobra.Command{
		Use:   "rollback [NUMBER]",
		Short: "Apply an earlier configuration of the history",
		Long: "Applies the configuration of that number as `guideway config apply` applies a file.\n" +
			"Without NUMBER: the one that was in use before the present one, or if what was loaded\n" +
			"last is refused, the present one. A file that holds an edit that never ran is put\n" +
			"aside, under a name that ends in `.edited-` and the time.",
		Example: "  guideway config rollback\n  guideway config rollback 12 --message 'web-7 is not back'",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("%q is too much: give one NUMBER, or none", args[1])
			}
			return nil
		},
		RunE: func(command *cobra.Command, args []string) error {
			number, err := rollbackTarget(command.Context(), m, args)
			if err != nil {
				return err
			}
			former, err := recordedConfig(command.Context(), m, number)
			if err != nil {
				return err
			}
			if len(former.Files) != 1 {
				return fmt.Errorf("number %d of the history has %d files, and one can be applied: write them back from `guideway config diff` and `guideway reload`", number, len(former.Files))
			}
			order.RollbackTo, order.From = number, fmt.Sprintf("number %d", number)
			return applySource(command, m, own, config.Source{Name: former.Files[0].Name, Data: former.Files[0].Data}, order)
		},
	}
	command.Flags().StringVarP(&order.Message, "message", "m", "", "why: a `TEXT` that config history shows")
	addOwnConfig(command, &own)
	machine.AddController(command, &m)
	return command
}

// rollbackTarget is the number given, or that of the config before the one loaded last:
// where that is refused, it is the one in use.
func rollbackTarget(ctx context.Context, m machine.Machine, args []string) (uint64, error) {
	if len(args) == 1 {
		return recordNumber(args[0])
	}
	history, err := configHistory(ctx, m)
	if err != nil {
		return 0, err
	}
	for i, record := range history.Records {
		if record.InUse && history.Refused != "" {
			return record.Number, nil
		}
		if record.InUse && i+1 < len(history.Records) {
			return history.Records[i+1].Number, nil
		}
	}
	return 0, errors.New("the history has no config before the one in use: there is nothing to return to")
}
