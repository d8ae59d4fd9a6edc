package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"syscall"

	"github.com/guideway/guideway/controller/run"
	"github.com/spf13/cobra"
)

// Where the processes meet unless told otherwise.
const (
	runDirDefault   = "/run/guideway"
	stateDirDefault = "/var/lib/guideway"
)

const controllerVerb = "controller"

func controllerCommand() *cobra.Command {
	var options run.Options
	var logFormat string
	var verbose bool
	command := &cobra.Command{
		Use:   controllerVerb + " --config FILE...",
		Short: "Run the controller of this machine",
		Long: "Keeps the machine's forwarder on a plan made from the config and the health of\n" +
			"the backends, and the speaker on the routes to announce.\n\n" +
			"SIGHUP (or `guideway reload`) reads the config anew; a bad one changes nothing.\n" +
			"When it ends, forwarder and speaker go on with what they have.",
		Example: "  guideway controller --config /etc/guideway/config.yaml",
		Args:    noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			options.Log = newLog(logFormat, verbose)
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
	flags.StringVar(&options.RunDir, "run-dir", runDirDefault, "directory of the sockets")
	flags.StringVar(&options.StateDir, "state-dir", stateDirDefault, "directory of what outlives a restart")
	flags.BoolVar(&options.Watch, "watch", false, "reload when a file of the config changes")
	addChoice(command, &logFormat, "log-format", "", "how to log", "text", "json")
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

func newLog(format string, verbose bool) *slog.Logger {
	options := &slog.HandlerOptions{}
	if verbose {
		options.Level = slog.LevelDebug
	}
	handler := func(w io.Writer) slog.Handler {
		if format == "json" {
			return slog.NewJSONHandler(w, options)
		}
		return slog.NewTextHandler(w, options)
	}
	if !toJournal(os.Stderr) {
		return slog.New(handler(os.Stderr))
	}
	options.ReplaceAttr = withoutTime // the journal has its own
	return slog.New(newJournalHandler(os.Stderr, handler))
}

func withoutTime(groups []string, attr slog.Attr) slog.Attr {
	if len(groups) == 0 && attr.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return attr
}
