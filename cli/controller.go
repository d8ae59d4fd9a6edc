package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/logging"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/controller/run"
)

const stateDirDefault = "/var/lib/guideway"

const controllerVerb = "controller"

func controllerCommand() *cobra.Command {
	var options run.Options
	var logFormat string
	var verbose bool
	command := &cobra.Command{
		Use:   controllerVerb + " --config FILE...",
		Short: "Run the controller of this machine",
		Long: "Compiles the configuration and the health of the backends into the plan of this\n" +
			"machine's forwarder, and tells the speaker which routes to announce.\n" +
			"\n" +
			"SIGHUP (or `guideway reload`) reloads the configuration; one with errors changes\n" +
			"nothing. When the controller ends, forwarder and speaker keep their last state.",
		Example: "  guideway controller --config /etc/guideway/config.yaml",
		Args:    commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			options.Log = logging.New(logFormat, verbose)
			options.Version = version
			err := run.Run(command.Context(), options)
			if errors.Is(err, run.ErrRestart) {
				err = executeAnew()
			}
			return err
		},
	}
	flags := command.Flags()
	flags.StringArrayVar(&options.Config, "config", nil, "file, or directory of *.yaml, *.yml and *.json; may be repeated")
	flags.StringVar(&options.Machine, "machine", "", "`NAME` of this machine's entry, if the config has `machines` [default: the host name]")
	flags.StringVar(&options.RunDir, "run-dir", machine.RunDirDefault, "directory of the sockets")
	flags.StringVar(&options.StateDir, "state-dir", stateDirDefault, "directory of what outlives a restart")
	flags.StringVar(&options.HooksDir, "hooks-dir", "/etc/guideway/hooks", "`DIRECTORY` of the programs that hooks of the config name")
	flags.BoolVar(&options.Watch, "watch", false, "reload when a file of the config changes")
	commandline.AddChoice(command, &logFormat, "log-format", "", "how to log", "text", "json")
	flags.BoolVar(&verbose, "verbose", false, "log debug messages too")
	_ = command.MarkFlagRequired("config") // an error only if the flag did not exist
	return command
}

// executeAnew the program that is installed now, in the place of this one: for its
// service manager it is the same process.
func executeAnew() error {
	program, err := os.Executable()
	if err == nil {
		err = syscall.Exec(program, os.Args, os.Environ())
	}
	return fmt.Errorf("execute the installed program %s: %w", program, err)
}
