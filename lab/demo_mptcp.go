package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/lab/events"
)

func demoMultipathCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo-mptcp",
		Short: "Transfer by Multipath TCP from a client with two links while things break (root)",
		Long: "Builds a lab whose client has two links, and whose backends' agents help the\n" +
			"kernels' own Multipath TCP. Bytes go there and back over both links while\n" +
			"events happen, and one screen ends it. Exits with 1 if a connection broke, a\n" +
			"digest differs, or a join did not come about. Events:\n  " + strings.Join(events.MultipathEventNames(), "\n  ") + "\n\n" +
			"The environment varies it: SEED, BACKENDS, LOAD_BALANCERS, CONNECTIONS (of each\n" +
			"event), EVENTS, DEMO_REPORT; MODE=stateful shows what joins come to without it.",
		Example: "  MODE=stateful EVENTS=cut_link guideway-lab demo-mptcp",
		Args:    commandline.NoArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			o, err := events.MultipathDefaults().FromEnvironment(os.Getenv)
			if err != nil {
				return commandline.Usagef("%w", err)
			}
			o.Output = command.OutOrStdout()
			return events.RunMultipath(command.Context(), o)
		},
	}
}
