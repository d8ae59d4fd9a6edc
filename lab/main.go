// Command guideway-lab builds a whole data centre in network namespaces on one machine, and
// demonstrates Guideway in it. It is not installed: machines that forward packets do not need
// it.
//
// Each verb has a file; main.go only collects them.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
)

// exitInterrupted is what shells make of Ctrl-C: 128 and the number of SIGINT.
const exitInterrupted = 130

// version is set by the linker.
var version = "development"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	interrupted := ctx.Err() != nil
	stop()
	if err != nil && interrupted {
		fmt.Fprintln(os.Stderr, "guideway-lab: interrupted")
		os.Exit(exitInterrupted)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "guideway-lab: %v\n", err)
		os.Exit(commandline.ExitCode(err))
	}
}

func root() *cobra.Command {
	command := &cobra.Command{
		Use:           "guideway-lab",
		Short:         "A whole data centre in network namespaces, to try things in (root)",
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
	command.AddCommand(demoCommand(), demoMultipathCommand(), downCommand(), helperCommand(), statusCommand(), upCommand())
	commandline.AddVersion(command)
	commandline.AddPages(command)
	commandline.Strict(command)
	return command
}
