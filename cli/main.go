// Command guideway is Guideway's command-line program: it checks and compiles configs, runs
// the controller and the speaker, and shows what a running load balancer does.
//
// Each verb has a file, in show, config, drain, fleet or diagnose; those that run a process
// are here. A verb's file has a function that returns its command; main.go only collects
// them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/cli/config"
	"github.com/guideway/guideway/cli/diagnose"
	"github.com/guideway/guideway/cli/drain"
	"github.com/guideway/guideway/cli/events"
	"github.com/guideway/guideway/cli/fleet"
	"github.com/guideway/guideway/cli/logging"
	"github.com/guideway/guideway/cli/show"
	"github.com/guideway/guideway/cli/top"
	"github.com/guideway/guideway/controller/run"
)

// version is set by the linker.
var version = "development"

func main() {
	// First of all: without a handler, SIGHUP ends the process.
	if len(os.Args) > 1 && os.Args[1] == controllerVerb {
		run.CatchHangups()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		if errors.Is(err, commandline.ErrChanges) {
			os.Exit(commandline.ExitChanges)
		}
		if errors.Is(err, commandline.ErrTimeUp) {
			os.Exit(commandline.ExitTimeUp)
		}
		if errors.Is(err, commandline.ErrLeftOut) {
			os.Exit(commandline.ExitLeftOut)
		}
		if !errors.Is(err, commandline.ErrReported) {
			prefix := ""
			if logging.ToJournal(os.Stderr) {
				prefix = "<3>"
			}
			fmt.Fprintf(os.Stderr, "%sguideway: %v\n", prefix, err)
		}
		os.Exit(commandline.ExitCode(err))
	}
}

func root() *cobra.Command {
	command := &cobra.Command{
		Use:   "guideway",
		Short: "A software network load balancer",
		Long: "Guideway spreads connections to a service address over many servers, from\n" +
			"several machines at once, without breaking any when machines come and go.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return command.Help()
			}
			return commandline.Unknown(command, args[0])
		},
		Args:                       cobra.ArbitraryArgs,
		SuggestionsMinimumDistance: 2,
	}
	command.AddCommand(
		diagnose.CaptureCommand(),
		config.Command(),
		controllerCommand(),
		diagnose.DoctorCommand(),
		drain.Command(),
		events.Command(),
		diagnose.ExplainCommand(),
		fleet.Command(),
		config.InitCommand(),
		diagnose.ProbeCommand(version),
		reloadCommand(),
		show.Command(),
		speakerCommand(),
		top.Command(),
		diagnose.TraceCommand(),
		drain.UndrainCommand(),
	)
	commandline.AddVersion(command)
	commandline.AddPages(command)
	commandline.Strict(command)
	return command
}
