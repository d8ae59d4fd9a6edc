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
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/controller"
)

// version is set by the linker.
var version = "development"

// errReported ends the program with 1 when everything was said already.
var errReported = errors.New("reported")

func main() {
	// First of all: as long as nobody listens, SIGHUP ends the process.
	if len(os.Args) > 1 && os.Args[1] == controllerVerb {
		controller.CatchHangups()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		if !errors.Is(err, errReported) {
			fmt.Fprintf(os.Stderr, "guideway: %v\n", err)
		}
		os.Exit(1)
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
	}
	command.AddCommand(
		captureCommand(),
		configCommand(),
		controllerCommand(),
		demoCommand(),
		doctorCommand(),
		drainCommand(),
		explainCommand(),
		labCommand(),
		labHelperCommand(),
		reloadCommand(),
		showCommand(),
		traceCommand(),
		undrainCommand(),
		versionCommand(),
	)
	return command
}

// group is a command that only holds others. Left alone, cobra answers a
// misspelt verb below the root with help and success.
func group(use, short string, verbs ...*cobra.Command) *cobra.Command {
	command := &cobra.Command{
		Use:   use,
		Short: short,
		RunE: func(command *cobra.Command, args []string) error {
			if len(args) == 0 {
				return command.Help()
			}
			hint := "see `" + command.CommandPath() + " --help`"
			if similar := command.SuggestionsFor(args[0]); len(similar) > 0 {
				hint = "did you mean " + strings.Join(similar, " or ") + "?"
			}
			return fmt.Errorf("unknown command %q for %q: %s", args[0], command.CommandPath(), hint)
		},
		SuggestionsMinimumDistance: 2,
	}
	command.AddCommand(verbs...)
	return command
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(command.OutOrStdout(), "guideway %s (%s, %s/%s)\n",
				version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
