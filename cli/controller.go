package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/guideway/guideway/controller"
	"github.com/spf13/cobra"
)

// Where both processes meet unless told otherwise.
const (
	runDirDefault   = "/run/guideway"
	stateDirDefault = "/var/lib/guideway"
)

const controllerVerb = "controller"

func controllerCommand() *cobra.Command {
	var options controller.Options
	var logFormat string
	var verbose bool
	command := &cobra.Command{
		Use:   controllerVerb + " --config FILE...",
		Short: "Run the controller of this machine",
		Long: "Keeps the machine's forwarder on a plan made from the config and the health of\n" +
			"the backends, and announces the service addresses to the BGP neighbors.\n\n" +
			"SIGHUP (or `guideway reload`) reads the config anew; a bad one changes nothing.\n" +
			"SIGTERM withdraws the routes, GRACEFUL_SHUTDOWN first; the forwarder goes on.",
		Example: "  guideway controller --config /etc/guideway/config.yaml",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			log, err := newLog(logFormat, verbose)
			if err != nil {
				return err
			}
			options.Log = log
			options.Version = version
			return controller.Run(command.Context(), options)
		},
	}
	flags := command.Flags()
	flags.StringArrayVar(&options.Config, "config", nil, "file, or directory of *.yaml, *.yml and *.json; may be repeated")
	flags.StringVar(&options.RunDir, "run-dir", runDirDefault, "directory of the sockets")
	flags.StringVar(&options.StateDir, "state-dir", stateDirDefault, "directory of what outlives a restart")
	flags.BoolVar(&options.Watch, "watch", false, "reload when a file of the config changes")
	flags.StringVar(&logFormat, "log-format", "text", "text or json")
	flags.BoolVar(&verbose, "verbose", false, "log debug messages too")
	_ = command.MarkFlagRequired("config") // an error only if the flag did not exist
	return command
}

func newLog(format string, verbose bool) (*slog.Logger, error) {
	options := &slog.HandlerOptions{}
	if verbose {
		options.Level = slog.LevelDebug
	}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(os.Stderr, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, options)), nil
	}
	return nil, fmt.Errorf("--log-format %q: use text or json", format)
}
