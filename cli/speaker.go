package main

import (
	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/logging"
	"github.com/guideway/guideway/cli/machine"
	"github.com/guideway/guideway/speaker"
)

// speakerStateDirDefault is the speaker's own: its user is not the controller's.
const speakerStateDirDefault = "/var/lib/guideway-speaker"

func speakerCommand() *cobra.Command {
	var options speaker.Options
	var logFormat string
	var verbose bool
	command := &cobra.Command{
		Use:   "speaker",
		Short: "Run the BGP speaker of this machine",
		Long: "Announces the controller's routes to the BGP neighbors while this machine's forwarder is\n" +
			"well, and withdraws them at once when it is not. The routes are kept on disk, so\n" +
			"forwarder and speaker serve without a controller.\n" +
			"\n" +
			"SIGTERM withdraws the routes, after GRACEFUL_SHUTDOWN.",
		Example: "  guideway speaker --metrics-listen 127.0.0.1:9474",
		Args:    commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			options.Log = logging.New(logFormat, verbose)
			options.Version = version
			speaker.RaisePriority(options.Log)
			return speaker.Run(command.Context(), options)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.RunDir, "run-dir", machine.RunDirDefault, "directory of the sockets")
	flags.StringVar(&options.StateDir, "state-dir", speakerStateDirDefault, "directory of what outlives a restart")
	flags.StringVar(&options.MetricsListen, "metrics-listen", "", "serve /metrics and /healthz at this address and port")
	flags.StringVar(&options.ControllerUser, "controller-user", "", "user that may set what is announced, beside root and the speaker's own")
	commandline.AddChoice(command, &logFormat, "log-format", "", "how to log", "text", "json")
	flags.BoolVar(&verbose, "verbose", false, "log debug messages too")
	return command
}
