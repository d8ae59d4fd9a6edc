package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
)

// The lab is a program of its own, which production machines do not carry.
// Its former verbs name their successors.

func labCommand() *cobra.Command { return movedToLab("lab", nil) }

func demoCommand() *cobra.Command { return movedToLab("demo", []string{"demo"}) }

func movedToLab(verb string, words []string) *cobra.Command {
	return &cobra.Command{
		Use:                verb,
		Short:              "Moved: guideway-lab",
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			instead := strings.Join(append(append([]string{"guideway-lab"}, words...), args...), " ")
			return commandline.Usagef("the lab is a program of its own, which `make build` makes in bin/ and nothing installs: run `%s`", instead)
		},
	}
}
