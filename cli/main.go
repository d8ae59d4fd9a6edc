// Command guideway is the one program that people run: it checks and compiles
// configs, runs the controller, and shows what a running load balancer does.
//
// One file per verb. A verb's file has a function that returns its command;
// main.go only gathers them.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/controller/run"
)

// version is set by the linker.
var version = "development"

// errReported ends the program with exitFailed when everything was said already.
var errReported = errors.New("reported")

// errTimeUp ends the program with exitTimeUp: `drain --wait` waited long enough.
var errTimeUp = errors.New("time is up")

// errChanges ends the program with exitChanges: `config plan` found some.
var errChanges = errors.New("changes")

func main() {
	// First of all: without a handler, SIGHUP ends the process.
	if len(os.Args) > 1 && os.Args[1] == controllerVerb {
		run.CatchHangups()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		if errors.Is(err, errChanges) {
			os.Exit(exitChanges)
		}
		if errors.Is(err, errTimeUp) {
			os.Exit(exitTimeUp)
		}
		if !errors.Is(err, errReported) {
			prefix := ""
			if toJournal(os.Stderr) {
				prefix = "<3>"
			}
			fmt.Fprintf(os.Stderr, "%sguideway: %v\n", prefix, err)
		}
		os.Exit(exitCode(err))
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
			return unknownCommand(command, args[0])
		},
		Args:                       cobra.ArbitraryArgs,
		SuggestionsMinimumDistance: 2,
	}
	command.SetVersionTemplate(versionLine())
	command.AddCommand(
		captureCommand(),
		configCommand(),
		controllerCommand(),
		demoCommand(),
		doctorCommand(),
		drainCommand(),
		explainCommand(),
		fleetCommand(),
		labCommand(),
		probeCommand(),
		reloadCommand(),
		showCommand(),
		speakerCommand(),
		traceCommand(),
		undrainCommand(),
		versionCommand(),
	)
	strict(command)
	return command
}

func versionLine() string {
	return fmt.Sprintf("guideway %s (%s, %s/%s)\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(command.OutOrStdout(), versionLine())
			return err
		},
	}
}
