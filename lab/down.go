package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/guideway/guideway/cli/commandline"
	"github.com/guideway/guideway/controller/config"
	"github.com/guideway/guideway/lab/hosts"
)

func downCommand() *cobra.Command {
	var name, runDir string
	command := &cobra.Command{
		Use:   "down",
		Short: "Remove a lab, whatever is left of it",
		Args:  commandline.NoArguments,
		RunE: func(*cobra.Command, []string) error {
			if !hosts.Exists(name, runDir) {
				return fmt.Errorf("lab %s: there is none, so nothing was removed; %s", name, config.DidYouMean(name, hosts.Names()))
			}
			return hosts.Down(name, runDir)
		},
	}
	labName(command, &name, &runDir)
	return command
}
